package projections_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// explained is a ledger under a clock of its own, and one job on a tag of its own to be explained.
type explained struct {
	*testing.T
	db  *pgtest.DB
	l   *ledger.Ledger
	tag string
	id  uuid.UUID
}

func (x *explained) enqueue(change func(*ledger.EnqueueParams)) uuid.UUID {
	x.Helper()
	p := ledger.EnqueueParams{Kind: "mail", Tag: x.tag, Policy: domain.Policy{BackoffJitter: domain.None}}
	if change != nil {
		change(&p)
	}
	e, err := x.l.Enqueue(x.Context(), p)
	x.ok(err)
	return e.JobID
}

func (x *explained) ok(err error) {
	x.Helper()
	if err != nil {
		x.Fatal(err)
	}
}

// claim gives the job to worker ann.
func (x *explained) claim() ledger.Held {
	x.Helper()
	c, err := x.l.Claim(x.Context(), ledger.ClaimParams{Worker: "ann", Tags: []string{x.tag}})
	x.ok(err)
	if len(c.Jobs) != 1 {
		x.Fatalf("claimed %d jobs", len(c.Jobs))
	}
	return c.Jobs[0].Held
}

// seen shows worker ann, who serves the tag, with so many of two slots taken.
func (x *explained) seen(running int, state ledger.WorkerState, kinds ...string) {
	x.Helper()
	x.ok(x.l.WorkerSeen(x.Context(), ledger.WorkerSeen{Worker: "ann", Tags: []string{x.tag}, Kinds: kinds, Host: "h", PID: 1, Slots: 2, Running: running, State: state}))
}

func (x *explained) fail(f ledger.Failure) {
	x.Helper()
	f.Held = x.claim()
	_, err := x.l.Fail(x.Context(), "ann", f)
	x.ok(err)
}

func (x *explained) exec(sql string, args ...any) {
	x.Helper()
	_, err := x.db.Pool.Exec(x.Context(), sql, args...)
	x.ok(err)
}

// at is the id of the job with a policy.
func (x *explained) policy(p domain.Policy) {
	x.Helper()
	x.id = x.enqueue(func(e *ledger.EnqueueParams) { e.Policy = p })
}

