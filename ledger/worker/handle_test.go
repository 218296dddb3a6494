package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

type greeting struct {
	To    string `json:"to"`
	Times int    `json:"times"`
}

// TestHandle runs real jobs through one worker and looks at what the ledger has of them.
func TestHandle(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	order := make(chan string, 10)
	w := start(t, l, brisk(), func(w *worker.Worker) {
		w.Use(traced("outer", order), traced("inner", order))
		worker.Handle(w, "greet", func(_ context.Context, job worker.Job[greeting]) (greeting, error) {
			return greeting{To: job.Args.To, Times: job.Args.Times + job.Attempt}, nil
		})
		worker.Handle(w, "raw", func(_ context.Context, job worker.Job[json.RawMessage]) (json.RawMessage, error) {
			return job.Args, nil
		})
		worker.Handle(w, "text", func(context.Context, worker.Job[struct{}]) (string, error) { return "12", nil })
		worker.Handle(w, "silent", func(context.Context, worker.Job[struct{}]) (struct{}, error) { return struct{}{}, nil })
		worker.Handle(w, "odd", func(context.Context, worker.Job[struct{}]) (any, error) { return make(chan int), nil })
		worker.Handle(w, "flaky", func(_ context.Context, job worker.Job[struct{}]) (string, error) {
			if job.Attempt == 1 {
				return "", worker.Retry(errors.New("not yet"), 0)
			}
			return job.LastError, nil
		})
		worker.Handle(w, "plain", func(context.Context, worker.Job[struct{}]) (struct{}, error) {
			return struct{}{}, errors.New("broken")
		})
		worker.Handle(w, "later", func(context.Context, worker.Job[struct{}]) (struct{}, error) {
			return struct{}{}, fmt.Errorf("wrapped: %w", worker.Retry(errors.New("in an hour"), time.Hour))
		})
		worker.Handle(w, "hopeless", func(context.Context, worker.Job[struct{}]) (struct{}, error) {
			return struct{}{}, worker.Permanent(errors.New("no such user"))
		})
		worker.Handle(w, "unsure", func(context.Context, worker.Job[struct{}]) (struct{}, error) {
			return struct{}{}, worker.Classed(errors.New("sent?"), domain.ClassUnknown)
		})
		worker.Handle(w, "misclassed", func(context.Context, worker.Job[struct{}]) (struct{}, error) {
			return struct{}{}, worker.Classed(errors.New("odd"), "no such class")
		})
		worker.Handle(w, "panics", func(context.Context, worker.Job[struct{}]) (struct{}, error) { panic("boom") })
		worker.Handle(w, "leaves", func(context.Context, worker.Job[struct{}]) (struct{}, error) {
			runtime.Goexit()
			return struct{}{}, nil
		})
		worker.Handle(w, "naps", func(_ context.Context, job worker.Job[struct{}]) (int, error) {
			if job.Generation == 1 {
				return 0, worker.Snooze(0, "too\nearly")
			}
			return job.Attempt, nil
		})
	})
	once := func(p *ledger.EnqueueParams) { p.Policy = domain.Policy{MaxAttempts: 1} }

	t.Run("typed_args_and_result_inside_middleware", func(t *testing.T) {
		job := succeeded(t, l, enqueue(t, l, "greet", greeting{To: "a@example.org", Times: 2}, nil))
		if string(job.Result) != `{"to":"a@example.org","times":3}` {
			t.Errorf("result is %s", job.Result)
		}
		got := []string{<-order, <-order, <-order, <-order}
		if want := []string{"outer in", "inner in", "inner out", "outer out"}; !slices.Equal(got, want) {
			t.Errorf("middleware ran as %q, want %q", got, want)
		}
	})
	t.Run("raw_args_keep_their_digits", func(t *testing.T) {
		job := succeeded(t, l, enqueue(t, l, "raw", `{"n": 9007199254740993, "d": 1.10}`, nil))
		if string(job.Result) != `{"n": 9007199254740993, "d": 1.10}` {
			t.Errorf("result is %s", job.Result)
		}
	})
	t.Run("a_string_is_a_JSON_string", func(t *testing.T) {
		if job := succeeded(t, l, enqueue(t, l, "text", nil, nil)); string(job.Result) != `"12"` {
			t.Errorf("result is %s", job.Result)
		}
	})
	t.Run("no_result", func(t *testing.T) {
		if job := succeeded(t, l, enqueue(t, l, "silent", nil, nil)); job.Result != nil {
			t.Errorf("result is %s", job.Result)
		}
	})
	t.Run("a_result_that_does_not_marshal_is_stored_as_text", func(t *testing.T) {
		if job := succeeded(t, l, enqueue(t, l, "odd", nil, nil)); !strings.HasPrefix(string(job.Result), `"0x`) {
			t.Errorf("result is %s", job.Result)
		}
	})
	t.Run("retried_with_the_last_error", func(t *testing.T) {
		job := succeeded(t, l, enqueue(t, l, "flaky", nil, nil))
		if string(job.Result) != `"not yet"` || job.Attempt != 2 {
			t.Errorf("result is %s after %d attempts", job.Result, job.Attempt)
		}
	})
	t.Run("a_plain_error_is_retried_by_the_policy", func(t *testing.T) {
		policy := domain.Policy{MaxAttempts: 2, BackoffBase: time.Millisecond, BackoffJitter: 10}
		id := enqueue(t, l, "plain", nil, func(p *ledger.EnqueueParams) { p.Policy = policy })
		job := ended(t, l, id)
		if job.Outcome != domain.Failure || job.Reason != domain.ReasonAttemptsExhausted || job.Class != domain.ClassTransient || job.Error != "broken" {
			t.Errorf("ended with %s %s %s %q", job.Outcome, job.Reason, job.Class, job.Error)
		}
		events, _ := history(t, l, id)
		if d := events[2].ScheduledFor.Sub(events[2].At); d != policy.WithDefaults().RetryDelay(id, 1) {
			t.Errorf("the retry was due after %s", d)
		}
	})
	t.Run("retry_after", func(t *testing.T) {
		id := enqueue(t, l, "later", nil, nil)
		db.WaitTrue(t, "job waits again", `SELECT count(*) = 1 FROM jobledger.job_queue WHERE job_id = $1 AND attempt = 1`, id)
		events, _ := history(t, l, id)
		if d := events[2].ScheduledFor.Sub(events[2].At); d != time.Hour || events[2].Class != domain.ClassTransient {
			t.Errorf("retried after %s with class %s", d, events[2].Class)
		}
		if job, _ := l.Job(ctx, id); job.Error != "wrapped: in an hour" {
			t.Errorf("error is %q", job.Error)
		}
	})
	t.Run("permanent", func(t *testing.T) {
		job := ended(t, l, enqueue(t, l, "hopeless", nil, nil))
		if job.Outcome != domain.Failure || job.Reason != domain.ReasonPermanent || job.Error != "no such user" || job.Attempt != 1 {
			t.Errorf("ended with %s %s %q at attempt %d", job.Outcome, job.Reason, job.Error, job.Attempt)
		}
	})
	t.Run("classes", func(t *testing.T) {
		if job := ended(t, l, enqueue(t, l, "unsure", nil, once)); job.Class != domain.ClassUnknown {
			t.Errorf("class is %s", job.Class)
		}
		if job := ended(t, l, enqueue(t, l, "misclassed", nil, once)); job.Class != domain.ClassTransient {
			t.Errorf("an unknown class became %s", job.Class)
		}
	})
	t.Run("args_that_do_not_fit_are_invalid_input", func(t *testing.T) {
		job := ended(t, l, enqueue(t, l, "greet", `{"times":"three"}`, nil))
		if job.Outcome != domain.Failure || job.Class != domain.ClassInvalidInput || job.Attempt != 1 || !strings.Contains(job.Error, "times") {
			t.Errorf("ended with %s %s %q at attempt %d", job.Outcome, job.Class, job.Error, job.Attempt)
		}
		for range 4 {
			<-order
		}
	})
	t.Run("panics_are_recorded_with_their_stack", func(t *testing.T) {
		job := ended(t, l, enqueue(t, l, "panics", nil, once))
		if job.Class != domain.ClassPanic || !strings.HasPrefix(job.Error, "panic: boom\n") || !strings.Contains(job.Error, "handle_test.go") {
			t.Errorf("ended with %s %q", job.Class, job.Error)
		}
		if job := ended(t, l, enqueue(t, l, "leaves", nil, once)); job.Class != domain.ClassPanic {
			t.Errorf("a handler that ended its goroutine ended with %s %q", job.Class, job.Error)
		}
	})
	t.Run("snoozed_without_an_attempt", func(t *testing.T) {
		id := enqueue(t, l, "naps", nil, once)
		if job := succeeded(t, l, id); string(job.Result) != "1" {
			t.Errorf("attempt was %s", job.Result)
		}
		if events, _ := history(t, l, id); events[2].Type != domain.Snoozed || events[2].Reason != "too early" {
			t.Errorf("third event is %s with reason %q", events[2].Type, events[2].Reason)
		}
	})
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	s := w.Stats()
	if s.Succeeded != 7 || s.Retried != 3 || s.Failed != 7 || s.Snoozed != 1 || s.Panics != 2 || s.Claimed != 18 || s.Leases != 0 {
		t.Errorf("stats are %+v", s)
	}
	verified(t, l, db)
}

