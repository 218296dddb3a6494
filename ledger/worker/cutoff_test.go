package worker_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger/worker"
)

// TestCase09_ACutOffWorkerStopsInTime: a worker that nothing gets through to for three leases stops
// its handler by its own clock before the lease ends; another worker's attempt begins only after that;
// what the first one reports when it is back is refused.
func TestCase09_ACutOffWorkerStopsInTime(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	p := newProxy(t, db)

	// The outside world: who writes to it, in order.
	var mu sync.Mutex
	var file []string
	first, told := make(chan struct{}, 1), make(chan error, 1)
	scribble := func(name string, lines int) func(context.Context, worker.Job[json.RawMessage]) (string, error) {
		return func(ctx context.Context, _ worker.Job[json.RawMessage]) (string, error) {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for n := 1; n != lines; n++ {
				mu.Lock()
				file = append(file, name)
				mu.Unlock()
				select {
				case first <- struct{}{}:
				default:
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
					told <- context.Cause(ctx)
					return name, nil // it insists that all went well
				}
			}
			return name, nil
		}
	}
	cfg := brisk()
	cfg.Lease = 2 * time.Second
	cfg.Margin = time.Second
	cfg.PingEvery = 100 * time.Millisecond
	cfg.Name = "cut-off"
	a := start(t, p.Ledger, cfg, func(w *worker.Worker) { worker.Handle(w, "scribble", scribble("a", 0)) })
	id := enqueue(t, l, "scribble", nil, nil)
	receive(t, "the first line", first)
	db.WaitTrue(t, "the lease was pinged", `SELECT version >= 3 FROM jobledger.job_runtime WHERE job_id = $1`, id)
	p.Set(pgtest.Silent)

	cfg.Name = "other"
	b := start(t, l, cfg, func(w *worker.Worker) { worker.Handle(w, "scribble", scribble("b", 20)) })
	if cause := receive(t, "the handler to be told", told); cause != worker.ErrLeaseLost {
		t.Errorf("cause is %v", cause)
	}
	db.WaitTrue(t, "it is cut off for three leases",
		`SELECT clock_timestamp() > max(at) + interval '6 s' FROM jobledger.job_event WHERE job_id = $1 AND actor = 'cut-off'`, id)
	if job := succeeded(t, l, id); string(job.Result) != `"b"` || job.Restarts != 1 {
		t.Errorf("result is %s after %d restarts", job.Result, job.Restarts)
	}
	p.Set(pgtest.Open)
	db.WaitTrue(t, "the late report was rejected",
		`SELECT count(*) = 1 FROM jobledger.job_event WHERE job_id = $1 AND type = 'rejected' AND verb = 'complete' AND generation = 1 AND actor = 'cut-off'`, id)
	for _, w := range []*running{a, b} {
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	}
	if s := a.Stats(); s.Lost != 1 || s.Refused != 1 || s.Succeeded != 0 {
		t.Errorf("stats of the cut-off worker are %+v", s)
	}
	handed := false
	for i, who := range file {
		if who == "b" {
			handed = true
		} else if handed {
			t.Fatalf("line %d of %d is by a, after b has begun", i, len(file))
		}
	}
	if events, _ := history(t, l, id); events[len(events)-1].Type != domain.Rejected {
		t.Errorf("the last event is %s", events[len(events)-1].Type)
	}
	verified(t, l, db)
}
