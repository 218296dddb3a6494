package worker

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// Info is what a handler knows of its run, whatever the type of its args.
type Info struct {
	ID         uuid.UUID
	Kind, Tag  string
	Priority   int
	Attempt    int // 1, 2, ...: runs charged to the retry budget
	Restarts   int // leases of this job that were lost
	Generation int // the fencing token: pass it on to what must refuse late writers
	Facts      ledger.Facts

	// LastError is the text of the last failed attempt, "" if there was none.
	LastError string
	// LastProgress is what an earlier attempt reported last, nil if nothing: where to start from.
	LastProgress json.RawMessage

	EnqueuedAt   time.Time
	ScheduledFor time.Time
	StartedAt    time.Time // the claim, by the database's clock

	w     *Worker
	lease *lease
}

// Job is one run of a job with its args. A is whatever the args unmarshal into; json.RawMessage gets
// them as they were enqueued.
type Job[A any] struct {
	Info
	Args A
}

// Handler runs one job, its types erased: args as JSON text, the result as any value that marshals to
// JSON, nil for none.
type Handler func(ctx context.Context, job Job[json.RawMessage]) (any, error)

// Middleware wraps every handler of a worker: logging, tracing, checks. It may change ctx, the result
// and the error, and need not call next.
type Middleware func(next Handler) Handler

// Use adds middleware; the first added is the outermost. Call it before Run.
func (w *Worker) Use(m ...Middleware) {
	w.mustNotRun("Use")
	w.around = append(w.around, m...)
}

// Handle registers the handler of a kind. Its result is kept with the job: at most 1 MiB as JSON, none
// if R is struct{}. Args that do not unmarshal into A end the job at once as a dead letter of class
// invalid_input; no args leave A as its zero value.
//
// A plain error fails the attempt, which is retried as the job's policy says; Retry, Permanent,
// Classed and Snooze say otherwise, also wrapped in other errors. A panic fails the attempt with its
// stack.
//
// It panics where the program is wrong: a kind that is no valid name (domain.CheckName), a kind that
// has a handler already, a worker that runs.
func Handle[A, R any](w *Worker, kind string, f func(ctx context.Context, job Job[A]) (R, error)) {
	w.mustNotRun("Handle")
	if err := domain.CheckName("kind", kind); err != nil {
		panic(fmt.Sprintf("worker: Handle: %v", err))
	}
	if _, ok := w.handlers[kind]; ok {
		panic(fmt.Sprintf("worker: Handle: kind %q has a handler already", kind))
	}
	w.handlers[kind] = func(ctx context.Context, raw Job[json.RawMessage]) (any, error) {
		job := Job[A]{Info: raw.Info}
		if len(raw.Args) > 0 {
			if err := json.Unmarshal(raw.Args, &job.Args); err != nil {
				return nil, Classed(fmt.Errorf("unmarshal args into %T: %w", job.Args, err), domain.ClassInvalidInput)
			}
		}
		r, err := f(ctx, job)
		if _, none := any(r).(struct{}); none {
			return nil, err
		}
		return r, err
	}
}

func (w *Worker) mustNotRun(what string) {
	if w.started.Load() {
		panic("worker: " + what + " after Run")
	}
}

// kinds are the kinds that have a handler.
func (w *Worker) kinds() []string {
	kinds := make([]string, 0, len(w.handlers))
	for kind := range w.handlers {
		kinds = append(kinds, kind)
	}
	return kinds
}

// wrap puts each handler inside its middleware.
func (w *Worker) wrap() {
	for kind, h := range w.handlers {
		for _, around := range slices.Backward(w.around) {
			h = around(h)
		}
		w.wrapped[kind] = h
	}
}

// SetProgress stores how far the run is, for people to see and for the next attempt to start from: a
// value that marshals to JSON of at most 4 KiB. What is larger is a *domain.FieldError, and the progress
// before it stays: half of one would be of no use to the next attempt. NUL and what is no UTF-8 become
// U+FFFD, with a flag. It travels with the next ping, or with the end of the attempt if that comes first;
// in between, the last value wins. That of a run that succeeds before the next ping is dropped.
func (i Info) SetProgress(v any) error {
	text, ok := v.(json.RawMessage)
	if !ok {
		var err error
		if text, err = json.Marshal(v); err != nil {
			return fmt.Errorf("progress of job %s: %w", i.ID, err)
		}
	}
	if len(text) > domain.MaxProgressBytes {
		return fmt.Errorf("progress of job %s: %w", i.ID,
			&domain.FieldError{Field: "progress", Value: fmt.Sprintf("%d bytes", len(text)), Want: "at most 4096 bytes"})
	}
	i.w.setProgress(i.lease, text, !ok && ledger.Substituted(v, text))
	return nil
}

// CompleteTx completes the job inside the handler's own transaction: what it wrote there and the
// completion are one commit. Commit soon, and return nil if and only if the commit succeeded: the
// worker then reports nothing itself. Until the commit no ping extends the lease. Returning nil
// without a commit leaves the job to be taken back when its lease ends; Postgres ends the session of a
// transaction that stays idle until then.
func (i Info) CompleteTx(ctx context.Context, tx pgx.Tx, result any) error {
	return i.inTx(ctx, func() (ledger.Answer, error) {
		return i.w.l.CompleteTx(ctx, tx, i.w.cfg.Name, i.completion(result))
	})
}

// CompleteSQLTx is CompleteTx for a *sql.Tx opened through pgx's stdlib driver.
func (i Info) CompleteSQLTx(ctx context.Context, tx *sql.Tx, result any) error {
	return i.inTx(ctx, func() (ledger.Answer, error) {
		return i.w.l.CompleteSQLTx(ctx, tx, i.w.cfg.Name, i.completion(result))
	})
}

func (i Info) completion(result any) ledger.Completion {
	return ledger.Completion{Held: ledger.Held{JobID: i.ID, Generation: i.Generation}, Result: marshalled(result)}
}

func (i Info) inTx(ctx context.Context, complete func() (ledger.Answer, error)) error {
	if err := i.w.enterTx(ctx, i.lease); err != nil {
		return err
	}
	_, err := complete()
	if err != nil {
		i.w.leaveTx(i.lease)
	}
	return err
}
