package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

// TestRunOne: one job, from claim to commit, in the call.
func TestRunOne(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	cfg := brisk()
	cfg.PingEvery, cfg.StopTimeout = 5*time.Millisecond, time.Millisecond
	w, err := worker.New(l, cfg)
	if err != nil {
		t.Fatal(err)
	}
	handle := map[string]func(context.Context, worker.Info) (string, error){}
	for _, kind := range []string{"succeeds", "fails", "panics", "completes_itself", "is_canceled", "is_stopped", "times_out"} {
		worker.Handle(w, kind, func(ctx context.Context, job worker.Job[string]) (string, error) { return handle[kind](ctx, job.Info) })
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var told error // why the handler was stopped
	wait := func(ctx context.Context) (string, error) {
		<-ctx.Done()
		told = context.Cause(ctx)
		return "", told
	}
	handle["succeeds"] = func(context.Context, worker.Info) (string, error) { return "done", nil }
	handle["fails"] = func(context.Context, worker.Info) (string, error) { return "", errTest }
	handle["panics"] = func(context.Context, worker.Info) (string, error) { panic("at the disco") }
	handle["completes_itself"] = func(ctx context.Context, job worker.Info) (string, error) {
		return "", pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error { return job.CompleteTx(ctx, tx, "in a transaction") })
	}
	handle["is_canceled"] = func(ctx context.Context, job worker.Info) (string, error) {
		if _, err := l.Cancel(ctx, job.ID, ledger.ByOperator{}); err != nil {
			return "", err
		}
		return wait(ctx)
	}
	handle["is_stopped"] = func(ctx context.Context, _ worker.Info) (string, error) {
		stop()
		return wait(ctx)
	}
	handle["times_out"] = func(ctx context.Context, _ worker.Info) (string, error) { return wait(ctx) }

	for _, c := range []struct {
		kind string
		ctx  context.Context
		told error
		err  string // in Ran.Err
		want domain.EventType
	}{
		{"succeeds", t.Context(), nil, "<nil>", domain.Completed},
		{"fails", t.Context(), nil, errTest.Error(), domain.Retried},
		{"panics", t.Context(), nil, "at the disco", domain.Retried},
		{"completes_itself", t.Context(), nil, "<nil>", domain.Completed},
		{"is_canceled", t.Context(), worker.ErrCanceled, worker.ErrCanceled.Error(), domain.CanceledEvent},
		{"is_stopped", ctx, worker.ErrStopping, worker.ErrStopping.Error(), domain.Released},
		{"times_out", t.Context(), worker.ErrTimedOut, worker.ErrTimedOut.Error(), domain.Retried},
		{"has_no_handler", t.Context(), nil, worker.ErrNoHandler.Error(), domain.Snoozed},
	} {
		// What the rows before have left is out of the way: due later, of a lower priority, or canceled.
		told = nil
		id := enqueue(t, l, c.kind, `"args"`, func(p *ledger.EnqueueParams) {
			p.Priority, p.Policy = 1, domain.Policy{BackoffBase: time.Hour, BackoffCap: time.Hour}
			if c.kind == "times_out" {
				p.Policy.Timeout = time.Second
			}
		})
		ran, err := w.RunOne(c.ctx)
		if err != nil || ran == nil || ran.ID != id || string(ran.Args) != `"args"` {
			t.Fatalf("%s: ran %+v, %v", c.kind, ran, err)
		}
		if got := fmt.Sprint(ran.Err); told != c.told || !strings.Contains(got, c.err) {
			t.Errorf("%s: stopped with %v, returned %s; want %v, %s", c.kind, told, got, c.told, c.err)
		}
		if c.kind == "succeeds" && ran.Result != "done" || c.kind == "fails" && ran.Err != errTest {
			t.Errorf("%s: returned %v, %v, not as they were", c.kind, ran.Result, ran.Err)
		}
		if _, types := history(t, l, id); types[len(types)-1] != c.want {
			t.Errorf("%s: history is %v, want %s at the end", c.kind, types, c.want)
		}
		if c.want == domain.Released {
			if _, err := l.Cancel(t.Context(), id, ledger.ByOperator{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if ran, err := w.RunOne(t.Context()); ran != nil || err != nil {
		t.Errorf("with nothing due it ran %+v, %v", ran, err)
	}
	verified(t, l, db)
}

// TestRunOneBesideOthers: it waits out others' locks, takes back what the dead have left, and leaves a worker that can
// still Run.
func TestRunOneBesideOthers(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	w, err := worker.New(l, brisk())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.RunOne(t.Context()); err == nil {
		t.Error("it ran without a handler")
	}
	var inside error
	worker.Handle(w, "k", func(ctx context.Context, _ worker.Job[struct{}]) (struct{}, error) {
		_, inside = w.RunOne(ctx)
		return struct{}{}, nil
	})
	one := func() uuid.UUID {
		t.Helper()
		ran, err := w.RunOne(t.Context())
		if err != nil || ran == nil {
			t.Fatalf("ran %+v, %v", ran, err)
		}
		return ran.ID
	}

	dead := enqueue(t, l, "k", nil, nil)
	if _, err := l.Claim(t.Context(), ledger.ClaimParams{Worker: "dead", Lease: time.Second}); err != nil {
		t.Fatal(err)
	}
	db.WaitTrue(t, "the lease is over", `SELECT bool_and(lease_until <= jobledger.clock()) FROM jobledger.job_runtime`)
	if id := one(); id != dead {
		t.Errorf("ran %s, want what the dead worker had", id)
	}
	if inside == nil {
		t.Error("it ran two jobs at once")
	}

	locked := enqueue(t, l, "k", nil, nil)
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM jobledger.job_queue FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	// A queue whose head is locked is not empty: it asks again until its time is over.
	short, cancelShort := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancelShort()
	if ran, err := w.RunOne(short); ran != nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with the only job locked: ran %+v, %v", ran, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if id := one(); id != locked {
		t.Errorf("ran %s, want the one that was locked", id)
	}

	last := enqueue(t, l, "k", nil, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	succeeded(t, l, last)
	cancel()
	if err := receive(t, "the stop", done); err != nil {
		t.Error(err)
	}
	verified(t, l, db)
}
