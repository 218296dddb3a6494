package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// The ranges of whole numbers, as flags and lines name them. The ledger checks them.
const (
	priorityRange = "-32768 to 32767"
	attemptsRange = "1 to 1000"
	restartsRange = "0 to 1000"
)

// enqueueFlags are the flags of enqueue; a line of --file has fields of the same names.
type enqueueFlags struct {
	args, file    string
	tag           string
	priority      int
	at            string
	in            time.Duration
	timeout       time.Duration
	maxAttempts   int
	restartLimit  int
	onLostLease   string
	labels        []string
	key           string
	keyTTL        time.Duration
	correlationID string
}

func enqueueCommand(a *app) *cobra.Command {
	var f enqueueFlags
	cmd := &cobra.Command{
		Use:   "enqueue KIND | enqueue --file FILE",
		Short: "Create a job, or many from a file",
		Long: `Create one job of the given kind and print its id, or one for each line of a file.

--file reads JSON Lines ("-" for standard input). A line has the fields kind, args (any JSON, kept as it is), tag,
priority, at, in, timeout, max_attempts, restart_limit, on_lost_lease, labels (an object), key, key_ttl and
correlation_id, each as its flag; a field that is not known, or there twice, is refused. Empty lines are passed over.
A batch is all or nothing, the file is not: batches have up to 1000 lines, fewer when they are long. An error names
the line and what is wrong with it; its batch is not stored, those before are, and the hint says how to go on.

With --key, the same key with the same kind and args gives the first job again ("replayed") instead of a second one:
the way to repeat an enqueue whose answer was lost.`,
		Example: `  jobledger enqueue greet --args '{"name": "Ada"}'
  jobledger enqueue report --args @report.json --tag slow --in 10m --timeout 2h
  curl -s https://example.org/order.json | jobledger enqueue order --args - --key order-17
  jobledger enqueue --file jobs.jsonl
  printf '{"kind":"greet","args":{"name":"Ada"}}\n' | jobledger enqueue --file - --json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("file") {
				return noArgs(cmd, args)
			}
			return oneArg("a KIND (or --file)")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("file") {
				return a.enqueueFile(cmd, f.file)
			}
			return a.enqueueOne(cmd, args[0], f)
		},
	}
	f.add(cmd.Flags())
	return cmd
}

func (f *enqueueFlags) add(flags *pflag.FlagSet) {
	d := domain.DefaultPolicy
	flags.StringVar(&f.args, "args", "", "what the handler gets: JSON, @FILE with JSON, or - for standard input")
	flags.StringVar(&f.file, "file", "", "JSON Lines with a job each, - for standard input")
	flags.StringVar(&f.tag, "tag", domain.DefaultTag, "the label that workers subscribe to")
	wholeVar(flags, &f.priority, "priority", 0, priorityRange, "higher first")
	flags.StringVar(&f.at, "at", "", "when it is due: RFC 3339 with an offset, such as 2030-01-02T15:04:05Z")
	flags.DurationVar(&f.in, "in", 0, "due after this time, such as 90s or 2h")
	flags.DurationVar(&f.timeout, "timeout", d.Timeout, "how long one attempt may run")
	wholeVar(flags, &f.maxAttempts, "max-attempts", d.MaxAttempts, attemptsRange, "how many attempts may fail before it is a dead letter")
	wholeVar(flags, &f.restartLimit, "restart-limit", d.RestartLimit, restartsRange, "how many lost leases are forgiven")
	flags.StringVar(&f.onLostLease, "on-lost-lease", string(d.OnLostLease), "restart, fail or reconcile")
	flags.StringArrayVar(&f.labels, "label", nil, "name=value to find it by; may be given up to 16 times")
	flags.StringVar(&f.key, "key", "", "idempotency key")
	flags.DurationVar(&f.keyTTL, "key-ttl", domain.DefaultKeyTTL, "how long the key outlives its job; 0: not at all")
	flags.StringVar(&f.correlationID, "correlation-id", "", "travels with the job to its handler")
}

// enqueueOne creates one job.
func (a *app) enqueueOne(cmd *cobra.Command, kind string, f enqueueFlags) error {
	p, err := a.enqueueParams(cmd, kind, f)
	if err != nil {
		return err
	}
	return a.with(cmd.Context(), func(s *session) error {
		job, err := s.Enqueue(cmd.Context(), p)
		if err != nil {
			return a.refusedKey(lostAnswer(p, asFlags(err)), p.Key)
		}
		if a.json {
			return a.printJSON(enqueuedJSON{JobID: job.JobID, Replayed: job.Replayed})
		}
		if job.Replayed {
			fmt.Fprintf(a.stderr, "replayed: key %s has made this job before\n", inert(f.key))
		}
		_, err = fmt.Fprintln(a.stdout, job.JobID)
		return err
	})
}

// enqueueParams turns the flags into what the ledger takes. What was not given is left to the ledger's defaults.
func (a *app) enqueueParams(cmd *cobra.Command, kind string, f enqueueFlags) (p ledger.EnqueueParams, err error) {
	if err := notEmpty(cmd, "args", "tag", "at", "on-lost-lease", "key", "correlation-id"); err != nil {
		return p, err
	}
	given := cmd.Flags().Changed
	p = ledger.EnqueueParams{Kind: kind, Tag: f.tag, Priority: f.priority, Delay: f.in, Key: f.key, CorrelationID: f.correlationID,
		Origin: domain.Origin{TriggerKind: "manual"}}
	if given("at") {
		if given("in") {
			return p, wrongUse("give one of them", "--at and --in both say when it is due")
		}
		if p.ScheduledFor, err = parseTime("--at", f.at); err != nil {
			return p, wrongUse("--at "+time.Now().Add(time.Hour).Format(time.RFC3339)+" is in an hour; so is --in 1h", "%w", err)
		}
	}
	if given("key-ttl") {
		if f.key == "" {
			return p, wrongUse("give a --key too", "--key-ttl without --key")
		}
		if p.KeyTTL, err = keyTTL(f.keyTTL); err != nil {
			return p, asFlags(err)
		}
	}
	if given("timeout") || given("max-attempts") || given("restart-limit") || given("on-lost-lease") {
		p.Policy = domain.DefaultPolicy
		p.Policy.Timeout, p.Policy.MaxAttempts = f.timeout, f.maxAttempts
		p.Policy.RestartLimit, p.Policy.OnLostLease = f.restartLimit, domain.OnLostLease(f.onLostLease)
		if err := p.Policy.Validate(); err != nil {
			return p, asFlags(err)
		}
		p.Policy.RestartLimit = restartLimit(p.Policy.RestartLimit)
	}
	if p.Labels, err = parseLabels(f.labels); err != nil {
		return p, err
	}
	if given("args") {
		if p.Args, err = a.readArgs(cmd.Context(), f.args); err != nil {
			return p, err
		}
	}
	return p, nil
}

// readArgs reads the argument of --args. White space around the JSON is dropped, and a byte order mark before it, which
// some editors write; everything in it is kept.
func (a *app) readArgs(ctx context.Context, from string) (json.RawMessage, error) {
	text := []byte(from)
	var err error
	switch path, isFile := strings.CutPrefix(from, "@"); {
	case from == "-":
		text, err = readLimited(untilDone(ctx, a.stdin))
	case isFile:
		text, err = readFile(path)
	}
	switch path := (*fs.PathError)(nil); {
	case errors.As(err, &path):
		return nil, wrongUse("@ means a file; a text that begins with it is JSON in quotation marks: --args '\"@…\"'", "--args: %w", err)
	case err != nil:
		return nil, fmt.Errorf("--args: %w", asFlags(err))
	}
	text = bytes.TrimSpace(bytes.TrimPrefix(text, utf8BOM))
	if err := domain.CheckJSON("args", text); err != nil {
		hint := "Postgres cannot store it: leave it out, or put \\ufffd in its place"
		if !json.Valid(text) {
			hint = `args are JSON: --args '{"name": "Ada"}', --args '"text"', --args @FILE or --args - for standard input`
		}
		return nil, wrongUse(hint, "%w", asFlags(err))
	}
	return text, nil
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readLimited(file)
}

// readLimited refuses input that the ledger would refuse before all of it is in memory.
func readLimited(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, domain.MaxArgsBytes+1))
	if err == nil && len(text) > domain.MaxArgsBytes {
		err = &domain.FieldError{Field: "args", Value: domain.Described("more"), Want: fmt.Sprintf("at most %d bytes", domain.MaxArgsBytes)}
	}
	return text, err
}

// rfc3339 is the form of a time. time.Parse alone would take more: hours of one digit, a comma before the fraction.
var rfc3339 = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$`)

// parseTime reads RFC 3339, whose offset is not optional: a time without one means another instant on each machine.
func parseTime(field, s string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || !rfc3339.MatchString(s) {
		return at, &domain.FieldError{Field: field, Value: s, Want: "a time with its offset, such as 2030-01-02T15:04:05Z or 2030-01-02T15:04:05+02:00"}
	}
	return at, domain.CheckTime(field, at) // here, for the first second of all would pass for no time at all
}

// keyTTL: 0 on the command line means that the key ends with its job.
func keyTTL(d time.Duration) (time.Duration, error) {
	if d == 0 {
		return ledger.KeyUntilEnded, nil
	}
	return d, domain.CheckDelay("key_ttl", d)
}

// asFlags calls a field by the name of its flag.
func asFlags(err error) error {
	field, ok := errors.AsType[*domain.FieldError](err)
	if !ok {
		return err
	}
	name := field.Field
	for _, body := range []struct{ prefix, flag string }{{"labels.", "--label "}, {"args.", "--args ."}, {"args[", "--args ["}} {
		if rest, ok := strings.CutPrefix(name, body.prefix); ok {
			name = body.flag + rest
		}
	}
	if known, ok := flagNames[name]; ok {
		name = known
	}
	return &domain.FieldError{Index: field.Index, Field: name, Value: field.Value, Want: field.Want}
}

// flagNames are the flags of the ledger's fields.
var flagNames = map[string]string{
	"kind": "KIND", "tag": "--tag", "args": "--args", "priority": "--priority", "scheduled_for": "--at", "delay": "--in", "key": "--key",
	"key_ttl": "--key-ttl", "labels": "--label", "correlation_id": "--correlation-id", "actor": "--actor", "reason": "--reason",
	"policy.timeout": "--timeout", "policy.max_attempts": "--max-attempts", "policy.restart_limit": "--restart-limit",
	"policy.on_lost_lease": "--on-lost-lease", "limit": "--limit", "lease": "--lease", "concurrency": "--concurrency",
	"name": "--name", "tags": "--tag", "margin": "--grace", "poll": "--poll", "prefetch": "--prefetch", "stop_timeout": "--stop-timeout",
	"stop_grace": "--grace", "ping_every": "--lease", "worker": "--name", "max": "--limit",
}

// lostAnswer says what an enqueue without an answer means: only with a key may it simply be repeated.
func lostAnswer(p ledger.EnqueueParams, err error) error {
	switch {
	case !answerLost(err):
		return err
	case p.Key != "":
		return failed("run it again: with the key there will be one job", "%w", err)
	}
	return failed("the job may exist or not: look with jobledger jobs list; with --key a repetition is safe", "%w", err)
}

// refusedKey says which key was refused, and who has it.
func (a *app) refusedKey(err error, key string) error {
	refused, ok := errors.AsType[*domain.RefusedError](err)
	if !ok {
		return err
	}
	switch refused.Refusal {
	case domain.RefusedKeyConflict:
		return failed("that job: jobledger job show "+refused.JobID.String()+a.flagsAgain()+"; another --key makes another job", "%w",
			&worded{fmt.Sprintf("key %s was used by job %s for another kind or other args", clip(strconv.Quote(key), maxValue), refused.JobID), err})
	case domain.RefusedKeyBusy:
		return failed("try again when it has ended", "%w", &worded{"an open transaction holds key " + clip(strconv.Quote(key), maxValue), err})
	}
	return err
}

// answerLost reports whether a statement may have been carried out though there is no answer.
func answerLost(err error) bool {
	var refused *pgconn.PgError
	return (ledger.Retryable(err) || errors.Is(err, context.Canceled)) && !errors.As(err, &refused) && !errors.Is(err, domain.ErrKeyBusy) && !pgconn.SafeToRetry(err)
}

// restartLimit is n as the library takes it, where 0 means the default.
func restartLimit(n int) int {
	if n == 0 {
		return domain.None
	}
	return n
}
