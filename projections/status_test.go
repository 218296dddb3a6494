package projections_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/projections"
)

// TestStatus brings jobs of two tags into every state, at known times, and reads the whole.
func TestStatus(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	begin := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	db.SetClock(t, begin)
	l, err := ledger.New(db.Pool, ledger.Config{Actor: "tester"})
	if err != nil {
		t.Fatal(err)
	}
	read := func() projections.Status {
		t.Helper()
		s, err := l.Read().Status(t.Context(), db.Pool)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if got := read(); !cmp.Equal(got, projections.Status{Now: begin}, cmpopts.EquateEmpty()) {
		t.Errorf("an empty ledger: %+v", got)
	}

	x := &explained{T: t, db: db, l: l, tag: "mail"}
	// Ended: two successes, a dead letter after a lost lease and a late report, a canceled one.
	for range 2 {
		x.enqueue(nil)
		_, err := l.Complete(t.Context(), "ann", ledger.Completion{Held: x.claim()})
		x.ok(err)
	}
	x.enqueue(nil)
	late := x.claim()
	db.Advance(t, time.Minute)
	_, err = l.Reap(t.Context(), ledger.ReapParams{Actor: "bob"})
	x.ok(err)
	x.fail(ledger.Failure{Permanent: true, Error: "gone"})
	_, _ = l.Complete(t.Context(), "ann", ledger.Completion{Held: late}) // refused
	_, err = l.Cancel(t.Context(), x.enqueue(nil), ledger.ByOperator{})
	x.ok(err)
	// Retries: one is due, one is not.
	x.enqueue(nil)
	x.fail(ledger.Failure{After: new(time.Duration(0))})
	retry := x.claim()
	_, err = l.Fail(t.Context(), "ann", ledger.Failure{Held: retry, After: new(time.Duration(0))})
	x.ok(err)
	x.enqueue(func(p *ledger.EnqueueParams) { p.Priority = 1 })
	x.fail(ledger.Failure{After: new(time.Hour)})
	// Running: one reports progress, one is past its lease.
	db.Advance(t, time.Minute)
	x.tag = "gpu"
	first := x.enqueue(nil)
	running := x.claim()
	db.Advance(t, 30*time.Second)
	_, err = l.Ping(t.Context(), ledger.PingParams{Worker: "ann", Lease: time.Hour, Pings: []ledger.Ping{{Held: running, Progress: []byte("1")}}})
	x.ok(err)
	x.enqueue(nil)
	x.claim()
	db.Advance(t, time.Minute)
	// Waiting: later, held, and due under a key that is used twice.
	x.enqueue(func(p *ledger.EnqueueParams) { p.Delay = time.Hour })
	held := x.enqueue(nil)
	x.exec(`UPDATE jobledger.job_queue SET held = 'nodes' WHERE job_id = $1`, held)
	due := x.enqueue(func(p *ledger.EnqueueParams) { p.Key = "k" })
	x.enqueue(func(p *ledger.EnqueueParams) { p.Key = "k" })
	x.exec(`INSERT INTO jobledger.tag_state (tag, paused_at) VALUES ('mail', jobledger.clock())`)
	x.tag = "elsewhere"
	x.seen(1, ledger.Working, "mail")

	want := projections.Status{
		Now:            begin.Add(210 * time.Second),
		LongestRunning: &projections.StatusJob{ID: first, Kind: "mail", Tag: "gpu", Since: begin.Add(120 * time.Second), Worker: "ann", ProgressAt: begin.Add(150 * time.Second)},
		LongestWaiting: &projections.StatusJob{ID: due, Kind: "mail", Tag: "gpu", Since: begin.Add(210 * time.Second)},
		LeasesOver:     1, Unserved: 1, RetriesDue: 1, RetriesLater: 1, Restarts: 1, LateReports: 1, KeyReplays: 1,
		Workers: 1, Slots: 2, Occupied: 1,
		Tags: []projections.TagStatus{
			{Tag: "gpu", Due: 1, Later: 1, Held: 1, Running: 2},
			{Tag: "mail", Paused: true, Due: 1, Later: 1, Success: 2, Failure: 1, Canceled: 1},
		},
		DeadLetters: []projections.DeadLetters{{Reason: domain.ReasonPermanent, Kind: "mail", Jobs: 1}},
	}
	got := read()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("status differs (-want +got):\n%s", diff)
	}
	if rate, ok := got.SuccessRate(); !ok || rate != 0.5 {
		t.Errorf("the success rate is %v, %v", rate, ok)
	}
	db.Advance(t, time.Hour)
	if got := read(); got.Silent != 1 || got.Workers != 0 || got.Slots != 0 {
		t.Errorf("after an hour of silence: %+v", got)
	}
}
