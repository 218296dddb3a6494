package worker_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger/worker"
)

// TestCase16_claim_given_back: a worker whose claim was committed and not answered gives the jobs back as soon
// as it is connected again, and nothing else. The lease is too long to be waited for.
func TestCase16_claim_given_back(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		worker string
		action pgtest.Action
		before bool // it has claimed a job before, which still runs
		astray int64
	}{
		{"carried_out", "", pgtest.CutAfter, true, 1},
		{"not_carried_out", "", pgtest.CutBefore, true, 0},
		{"the_first_of_its_life", "", pgtest.CutAfter, false, 1},
		{"named", "w", pgtest.CutAfter, true, 1},
		// Leases of a process before it may go by its name: they are left alone.
		{"named_and_the_first_of_its_life", "w", pgtest.CutAfter, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l, db := newLedger(t)
			p := newProxy(t, db)
			cfg := brisk()
			cfg.Name = c.worker
			var id uuid.UUID
			var cut <-chan struct{}
			begin := func() {
				cut = p.Once(".claim(", c.action)
				id = enqueue(t, l, "puppet", nil, nil)
			}
			if !c.before {
				begin()
			} else {
				enqueue(t, l, "puppet", nil, nil)
			}
			w, runs := startPuppet(t, p.Ledger, cfg)
			var first *run
			if c.before {
				first = receive(t, "the run before", runs)
				begin()
			}
			receive(t, "the cut", cut)
			if c.name != "named_and_the_first_of_its_life" {
				r := receive(t, "a run", runs)
				if r.ID != id || int64(r.Generation) != 1+c.astray {
					t.Errorf("got job %s generation %d, want %s generation %d", r.ID, r.Generation, id, 1+c.astray)
				}
				r.returns(nil)
				succeeded(t, l, id)
			} else {
				until(t, "it claims again", func() bool { return w.Healthy() == nil })
				if job, _ := l.Job(t.Context(), id); job.State != domain.Running {
					t.Errorf("the job is %s, want running", job.State)
				}
			}
			if first != nil {
				first.returns(nil)
				succeeded(t, l, first.ID)
			}
			if s := w.Stats(); s.Astray != c.astray || s.Outages != 1 || s.Refused != 0 || s.Lost != 0 {
				t.Errorf("stats are %+v", s)
			}
			if err := w.stop(); err != nil {
				t.Error(err)
			}
			verified(t, l, db)
		})
	}
}

// TestHealthy: before, while and after it works.
func TestHealthy(t *testing.T) {
	t.Parallel()
	_, db := newLedger(t)
	p := newProxy(t, db)
	w, err := worker.New(p.Ledger, brisk())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Healthy(); err == nil {
		t.Error("a worker that has not started is healthy")
	}
	p.Set(pgtest.Closed)
	r, _ := startPuppet(t, p.Ledger, brisk())
	until(t, "it has tried", func() bool { return r.Stats().Outages > 0 })
	if err := r.Healthy(); err == nil {
		t.Error("a worker without a database is healthy")
	}
	p.Set(pgtest.Open)
	until(t, "it is healthy", func() bool { return r.Healthy() == nil })
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if err := r.Healthy(); err == nil {
		t.Error("a worker that has stopped is healthy")
	}
}