// TestExplain brings a job into every situation that has a name and reads what it is told, through the real verbs.
func TestExplain(t *testing.T) {
	t.Parallel()
	rows := []struct {
		name   string
		set    func(x *explained)
		causes string // in their order
		says   string // part of the first sentence
	}{
		{"nobody_serves_it", func(x *explained) { x.id = x.enqueue(nil) }, "no_worker", `no worker serves tag "nobody_serves_it"`},
		{"nothing_is_wrong", func(x *explained) { x.id = x.enqueue(nil); x.seen(1, ledger.Sleeping, "mail") }, "next", "nothing is wrong"},
		{"scheduled", func(x *explained) {
			x.id = x.enqueue(func(p *ledger.EnqueueParams) { p.Delay = 2 * time.Hour })
			x.seen(0, ledger.Sleeping, "mail")
		}, "scheduled", "due in 2h0m"},
		{"retry_later", func(x *explained) {
			x.id = x.enqueue(nil)
			x.fail(ledger.Failure{Error: "no route\nto host", After: new(time.Minute)})
			x.seen(0, ledger.Sleeping, "mail")
		}, "retry_later", "attempt 1 of 25 failed (transient)"},
		{"retry_due", func(x *explained) {
			x.id = x.enqueue(nil)
			x.fail(ledger.Failure{Error: "no route"})
			x.db.Advance(x.T, time.Minute)
		}, "no_worker retry_due", "no worker"},
		{"snoozed", func(x *explained) {
			x.id = x.enqueue(nil)
			_, err := x.l.Snooze(x.Context(), "ann", ledger.Snooze{Held: x.claim(), Delay: time.Hour, Reason: "too early"})
			x.ok(err)
			x.seen(0, ledger.Sleeping, "mail")
		}, "snoozed", "(too early)"},
		{"no_handler_found", func(x *explained) {
			x.id = x.enqueue(nil)
			_, err := x.l.Snooze(x.Context(), "ann", ledger.Snooze{Held: x.claim(), Delay: time.Hour, Reason: "no_handler"})
			x.ok(err)
			x.seen(0, ledger.Sleeping, "report")
		}, "no_handler_found no_handler", `ann has no handler for kind "mail"`},
		{"held_for_nodes", func(x *explained) {
			x.id = x.enqueue(nil)
			x.exec(`UPDATE jobledger.job_queue SET held = 'nodes' WHERE job_id = $1`, x.id)
			x.seen(0, ledger.Sleeping, "mail")
		}, "held_for_nodes", "node has room"},
		{"held_by_foreign", func(x *explained) {
			x.id = x.enqueue(nil)
			x.exec(`UPDATE jobledger.job_queue SET held = 'foreign' WHERE job_id = $1`, x.id)
			x.seen(0, ledger.Sleeping, "mail")
		}, "held_by_foreign", "another queue"},
		{"tag_paused", func(x *explained) {
			x.id = x.enqueue(nil)
			x.exec(`INSERT INTO jobledger.tag_state (tag, paused_at) VALUES ($1, jobledger.clock())`, x.tag)
			x.seen(0, ledger.Sleeping, "mail")
		}, "tag_paused", "is paused"},
		{"workers_silent", func(x *explained) {
			x.id = x.enqueue(nil)
			x.seen(0, ledger.Sleeping, "mail")
			x.db.Advance(x.T, 10*time.Minute)
		}, "workers_silent", "has been seen for 10m0s; the last one was ann"},
		{"workers_stopping", func(x *explained) { x.id = x.enqueue(nil); x.seen(2, ledger.Stopping, "mail") }, "workers_stopping", "stopping"},
		{"no_handler", func(x *explained) { x.id = x.enqueue(nil); x.seen(0, ledger.Working, "report") }, "no_handler", `handler for kind "mail"`},
		{"behind_busy_slots", func(x *explained) {
			x.enqueue(func(p *ledger.EnqueueParams) { p.Priority = 1 })
			x.enqueue(nil)
			x.id = x.enqueue(nil)
			x.enqueue(nil)
			x.seen(2, ledger.Working, "mail")
		}, "slots_busy behind_others", "no free slot"},
		{"lease_was_lost", func(x *explained) {
			x.policy(domain.Policy{Timeout: 2 * time.Hour})
			x.claim()
			x.db.Advance(x.T, time.Minute)
			_, err := x.l.Reap(x.Context(), ledger.ReapParams{Actor: "bob", Tags: []string{x.tag}})
			x.ok(err)
			x.seen(0, ledger.Working, "mail")
		}, "next lease_was_lost", "nothing is wrong"},
		{"released", func(x *explained) {
			x.id = x.enqueue(nil)
			_, err := x.l.Release(x.Context(), "ann", x.claim())
			x.ok(err)
		}, "no_worker released", "no worker"},
		{"redriven", func(x *explained) {
			x.id = x.enqueue(nil)
			x.fail(ledger.Failure{Permanent: true})
			_, err := x.l.Redrive(x.Context(), x.id, ledger.ByOperator{Actor: "ops", Reason: "fixed"})
			x.ok(err)
		}, "no_worker redriven", "no worker"},
		{"running", func(x *explained) { x.id = x.enqueue(nil); x.claim(); x.seen(1, ledger.Working, "mail") }, "running", "nothing is wrong: worker ann"},
		{"progress", func(x *explained) {
			x.id = x.enqueue(nil)
			_, err := x.l.Ping(x.Context(), ledger.PingParams{Worker: "ann", Pings: []ledger.Ping{{Held: x.claim(), Progress: []byte(`{"done": 3}`)}}})
			x.ok(err)
			x.seen(1, ledger.Working, "mail")
		}, "running progress", "nothing is wrong"},
		{"cancel_requested", func(x *explained) {
			x.id = x.enqueue(nil)
			x.claim()
			_, err := x.l.Cancel(x.Context(), x.id, ledger.ByOperator{Actor: "ops", Reason: "wrong file"})
			x.ok(err)
			x.seen(1, ledger.Working, "mail")
		}, "cancel_requested", "ops asked to cancel it (wrong file)"},
		{"lease_over", func(x *explained) {
			x.id = x.enqueue(nil)
			x.claim()
			x.db.Advance(x.T, time.Minute)
		}, "lease_over", "no reaper has taken it back"},
		{"timed_out", func(x *explained) {
			x.policy(domain.Policy{Timeout: 10 * time.Second})
			x.claim()
			x.db.Advance(x.T, 15*time.Second)
		}, "timed_out", "timed out 5s ago"},
		{"owner_silent", func(x *explained) { x.id = x.enqueue(nil); x.claim() }, "owner_silent", "ann is not in the list of workers"},
		{"waits_for_verdict", func(x *explained) { x.policy(domain.Policy{OnLostLease: domain.Reconcile}); x.claim() }, "waits_for_verdict", "only a verdict"},
		{"succeeded", func(x *explained) {
			x.id = x.enqueue(nil)
			_, err := x.l.Complete(x.Context(), "ann", ledger.Completion{Held: x.claim()})
			x.ok(err)
		}, "succeeded", "success on attempt 1"},
		{"canceled", func(x *explained) {
			x.id = x.enqueue(nil)
			_, err := x.l.Cancel(x.Context(), x.id, ledger.ByOperator{Actor: "ops", Reason: "duplicate"})
			x.ok(err)
		}, "canceled", "ops canceled it (duplicate)"},
		{"permanent", func(x *explained) { x.id = x.enqueue(nil); x.fail(ledger.Failure{Permanent: true, Error: "gone"}) }, "permanent", "pointless: gone"},
		{"invalid_input", func(x *explained) {
			x.id = x.enqueue(nil)
			x.fail(ledger.Failure{Class: domain.ClassInvalidInput, Error: "order 17 has no address"})
		}, "invalid_input", "order 17"},
		{"attempts_exhausted", func(x *explained) {
			x.policy(domain.Policy{MaxAttempts: 1})
			x.fail(ledger.Failure{Class: domain.ClassPanic, Error: "index out of range"})
		}, "attempts_exhausted", "attempt 1 of 1 failed (panic): index"},
		{"restart_limit", func(x *explained) {
			x.policy(domain.Policy{RestartLimit: domain.None})
			x.claim()
			x.db.Advance(x.T, time.Minute)
			_, err := x.l.Reap(x.Context(), ledger.ReapParams{Actor: "bob", Tags: []string{x.tag}})
			x.ok(err)
		}, "restart_limit", "after 0 forgiven times; the last owner was ann"},
		{"lease_lost", func(x *explained) {
			x.policy(domain.Policy{OnLostLease: domain.FailIt})
			x.claim()
			x.db.Advance(x.T, time.Minute)
			_, err := x.l.Reap(x.Context(), ledger.ReapParams{Actor: "bob", Tags: []string{x.tag}})
			x.ok(err)
		}, "lease_lost", "ann lost the lease"},
		{"late_reports", func(x *explained) {
			x.id = x.enqueue(nil)
			old := x.claim()
			x.db.Advance(x.T, time.Minute)
			_, err := x.l.Reap(x.Context(), ledger.ReapParams{Actor: "bob", Tags: []string{x.tag}})
			x.ok(err)
			x.claim()
			_, _ = x.l.Complete(x.Context(), "ann", ledger.Completion{Held: old}) // refused
			x.seen(1, ledger.Working, "mail")
		}, "running late_reports", "nothing is wrong"},
	}

	db := pgtest.New(t)
	db.SetClock(t, time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
	l, err := ledger.New(db.Pool, ledger.Config{Actor: "tester"})
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			x := &explained{T: t, db: db, l: l, tag: row.name}
			row.set(x)
			e, err := l.Read().Explain(t.Context(), db.Pool, x.id)
			x.ok(err)
			var causes []string
			for _, b := range e.Causes {
				causes = append(causes, string(b.Cause))
				named[string(b.Cause)] = true
				if b.Text == "" || strings.Contains(b.Text, "%!") {
					t.Errorf("%s says %q", b.Cause, b.Text)
				}
			}
			if got := strings.Join(causes, " "); got != row.causes {
				t.Errorf("causes are %s, want %s", got, row.causes)
			}
			if !strings.Contains(e.Causes[0].Text, row.says) {
				t.Errorf("it says %q, want %q in it", e.Causes[0].Text, row.says)
			}
			x.exec(`DELETE FROM jobledger.worker`)
		})
	}
	if len(named) != 33 {
		t.Errorf("%d causes have a test, want 33: all but failed, which no verb of this release leaves behind", len(named))
	}

	t.Run("no_such_job", func(t *testing.T) {
		if _, err := l.Read().Explain(t.Context(), db.Pool, uuid.New()); !strings.Contains(err.Error(), "job not found") {
			t.Errorf("error is %v", err)
		}
	})
}