// traced is middleware that tells of kind greet.
func traced(name string, order chan<- string) worker.Middleware {
	return func(next worker.Handler) worker.Handler {
		return func(ctx context.Context, job worker.Job[json.RawMessage]) (any, error) {
			if job.Kind != "greet" {
				return next(ctx, job)
			}
			order <- name + " in"
			defer func() { order <- name + " out" }()
			return next(ctx, job)
		}
	}
}

func TestHandleRefuses(t *testing.T) {
	l, err := ledger.New(nil, ledger.Config{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := worker.New(l, worker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(t.Context()); err == nil {
		t.Error("a worker without a handler ran")
	}
	nothing := func(context.Context, worker.Job[struct{}]) (struct{}, error) { return struct{}{}, nil }
	for _, kind := range []string{"", "no spaces", "twice"} {
		w, _ := worker.New(l, worker.Config{})
		worker.Handle(w, "twice", nothing)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Handle took the kind %q", kind)
				}
			}()
			worker.Handle(w, kind, nothing)
		}()
	}
}

// TestCompleteTx: the handler's write and the completion are one commit, and the worker adds nothing.
func TestCompleteTx(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	if _, err := db.Pool.Exec(t.Context(), `CREATE TABLE effect (job_id uuid, generation int)`); err != nil {
		t.Fatal(err)
	}
	w := start(t, l, brisk(), func(w *worker.Worker) {
		worker.Handle(w, "pay", func(ctx context.Context, job worker.Job[struct{}]) (struct{}, error) {
			return struct{}{}, pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, `INSERT INTO effect VALUES ($1, $2)`, job.ID, job.Generation); err != nil {
					return err
				}
				if err := job.CompleteTx(ctx, tx, "paid"); err != nil {
					return err
				}
				if job.Attempt == 1 {
					return worker.Retry(errors.New("rolled back"), 0)
				}
				return nil
			})
		})
	})
	id := enqueue(t, l, "pay", nil, nil)
	if job := succeeded(t, l, id); string(job.Result) != `"paid"` {
		t.Errorf("result is %s", job.Result)
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if _, types := history(t, l, id); !slices.Equal(types, []domain.EventType{"enqueued", "claimed", "retried", "claimed", "completed"}) {
		t.Errorf("history is %v", types)
	}
	if s := w.Stats(); s.Succeeded != 1 || s.Retried != 1 || s.Refused != 0 {
		t.Errorf("stats are %+v", s)
	}
	db.WaitTrue(t, "one effect stands", `SELECT count(*) = 1 AND min(generation) = 2 FROM effect`)
	verified(t, l, db)
}
