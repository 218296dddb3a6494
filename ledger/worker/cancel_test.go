package worker_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

// TestCase10_CancelAtAnyMoment cancels 1,000 short jobs at random moments of their lives: each ends
// once, the answer to the cancel was true, and nothing runs that was canceled.
func TestCase10_CancelAtAnyMoment(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t, pgtest.MaxConns(16))
	var mu sync.Mutex
	started, finished := map[uuid.UUID]bool{}, map[uuid.UUID]bool{} // the side effects
	var workers []*running
	for range 4 {
		cfg := pinging()
		cfg.PingEvery = 20 * time.Millisecond
		workers = append(workers, start(t, l, cfg, func(w *worker.Worker) {
			worker.Handle(w, "short", func(ctx context.Context, job worker.Job[struct{}]) (struct{}, error) {
				mu.Lock()
				started[job.ID] = true
				mu.Unlock()
				select {
				case <-time.After(time.Duration(rand.N(15)) * time.Millisecond):
				case <-ctx.Done():
					return struct{}{}, context.Cause(ctx)
				}
				mu.Lock()
				finished[job.ID] = true
				mu.Unlock()
				return struct{}{}, nil
			})
		}))
	}
	type asked struct {
		id     uuid.UUID
		answer ledger.Answer
		err    error
	}
	answers := make(chan asked, 1000)
	var clients sync.WaitGroup
	for range 20 {
		clients.Go(func() {
			for range 50 {
				id := enqueue(t, l, "short", nil, nil)
				<-time.After(time.Duration(rand.N(10_000)) * time.Microsecond)
				a, err := l.Cancel(t.Context(), id, ledger.ByOperator{Reason: "changed my mind"})
				answers <- asked{id, a, err}
			}
		})
	}
	clients.Wait()
	close(answers)
	met := map[string]int{}
	for q := range answers {
		job := ended(t, l, q.id)
		mu.Lock()
		began, done := started[q.id], finished[q.id]
		mu.Unlock()
		switch {
		case errors.Is(q.err, domain.ErrEnded):
			met["ended"]++
			if q.answer.Outcome != job.Outcome || job.Outcome != domain.Success {
				t.Errorf("job %s: cancel answered that it had ended with %s, but it ended with %s", q.id, q.answer.Outcome, job.Outcome)
			}
		case q.err != nil:
			t.Fatalf("cancel job %s: %v", q.id, q.err)
		case q.answer.Event == domain.CanceledEvent:
			met["canceled"]++
			if job.Outcome != domain.Canceled || began {
				t.Errorf("job %s: cancel answered canceled, but it ended with %s, started: %t", q.id, job.Outcome, began)
			}
		case q.answer.Event == domain.CancelRequested:
			met["requested, "+string(job.Outcome)]++
			if job.Outcome == domain.Failure {
				t.Errorf("job %s: cancel was requested, and it ended with failure", q.id)
			}
			if done != (job.Outcome == domain.Success) {
				t.Errorf("job %s: it finished: %t, but ended with %s", q.id, done, job.Outcome)
			}
		default:
			t.Errorf("job %s: cancel answered %+v", q.id, q.answer)
		}
	}
	t.Logf("answers: %v", met)
	for _, w := range workers {
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	}
	db.WaitTrue(t, "each job has exactly one event that ends it, and that one is its last",
		`SELECT count(*) = 1000 AND bool_and(ends = 1 AND last) FROM (
			SELECT count(*) FILTER (WHERE type IN ('completed', 'failed', 'canceled')) AS ends,
			       (array_agg(type ORDER BY version DESC))[1] IN ('completed', 'canceled') AS last
			FROM jobledger.job_event GROUP BY job_id) x`)
	verified(t, l, db)
}

// TestCase11_CancelNeverComesBack: once a running job is marked, whatever happens to its run but
// success ends it canceled, though its worker has not heard of the mark; it is never claimed again.
func TestCase11_CancelNeverComesBack(t *testing.T) {
	t.Parallel()
	hour := func(t *testing.T, db *pgtest.DB) { db.Advance(t, time.Hour) }
	for _, c := range []struct {
		name    string
		returns error
		before  func(t *testing.T, db *pgtest.DB) // what happens before the handler returns
		stop    bool
		want    domain.Outcome
	}{
		{name: "fails", returns: errTest, want: domain.Canceled},
		{name: "fails_for_good", returns: worker.Permanent(errTest), want: domain.Canceled},
		{name: "asks_for_a_retry", returns: worker.Retry(errTest, 0), want: domain.Canceled},
		{name: "times_out", returns: errTest, before: hour, want: domain.Canceled},
		{name: "loses_its_lease", returns: errTest, before: func(t *testing.T, db *pgtest.DB) { db.Advance(t, 59*time.Minute) }, want: domain.Canceled},
		{name: "snoozes", returns: worker.Snooze(0, ""), want: domain.Canceled},
		{name: "is_released_by_a_stop", returns: errTest, stop: true, want: domain.Canceled},
		{name: "succeeds", returns: nil, want: domain.Success},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l, db := newLedger(t)
			db.SetClock(t, time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
			cfg := brisk()
			cfg.Lease, cfg.StopTimeout = 30*time.Minute, time.Millisecond // no ping comes in time to tell of the mark
			w, runs := startPuppet(t, l, cfg)
			id := enqueue(t, l, "puppet", nil, nil)
			r := receive(t, "the run", runs)
			by := ledger.ByOperator{Actor: "ann", Reason: "no longer needed"}
			if a, err := l.Cancel(t.Context(), id, by); err != nil || a.Event != domain.CancelRequested || a.Outcome != "" {
				t.Fatalf("cancel answered %+v, %v", a, err)
			}
			if c.before != nil {
				c.before(t, db)
			}
			if c.stop {
				stopped := make(chan error, 1)
				go func() { stopped <- w.stop() }()
				r.told(t)
				r.returns(c.returns)
				receive(t, "the stop", stopped)
			} else {
				r.returns(c.returns)
			}
			job := ended(t, l, id)
			if job.Outcome != c.want {
				t.Errorf("ended with %s, want %s", job.Outcome, c.want)
			}
			if c.want == domain.Canceled && (job.CanceledBy != "ann" || job.CancelReason != by.Reason) {
				t.Errorf("canceled by %q because of %q", job.CanceledBy, job.CancelReason)
			}
			for range 2 { // the same answer, however often
				if a, err := l.Cancel(t.Context(), id, by); !errors.Is(err, domain.ErrEnded) || a.Outcome != c.want {
					t.Errorf("cancel again answered %+v, %v", a, err)
				}
			}
			db.Advance(t, 24*time.Hour)
			if err := w.stop(); err != nil {
				t.Error(err)
			}
			_, types := history(t, l, id)
			if n := len(slices.DeleteFunc(types, func(e domain.EventType) bool { return e != domain.Claimed })); n != 1 {
				t.Errorf("claimed %d times", n)
			}
			verified(t, l, db)
		})
	}
}
