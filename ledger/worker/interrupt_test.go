package worker_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

// pinging are options of a worker that pings often but whose leases last.
func pinging() worker.Config {
	c := brisk()
	c.PingEvery = 10 * time.Millisecond
	return c
}

// TestInterrupt: what tells a handler to stop, with which cause, and what becomes of its job.
func TestInterrupt(t *testing.T) {
	t.Parallel()

	t.Run("cancel_ends_canceled_at_once", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		w, runs := startPuppet(t, l, pinging())
		id := enqueue(t, l, "puppet", nil, nil)
		r := receive(t, "the run", runs)
		if a, err := l.Cancel(t.Context(), id, ledger.ByOperator{Actor: "ann", Reason: "wrong file"}); err != nil || !a.CancelRequested {
			t.Fatalf("cancel answered %+v, %v", a, err)
		}
		if cause := r.told(t); cause != worker.ErrCanceled {
			t.Errorf("cause is %v", cause)
		}
		r.returns(r.ctx.Err())
		job := ended(t, l, id)
		if job.Outcome != domain.Canceled || job.CanceledBy != "ann" || job.CancelReason != "wrong file" {
			t.Errorf("ended with %s by %q because of %q", job.Outcome, job.CanceledBy, job.CancelReason)
		}
		if err := w.stop(); err != nil {
			t.Error(err)
		}
		if s := w.Stats(); s.Canceled != 1 || s.Refused != 0 {
			t.Errorf("stats are %+v", s)
		}
		verified(t, l, db)
	})

	t.Run("a_lease_that_was_taken_back", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		db.SetClock(t, time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
		w, runs := startPuppet(t, l, pinging())
		id := enqueue(t, l, "puppet", nil, nil)
		first := receive(t, "the first run", runs)
		db.Advance(t, time.Minute) // exactly the end of the lease
		if cause := first.told(t); cause != worker.ErrLeaseLost {
			t.Errorf("cause is %v", cause)
		}
		second := receive(t, "the second run", runs)
		if second.ID != id || second.Generation != 2 || second.Attempt != 1 || second.Restarts != 1 {
			t.Errorf("second run is %+v", second.Info)
		}
		first.returns(nil) // too late
		until(t, "the late completion is refused", func() bool { return w.Stats().Refused == 1 })
		second.returns(nil)
		succeeded(t, l, id)
		if err := w.stop(); err != nil {
			t.Error(err)
		}
		if s := w.Stats(); s.Lost != 1 || s.Refused != 1 || s.Succeeded != 1 || s.Reaped != 1 {
			t.Errorf("stats are %+v", s)
		}
		verified(t, l, db)
	})

	t.Run("time_out_told_by_the_database", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		db.SetClock(t, time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
		cfg := pinging()
		cfg.Lease, cfg.ReapEvery = 24*time.Hour, time.Hour // nobody reaps unless the worker asks for it
		cfg.Concurrency = 1
		claimAll(t, l, "elsewhere", 1)
		db.Advance(t, time.Minute)
		w, runs := startPuppet(t, l, cfg)
		until(t, "its reaper has had its first look", func() bool { return w.Stats().Reaped == 1 })
		db.WaitTrue(t, "its claim loop, too", `SELECT count(*) = 1 FROM jobledger.worker WHERE state = 'sleeping'`)
		enqueue(t, l, "puppet", nil, nil)
		r := receive(t, "the run", runs)
		db.Advance(t, time.Hour)
		if cause := r.told(t); cause != worker.ErrTimedOut {
			t.Errorf("cause is %v", cause)
		}
		r.returns(worker.Permanent(errTest))
		db.WaitTrue(t, "the time-out was retried", `SELECT count(*) = 1 FROM jobledger.job_event WHERE type = 'retried' AND class = 'timeout'`)
		if err := w.stop(); err != nil {
			t.Error(err)
		}
		if s := w.Stats(); s.TimedOut != 1 || s.Reaped != 2 || s.Failed != 0 {
			t.Errorf("stats are %+v", s)
		}
		verified(t, l, db)
	})

	t.Run("time_out_by_the_worker's_clock", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		cfg := brisk()
		cfg.Poll, cfg.ReapEvery = time.Hour, time.Hour
		id := enqueue(t, l, "puppet", nil, func(p *ledger.EnqueueParams) {
			p.Policy = domain.Policy{MaxAttempts: 1, Timeout: time.Second}
		})
		_, runs := startPuppet(t, l, cfg)
		r := receive(t, "the run", runs)
		if cause := r.told(t); cause != worker.ErrTimedOut || r.ctx.Err() != context.DeadlineExceeded {
			t.Errorf("cause is %v, error is %v", cause, r.ctx.Err())
		}
		r.returns(errTest)
		job := ended(t, l, id)
		if job.Outcome != domain.Failure || job.Class != domain.ClassTimeout || job.Reason != domain.ReasonAttemptsExhausted {
			t.Errorf("ended with %s %s %s", job.Outcome, job.Class, job.Reason)
		}
		if _, types := history(t, l, id); !slices.Equal(types, []domain.EventType{"enqueued", "claimed", "failed"}) {
			t.Errorf("history is %v", types)
		}
		verified(t, l, db)
	})

	t.Run("cancel_before_its_turn", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		cfg := pinging()
		cfg.Concurrency, cfg.Prefetch = 1, 2
		w, runs := startPuppet(t, l, cfg)
		enqueue(t, l, "puppet", nil, nil)
		r := receive(t, "the run", runs)
		id := enqueue(t, l, "puppet", nil, nil)
		db.WaitTrue(t, "it is prefetched", `SELECT count(*) = 1 FROM jobledger.job_runtime WHERE job_id = $1`, id)
		if a, err := l.Cancel(t.Context(), id, ledger.ByOperator{}); err != nil || !a.CancelRequested {
			t.Fatalf("cancel answered %+v, %v", a, err)
		}
		if job := ended(t, l, id); job.Outcome != domain.Canceled {
			t.Errorf("ended with %s", job.Outcome)
		}
		r.returns(nil)
		succeeded(t, l, r.ID)
		if err := w.stop(); err != nil {
			t.Error(err)
		}
		if len(runs) > 0 {
			t.Error("its handler was started")
		}
		verified(t, l, db)
	})

	t.Run("a_locked_row_costs_no_lease", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		w, runs := startPuppet(t, l, pinging())
		id := enqueue(t, l, "puppet", nil, nil)
		enqueue(t, l, "puppet", nil, nil)
		a, b := receive(t, "a run", runs), receive(t, "a run", runs)
		conn := db.Connect(t)
		if _, err := conn.Exec(t.Context(), `BEGIN; SELECT FROM jobledger.job_runtime WHERE job_id = '`+id.String()+`' FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		other := a
		if a.ID == id {
			other = b
		}
		db.WaitTrue(t, "the other lease is pinged on", `SELECT version >= 7 FROM jobledger.job_runtime WHERE job_id = $1`, other.ID)
		if a.ctx.Err() != nil || b.ctx.Err() != nil {
			t.Error("a handler was told to stop")
		}
		if _, err := conn.Exec(t.Context(), `ROLLBACK`); err != nil {
			t.Fatal(err)
		}
		a.returns(nil)
		b.returns(nil)
		succeeded(t, l, id)
		if err := w.stop(); err != nil {
			t.Error(err)
		}
		if s := w.Stats(); s.Lost != 0 || s.Succeeded != 2 || s.Refused != 0 {
			t.Errorf("stats are %+v", s)
		}
		verified(t, l, db)
	})
}

// TestProgress: what a run reports is stored by the next ping, or at its end, and the next attempt
// starts from there.
func TestProgress(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	for name, cfg := range map[string]worker.Config{"by_ping": pinging(), "at_the_end": brisk()} {
		t.Run(name, func(t *testing.T) {
			cfg.Tags = []string{name}
			_, runs := startPuppet(t, l, cfg)
			id := enqueue(t, l, "puppet", nil, func(p *ledger.EnqueueParams) { p.Tag = name })
			r := receive(t, "the first run", runs)
			if r.LastProgress != nil {
				t.Errorf("the first run starts from %s", r.LastProgress)
			}
			for range 3 { // the same again is not sent again
				if err := r.SetProgress(map[string]int{"done": 1}); err != nil {
					t.Fatal(err)
				}
			}
			if cfg.PingEvery > 0 {
				db.WaitTrue(t, "pinged with the progress and four times without",
					`SELECT version >= 7 AND progress_version > 0 FROM jobledger.job_runtime WHERE job_id = $1`, id)
			}
			r.returns(worker.Retry(errTest, 0))
			r = receive(t, "the second run", runs)
			if string(r.LastProgress) != `{"done":1}` {
				t.Errorf("the second run starts from %s", r.LastProgress)
			}
			r.returns(nil)
			if job := succeeded(t, l, id); string(job.Progress) != `{"done":1}` {
				t.Errorf("progress is %s", job.Progress)
			}
			db.WaitTrue(t, "the progress was stored once", `SELECT count(*) = 1 FROM jobledger.job_payload WHERE job_id = $1 AND body = '{"done":1}'`, id)
		})
	}
	t.Run("refused", func(t *testing.T) {
		_, runs := startPuppet(t, l, brisk())
		id := enqueue(t, l, "puppet", nil, nil)
		r := receive(t, "the run", runs)
		var field *domain.FieldError
		if err := r.SetProgress(strings.Repeat("x", domain.MaxProgressBytes-1)); !errors.As(err, &field) || field.Field != "progress" {
			t.Errorf("4097 bytes were answered with %v", err)
		}
		if err := r.SetProgress(make(chan int)); err == nil {
			t.Error("a channel was taken")
		}
		if err := r.SetProgress(strings.Repeat("x", domain.MaxProgressBytes-2)); err != nil {
			t.Errorf("4096 bytes were answered with %v", err)
		}
		r.returns(nil)
		succeeded(t, l, id)
	})
	verified(t, l, db)
}
