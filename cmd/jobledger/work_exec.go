package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

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
	memory    int64 // bytes, 0 for no limit
	cgroups   bool
	within    executor.Containment
	kill      <-chan struct{}
	running   sync.WaitGroup
	cut       atomic.Int64 // commands that were stopped because the worker stops
}

// runner is what the flags say of commands.
func (f *workFlags) runner(cmd *cobra.Command) (*commandRunner, error) {
	if err := notEmpty(cmd, "memory", "cgroup"); err != nil {
		return nil, err
	}
	if err := oneOf("cgroup", f.cgroup, "auto", "off"); err != nil {
		return nil, err
	}
	x := &commandRunner{grace: f.grace, permanent: f.permanentExit, cgroups: f.cgroup == "auto"}
	if f.memory != "" {
		if runtime.GOOS != "linux" {
			return nil, wrongUse("leave it out, or run the worker on Linux", "--memory: this system has no such limit")
		}
		var err error
		if x.memory, err = parseBytes("--memory", f.memory); err != nil {
			return nil, err
		}
		if x.memory < 1<<20 {
			return nil, &domain.FieldError{Field: "--memory", Value: f.memory, Want: "1MiB at least"}
		}
	}
	return x, nil
}

// ready looks for what holds commands together, and kills what is left of those whose worker was killed together with
// their keepers: none of it may be there when their jobs run again.
func (x *commandRunner) ready(ctx context.Context) {
	if x.cgroups {
		x.within = executor.Detect(x.memory > 0)
	}
	if x.memory > 0 && !x.within.Memory {
		x.log.LogAttrs(ctx, slog.LevelInfo, "no cgroup can limit memory here: --memory limits the address space of each process of a command")
	}
	x.sweep(ctx)
}

// sweep goes on where something cannot be killed: a process that hangs in the kernel must not stop all other jobs.
func (x *commandRunner) sweep(ctx context.Context) {
	n, err := x.within.Sweep()
	if err != nil {
		x.log.LogAttrs(ctx, slog.LevelError, "something is left of commands whose worker was killed", slog.Any("error", err))
		return
	}
	if n > 0 {
		x.log.LogAttrs(ctx, slog.LevelWarn, "killed what was left of commands whose worker was killed", slog.Int("processes", n))
	}
}

// handler runs command for each job of one kind.
func (x *commandRunner) handler(command string) func(context.Context, worker.Job[json.RawMessage]) (any, error) {
	return func(ctx context.Context, job worker.Job[json.RawMessage]) (any, error) {
		x.running.Add(1)
		defer x.running.Done()
		if job.Restarts > 0 {
			// Its last run may have been here, and have left something.
			x.sweep(ctx)
		}
		r, err := executor.Run(ctx, executor.Command{
			Path:        "sh",
			Args:        []string{"-c", command},
			Env:         append(os.Environ(), x.environment(job.Info)...),
			Stdin:       job.Args,
			Grace:       x.grace,
			Kill:        x.kill,
			Containment: x.within,
			Memory:      x.memory,
		})
		switch {
		case errors.Is(err, executor.ErrKeeperLost):
			return nil, worker.Classed(err, domain.ClassCrash)
		case err != nil:
			return nil, err
		}
		x.tell(ctx, job.Info, r)
		if errors.Is(r.Stopped, worker.ErrStopping) || errors.Is(r.Stopped, executor.ErrKilled) {
			x.cut.Add(1)
		}
		if errors.Is(r.Stopped, executor.ErrKilled) {
			// The signal that killed it hurries the worker as well. Until the worker has heard of it, the end of the
			// command would pass for a failure of its own.
			<-ctx.Done()
		}
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
// what the stop was for. One that has ended by itself has failed, even if the stop came at the same moment.
func (x *commandRunner) failure(r executor.Result) error {
	err := errors.New(explained(r))
	switch {
	case r.Stopped != nil:
		return err
	case r.Signal != 0 || r.OutOfMemory:
		return worker.Classed(err, domain.ClassCrash)
	case slices.Contains(x.permanent, r.ExitCode):
		return worker.Classed(err, domain.ClassInvalidInput)
	}
	return worker.Classed(err, domain.ClassTransient)
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
