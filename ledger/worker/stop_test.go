package worker_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

// TestStop: what happens to handlers and jobs when the context of Run ends.
func TestStop(t *testing.T) {
	t.Parallel()

	t.Run("waits_for_handlers_and_claims_no_more", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		w, runs := startPuppet(t, l, brisk())
		id := enqueue(t, l, "puppet", nil, nil)
		r := receive(t, "the run", runs)
		stopped := make(chan error, 1)
		go func() { stopped <- w.stop() }()
		db.WaitTrue(t, "the worker says that it stops", `SELECT count(*) = 1 FROM jobledger.worker WHERE state = 'stopping' AND running = 1`)
		late := enqueue(t, l, "puppet", nil, nil)
		if r.ctx.Err() != nil {
			t.Errorf("the handler was told to stop: %v", context.Cause(r.ctx))
		}
		r.returns(nil)
		if err := receive(t, "the stop", stopped); err != nil {
			t.Errorf("stopped with %v", err)
		}
		if job, _ := l.Job(t.Context(), id); job.Outcome != domain.Success {
			t.Errorf("the running job ended with %q", job.Outcome)
		}
		if job, _ := l.Job(t.Context(), late); job.Generation != 0 {
			t.Error("the late job was claimed")
		}
		db.WaitTrue(t, "the worker is gone", `SELECT count(*) = 0 FROM jobledger.worker`)
		verified(t, l, db)
	})

	t.Run("releases_what_was_interrupted", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		cfg := brisk()
		cfg.StopTimeout = time.Millisecond
		w, runs := startPuppet(t, l, cfg)
		ids := map[string]error{
			enqueue(t, l, "puppet", nil, nil).String(): errTest,
			enqueue(t, l, "puppet", nil, nil).String(): nil,
			enqueue(t, l, "puppet", nil, nil).String(): worker.Permanent(errTest),
		}
		var all []*run
		for range ids {
			all = append(all, receive(t, "a run", runs))
		}
		stopped := make(chan error, 1)
		go func() { stopped <- w.stop() }()
		for _, r := range all {
			if cause := r.told(t); cause != worker.ErrStopping {
				t.Errorf("cause is %v", cause)
			}
			r.returns(ids[r.ID.String()])
		}
		if err := receive(t, "the stop", stopped); err != nil {
			t.Errorf("stopped with %v", err)
		}
		if s := w.Stats(); s.Released != 1 || s.Succeeded != 1 || s.Failed != 1 || s.Leases != 0 {
			t.Errorf("stats are %+v", s)
		}
		// At once: the released job is due, and nothing of its budget is spent.
		_, runs = startPuppet(t, l, brisk())
		r := receive(t, "the run at another worker", runs)
		if ids[r.ID.String()] != errTest || r.Generation != 2 || r.Attempt != 1 || r.Restarts != 0 {
			t.Errorf("the other worker got %+v", r.Info)
		}
		r.returns(nil)
		succeeded(t, l, r.ID)
		verified(t, l, db)
	})

	t.Run("releases_what_does_not_return", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		cfg := brisk()
		cfg.StopTimeout, cfg.StopGrace = time.Millisecond, time.Millisecond
		w, runs := startPuppet(t, l, cfg)
		id := enqueue(t, l, "puppet", nil, nil)
		deaf := receive(t, "the run", runs)
		var stop *worker.StopError
		if err := w.stop(); !errors.As(err, &stop) || stop.Abandoned != 1 || stop.Unreported != 0 {
			t.Errorf("stopped with %v", err)
		}
		_, runs = startPuppet(t, l, brisk())
		r := receive(t, "the run at another worker", runs)
		deaf.returns(nil)
		r.returns(nil)
		succeeded(t, l, id)
		if _, types := history(t, l, id); !slices.Equal(types, []domain.EventType{"enqueued", "claimed", "released", "claimed", "completed"}) {
			t.Errorf("history is %v", types)
		}
		verified(t, l, db)
	})

	t.Run("what_returns_while_it_is_released_changes_nothing", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		cfg := brisk()
		cfg.StopTimeout, cfg.StopGrace = time.Millisecond, time.Millisecond
		w, runs := startPuppet(t, l, cfg)
		id := enqueue(t, l, "puppet", nil, nil)
		r := receive(t, "the run", runs)
		conn := db.Connect(t)
		if _, err := conn.Exec(t.Context(), `BEGIN; SELECT FROM jobledger.job_runtime FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		stopped := make(chan error, 1)
		go func() { stopped <- w.stop() }()
		db.WaitBlockedBy(t, conn.PgConn().PID(), 1) // by the release
		r.returns(nil)
		until(t, "the handler has returned", func() bool { return w.Stats().Running == 0 })
		if _, err := conn.Exec(t.Context(), `ROLLBACK`); err != nil {
			t.Fatal(err)
		}
		var stop *worker.StopError
		if err := receive(t, "the stop", stopped); !errors.As(err, &stop) || stop.Abandoned != 1 || stop.Unreported != 0 {
			t.Errorf("stopped with %v", err)
		}
		if _, types := history(t, l, id); !slices.Equal(types, []domain.EventType{"enqueued", "claimed", "released"}) {
			t.Errorf("history is %v", types)
		}
		if s := w.Stats(); s.Released != 1 || s.Refused != 0 {
			t.Errorf("stats are %+v", s)
		}
		verified(t, l, db)
	})

	t.Run("releases_what_was_prefetched", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		cfg := brisk()
		cfg.Concurrency, cfg.Prefetch = 1, 3
		for range 6 {
			enqueue(t, l, "puppet", nil, nil)
		}
		w, runs := startPuppet(t, l, cfg)
		first := receive(t, "the first run", runs)
		db.WaitTrue(t, "one runs, three are prefetched", `SELECT count(*) = 4 FROM jobledger.job_runtime`)
		first.returns(nil)
		second := receive(t, "the second run", runs)
		if !second.StartedAt.Equal(first.StartedAt) && second.Generation != 1 {
			t.Errorf("the second run is %+v", second.Info)
		}
		stopped := make(chan error, 1)
		go func() { stopped <- w.stop() }()
		db.WaitTrue(t, "all but the running one are released",
			`SELECT (SELECT count(*) FROM jobledger.job_queue) = 4 AND (SELECT count(*) FROM jobledger.job_runtime) = 1`)
		second.returns(nil)
		if err := receive(t, "the stop", stopped); err != nil {
			t.Errorf("stopped with %v", err)
		}
		if s := w.Stats(); s.Succeeded != 2 || s.Released != s.Claimed-2 {
			t.Errorf("stats are %+v", s)
		}
		verified(t, l, db)
	})

	t.Run("hurried", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		cfg := brisk()
		cfg.StopTimeout = time.Hour
		w, runs := startPuppet(t, l, cfg)
		enqueue(t, l, "puppet", nil, nil)
		r := receive(t, "the run", runs)
		stopped := make(chan error, 1)
		go func() { stopped <- w.stop() }()
		db.WaitTrue(t, "the worker says that it stops", `SELECT count(*) = 1 FROM jobledger.worker WHERE state = 'stopping'`)
		w.Hurry()
		w.Hurry()
		if cause := r.told(t); cause != worker.ErrStopping {
			t.Errorf("cause is %v", cause)
		}
		r.returns(errTest)
		if err := receive(t, "the stop", stopped); err != nil {
			t.Errorf("stopped with %v", err)
		}
		if s := w.Stats(); s.Released != 1 || s.Leases != 0 {
			t.Errorf("stats are %+v", s)
		}
		verified(t, l, db)
	})

	t.Run("killed", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		w, runs := startPuppet(t, l, brisk())
		id := enqueue(t, l, "puppet", nil, nil)
		r := receive(t, "the run", runs)
		w.Kill()
		w.Kill()
		if err := w.stop(); err != worker.ErrKilled {
			t.Errorf("Run returned %v", err)
		}
		if cause := r.told(t); cause != worker.ErrKilled {
			t.Errorf("cause is %v", cause)
		}
		r.returns(nil)
		if job, _ := l.Job(t.Context(), id); job.State != domain.Running || job.Worker != w.Name() {
			t.Errorf("the job is %s at %q", job.State, job.Worker)
		}
		verified(t, l, db)
	})
}

// TestDrainWaits for what is due later, when nothing else is left.
func TestDrainWaits(t *testing.T) {
	t.Parallel()
	l, _ := newLedger(t)
	cfg := brisk()
	cfg.Drain = true
	id := enqueue(t, l, "puppet", nil, func(p *ledger.EnqueueParams) { p.Delay = 200 * time.Millisecond })
	w, runs := startPuppet(t, l, cfg)
	select {
	case r := <-runs:
		r.returns(nil)
	case <-w.done:
		t.Error("Run returned while a job was due later")
	}
	receive(t, "the end of Run", w.done)
	if job, _ := l.Job(t.Context(), id); job.Outcome != domain.Success {
		t.Errorf("the job is %s", job.State)
	}
}

// TestDrain: Run returns by itself once nothing is left, and not before.
func TestDrain(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	cfg := pinging()
	cfg.Drain = true
	for range 20 {
		enqueue(t, l, "puppet", nil, nil)
	}
	enqueue(t, l, "puppet", nil, func(p *ledger.EnqueueParams) { p.Delay = 100 * time.Millisecond })
	foreign := enqueue(t, l, "foreign", nil, nil)
	elsewhere := enqueue(t, l, "puppet", nil, func(p *ledger.EnqueueParams) { p.Priority = 1 })
	claims, err := l.Claim(t.Context(), ledger.ClaimParams{Worker: "another"})
	if err != nil || claims.Jobs[0].JobID != elsewhere {
		t.Fatalf("claimed %+v, %v", claims, err)
	}
	w, runs := startPuppet(t, l, cfg)
	receive(t, "a run", runs).returns(worker.Retry(errTest, 50*time.Millisecond))
	for range 21 {
		receive(t, "a run", runs).returns(nil)
	}
	db.WaitTrue(t, "the worker sleeps", `SELECT count(*) = 1 FROM jobledger.worker WHERE state = 'sleeping'`)
	select {
	case <-w.done:
		t.Error("Run returned while a job ran at another worker")
	default:
	}
	if _, err := l.Complete(t.Context(), "another", ledger.Completion{Held: claims.Jobs[0].Held}); err != nil {
		t.Fatal(err)
	}
	receive(t, "the end of Run", w.done)
	if err := w.stop(); err != nil {
		t.Errorf("Run returned %v", err)
	}
	if job, _ := l.Job(t.Context(), foreign); job.State != domain.Waiting {
		t.Errorf("the job of a foreign kind is %s", job.State)
	}
	if s := w.Stats(); s.Succeeded != 21 || s.Retried != 1 {
		t.Errorf("stats are %+v", s)
	}
	verified(t, l, db)
}
