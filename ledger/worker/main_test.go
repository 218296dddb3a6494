package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
	"github.com/jobledger/jobledger/projections"
)

func TestMain(m *testing.M) {
	if what := os.Getenv(childEnv); what != "" {
		os.Exit(childMain(what))
	}
	goleak.VerifyTestMain(m)
}

// testTimeout bounds every wait in these tests.
const testTimeout = time.Minute

var quiet = slog.New(slog.DiscardHandler)

// newLedger returns a fresh ledger on a database of its own.
func newLedger(t testing.TB, options ...pgtest.Option) (*ledger.Ledger, *pgtest.DB) {
	t.Helper()
	db := pgtest.New(t, options...)
	l, err := ledger.New(db.Pool, ledger.Config{Actor: "tester"})
	if err != nil {
		t.Fatal(err)
	}
	return l, db
}

// proxied is a ledger whose connections go through a proxy.
type proxied struct {
	*pgtest.Proxy
	Ledger *ledger.Ledger
}

// newProxy opens a ledger on db through a proxy.
func newProxy(t testing.TB, db *pgtest.DB) proxied {
	t.Helper()
	p := pgtest.NewProxy(t, db.URL)
	l, err := ledger.New(p.Pool(t, pgtest.MaxConns(12)), ledger.Config{Actor: "tester"})
	if err != nil {
		t.Fatal(err)
	}
	return proxied{p, l}
}

// brisk are options of a worker that a test waits for.
func brisk() worker.Config {
	return worker.Config{Poll: 5 * time.Millisecond, ReapEvery: 20 * time.Millisecond, Logger: quiet}
}

// running is a worker that runs.
type running struct {
	*worker.Worker
	stop func() error // graceful; returns what Run returned
	done chan struct{}
}

// start runs a worker that set has given its handlers, until stop or the end of the test.
func start(t testing.TB, l *ledger.Ledger, cfg worker.Config, set func(*worker.Worker)) *running {
	t.Helper()
	w, err := worker.New(l, cfg)
	if err != nil {
		t.Fatal(err)
	}
	set(w)
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Worker: w, done: make(chan struct{})}
	var ended error
	go func() {
		defer close(r.done)
		ended = w.Run(ctx)
	}()
	r.stop = func() error {
		cancel()
		select {
		case <-r.done:
		case <-time.After(testTimeout):
			t.Errorf("the worker does not stop")
		}
		return ended
	}
	t.Cleanup(func() { _ = r.stop() })
	return r
}

// enqueue creates a job of a kind; change may be nil.
func enqueue(t testing.TB, l *ledger.Ledger, kind string, args any, change func(*ledger.EnqueueParams)) uuid.UUID {
	t.Helper()
	p := ledger.EnqueueParams{Kind: kind, Args: args}
	if change != nil {
		change(&p)
	}
	e, err := l.Enqueue(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return e.JobID
}

// ended waits for a job's outcome.
func ended(t testing.TB, l *ledger.Ledger, id uuid.UUID) projections.Job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	job, err := l.Wait(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// succeeded waits for a job and fails the test if it did not end with success.
func succeeded(t testing.TB, l *ledger.Ledger, id uuid.UUID) projections.Job {
	t.Helper()
	job := ended(t, l, id)
	if job.Outcome != domain.Success {
		t.Fatalf("job ended with %s, reason %q, class %s, error %q, want success", job.Outcome, job.Reason, job.Class, job.Error)
	}
	return job
}

// history reads a job's events, and their types.
func history(t testing.TB, l *ledger.Ledger, id uuid.UUID) ([]domain.Event, []domain.EventType) {
	t.Helper()
	events, err := l.History(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	types := make([]domain.EventType, len(events))
	for i, e := range events {
		types[i] = e.Type
	}
	return events, types
}

// verified fails the test if the ledger is not whole.
func verified(t testing.TB, l *ledger.Ledger, db *pgtest.DB) {
	t.Helper()
	v, err := l.Read().Verify(context.Background(), db.Pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range v.Findings {
		t.Errorf("verify: job %s version %d %s", f.JobID, f.Version, f.Problem)
	}
}

// receive waits for a value of a channel.
func receive[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(testTimeout):
		t.Fatalf("waited too long for %s", what)
		panic("unreachable")
	}
}

// until waits for a condition that neither a channel nor the database tells of.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(testTimeout)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited too long until %s", what)
		}
	}
}

// run is one run of a job whose handler is led by the test.
type run struct {
	worker.Info
	ctx    context.Context
	end    chan error
	result string
}

// poison makes the run succeed with a result that a test's constraint refuses.
func (r *run) poison() { r.result = "poison" }

// puppet is a handler that hands each of its runs to the test and returns what the test says.
func puppet(runs chan<- *run) func(context.Context, worker.Job[json.RawMessage]) (string, error) {
	return func(ctx context.Context, job worker.Job[json.RawMessage]) (string, error) {
		r := &run{Info: job.Info, ctx: ctx, end: make(chan error, 1), result: "done"}
		runs <- r
		err := <-r.end
		return r.result, err
	}
}

// returns ends the handler: with success if err is nil.
func (r *run) returns(err error) { r.end <- err }

// told waits until the handler is told to stop and returns the cause.
func (r *run) told(t testing.TB) error {
	t.Helper()
	receive(t, "the handler to be told to stop", r.ctx.Done())
	return context.Cause(r.ctx)
}

// startPuppet runs a worker that serves the kind "puppet".
func startPuppet(t testing.TB, l *ledger.Ledger, cfg worker.Config) (*running, <-chan *run) {
	t.Helper()
	runs := make(chan *run, 100)
	return start(t, l, cfg, func(w *worker.Worker) { worker.Handle(w, "puppet", puppet(runs)) }), runs
}

var errTest = errors.New("the test says so")
