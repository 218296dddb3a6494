package worker_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

// TestClaim: when the loop asks, and when it sleeps.
func TestClaim(t *testing.T) {
	t.Parallel()

	t.Run("asks_on_while_due_jobs_are_locked", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		id := enqueue(t, l, "puppet", nil, nil)
		conn := db.Connect(t)
		if _, err := conn.Exec(t.Context(), `BEGIN; SELECT FROM jobledger.job_queue FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		cfg := brisk()
		cfg.Poll, cfg.ReapEvery, cfg.NoListen = time.Hour, time.Hour, true // who sleeps now comes too late
		w, runs := startPuppet(t, l, cfg)
		db.WaitTrue(t, "a claim came back without the job",
			`SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle' AND query LIKE '%.claim(%'`)
		if _, err := conn.Exec(t.Context(), `ROLLBACK`); err != nil {
			t.Fatal(err)
		}
		receive(t, "the run", runs).returns(nil)
		succeeded(t, l, id)
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	})

	t.Run("takes_over_before_it_sleeps", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		db.SetClock(t, time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
		id := enqueue(t, l, "puppet", nil, nil)
		if c, err := l.Claim(t.Context(), ledger.ClaimParams{Worker: "dead"}); err != nil || len(c.Jobs) != 1 {
			t.Fatalf("claimed %+v, %v", c, err)
		}
		db.Advance(t, time.Minute)
		cfg := brisk()
		cfg.Poll, cfg.ReapEvery, cfg.NoListen = time.Hour, time.Hour, true
		w, runs := startPuppet(t, l, cfg)
		receive(t, "the run", runs).returns(nil)
		succeeded(t, l, id)
		if err := w.stop(); err != nil {
			t.Error(err)
		}
		if _, types := history(t, l, id); !slices.Equal(types, []domain.EventType{"enqueued", "claimed", "reaped", "claimed", "completed"}) {
			t.Errorf("history is %v", types)
		}
	})

	t.Run("never_runs_more_than_its_slots", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		for range 200 {
			enqueue(t, l, "count", nil, nil)
		}
		var now, most, total atomic.Int64
		gate := make(chan struct{})
		var once sync.Once
		cfg := brisk()
		cfg.Concurrency, cfg.Prefetch, cfg.Drain = 7, 3, true
		w := start(t, l, cfg, func(w *worker.Worker) {
			worker.Handle(w, "count", func(context.Context, worker.Job[struct{}]) (struct{}, error) {
				n := now.Add(1)
				defer now.Add(-1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				if n == 7 {
					once.Do(func() { close(gate) })
				}
				<-gate // all slots are used
				total.Add(1)
				return struct{}{}, nil
			})
		})
		receive(t, "the end of Run", w.done)
		if most.Load() != 7 || total.Load() != 200 {
			t.Errorf("%d handlers ran at once and %d in all, want 7 and 200", most.Load(), total.Load())
		}
		if s := w.Stats(); s.Succeeded != 200 || s.Claimed != 200 || s.Pings != 0 {
			t.Errorf("stats are %+v", s)
		}
		verified(t, l, db)
	})
}

// TestNoHandler: a kind that is not known here is put off, longer each time, and costs no attempt.
func TestNoHandler(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	db.SetClock(t, time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
	old, runs := startPuppet(t, l, brisk())
	id := enqueue(t, l, "new", nil, func(p *ledger.EnqueueParams) { p.Policy = domain.Policy{MaxAttempts: 1} })
	for round, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		db.WaitTrue(t, "it is put off", `SELECT count(*) = 1 FROM jobledger.job_queue WHERE job_id = $1 AND generation = $2`, id, round+1)
		events, _ := history(t, l, id)
		e := events[2*round+2]
		if e.Type != domain.Snoozed || e.Reason != "no_handler" || e.ScheduledFor.Sub(e.At) != want {
			t.Errorf("round %d: %s because of %q until %s later, want %s", round+1, e.Type, e.Reason, e.ScheduledFor.Sub(e.At), want)
		}
		db.Advance(t, time.Hour)
	}
	known := enqueue(t, l, "puppet", nil, nil)
	receive(t, "the run of a known kind", runs).returns(nil)
	succeeded(t, l, known)
	if err := old.stop(); err != nil {
		t.Error(err)
	}
	db.Advance(t, time.Hour)
	start(t, l, brisk(), func(w *worker.Worker) {
		worker.Handle(w, "new", func(_ context.Context, job worker.Job[struct{}]) (int, error) { return job.Attempt, nil })
	})
	if job := succeeded(t, l, id); string(job.Result) != "1" {
		t.Errorf("the first run of its handler was attempt %s", job.Result)
	}
	verified(t, l, db)
}
