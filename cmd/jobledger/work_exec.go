package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/jobledger/jobledger/adapters/executor"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

// stdoutInError is how much standard output goes into the error of a command that said nothing on standard error.
const stdoutInError = 4 << 10

// commandRunner runs the commands of `work --exec`.
type commandRunner struct {
	log       *slog.Logger
	worker    string
	grace     time.Duration
	permanent []int
	kill      <-chan struct{}
	guard     *executor.Guard
	running   sync.WaitGroup
}

// handler runs command for each job of one kind.
func (x *commandRunner) handler(command string) func(context.Context, worker.Job[json.RawMessage]) (any, error) {
	return func(ctx context.Context, job worker.Job[json.RawMessage]) (any, error) {
		x.running.Add(1)
		defer x.running.Done()
		r, err := executor.Run(ctx, executor.Command{
			Path:  "sh",
			Args:  []string{"-c", command},
			Env:   append(os.Environ(), x.environment(job.Info)...),
			Stdin: job.Args,
			Grace: x.grace,
			Kill:  x.kill,
			Guard: x.guard,
		})
		if err != nil {
			return nil, err
		}
		x.tell(ctx, job.Info, r)
		if r.Success() {
			return resultOf(r), nil
		}
		return nil, x.failure(r)
	}
}

// environment is what a command learns of its job beside the args.
func (x *commandRunner) environment(job worker.Info) []string {
	env := []string{
		"JOBLEDGER_JOB_ID=" + job.ID.String(),
		"JOBLEDGER_KIND=" + job.Kind,
		"JOBLEDGER_TAG=" + job.Tag,
		fmt.Sprintf("JOBLEDGER_PRIORITY=%d", job.Priority),
		fmt.Sprintf("JOBLEDGER_ATTEMPT=%d", job.Attempt),
		fmt.Sprintf("JOBLEDGER_RESTARTS=%d", job.Restarts),
		fmt.Sprintf("JOBLEDGER_GENERATION=%d", job.Generation),
		"JOBLEDGER_WORKER=" + x.worker,
	}
	if job.Facts.CorrelationID != "" {
		env = append(env, "JOBLEDGER_CORRELATION_ID="+job.Facts.CorrelationID)
	}
	if job.Facts.Traceparent != "" {
		env = append(env, "TRACEPARENT="+job.Facts.Traceparent)
	}
	return env
}

// resultOf is standard output as a result: JSON as it is, other text as a JSON string, nothing if there is none. Text with
// a part left out, or with U+FFFD for what Postgres takes in no text, is marked as altered; the ledger does the same
// for JSON.
func resultOf(r executor.Result) any {
	text := bytes.TrimSpace(r.Stdout)
	switch {
	case len(text) == 0:
		return nil
	case len(text) <= domain.MaxArgsBytes && utf8.Valid(text) && json.Valid(text):
		return json.RawMessage(text)
	}
	quoted, altered := quoteJSON(r.Stdout)
	altered = altered || r.StdoutCut > 0
	if len(quoted) > domain.MaxArgsBytes {
		// A character can take six times its length in JSON.
		quoted, _ = quoteJSON(r.ShortenStdout(domain.MaxArgsBytes/6 - 64))
		altered = true
	}
	if altered {
		return ledger.Altered{Value: quoted}
	}
	return quoted
}

// quoteJSON is text, less the line breaks at its end, as a JSON string that Postgres can give back. altered says that it
// had to put U+FFFD somewhere.
func quoteJSON(text []byte) (quoted json.RawMessage, altered bool) {
	s := strings.TrimRight(string(text), "\r\n")
	clean := strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\uFFFD"), "\uFFFD")
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(clean); err != nil {
		panic(fmt.Sprintf("jobledger: encode a string: %v", err)) // strings always encode
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), clean != s
}

// failure is the error of a command that did not succeed. One that we have stopped gets a plain error: the worker knows
// what the stop was for.
func (x *commandRunner) failure(r executor.Result) error {
	err := errors.New(explained(r))
	switch {
	case r.Stopped != nil:
		return fmt.Errorf("%w: %w", r.Stopped, err)
	case r.Signal != 0:
		return worker.Classed(err, domain.ClassCrash)
	case slices.Contains(x.permanent, r.ExitCode):
		return worker.Classed(err, domain.ClassInvalidInput)
	}
	return err
}

// explained says how a command ended, with the end of what it printed.
func explained(r executor.Result) string {
	text := r.String()
	if r.Survived {
		text += "; a process of it could not be killed"
	}
	if said := bytes.TrimSpace(r.Stderr); len(said) > 0 {
		return fmt.Sprintf("%s\nstderr:\n%s", text, said)
	}
	if said := bytes.TrimSpace(r.Stdout); len(said) > 0 {
		return fmt.Sprintf("%s\nstdout:\n%s", text, bytes.ToValidUTF8(said[max(0, len(said)-stdoutInError):], nil))
	}
	return text
}

func (x *commandRunner) tell(ctx context.Context, job worker.Info, r executor.Result) {
	attrs := []slog.Attr{slog.String("job_id", job.ID.String()), slog.String("kind", job.Kind),
		slog.Int("generation", job.Generation), slog.Int("attempt", job.Attempt), slog.String("end", r.String()),
		slog.Duration("elapsed", r.Elapsed.Round(time.Millisecond))}
	if said := bytes.TrimSpace(r.Stderr); len(said) > 0 {
		// The last line mostly tells what went wrong; all of it is in the job's error.
		attrs = append(attrs, slog.String("stderr", clip(inert(string(said[bytes.LastIndexByte(said, '\n')+1:])), 200)))
	}
	x.log.LogAttrs(ctx, slog.LevelInfo, "command ended", attrs...)
}
