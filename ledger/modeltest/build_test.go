package modeltest

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// The people of the table test.
const (
	owner    = "owner"   // runs the job under generations 1 and 2
	stranger = "other"   // never held it
	reaper   = "reaper"  // takes leases back
	operator = "boss"    // cancels and redrives
	late     = "late"    // would claim
	someBody = `"done"`  // what the owner reports: result or error
	another  = `"other"` // another report than the first one
)

// tableLease is how long the owner's lease lasts where a state doesn't say otherwise.
const tableLease = 10 * time.Second

// builder brings one job into a state. Its methods are steps of the job's life; the first that does not do
// what it should ends them, and err says which.
type builder struct {
	*ground
	params ledger.EnqueueParams
	lease  time.Duration
	id     uuid.UUID
	held   ledger.Held
	err    error
}

// state is a named way to bring a job somewhere.
type state struct {
	name  string
	build func(b *builder)
}

// A job that ran has run twice: it was released once, so that generation 1 is older and generation 2 its own.
var states = []state{
	{"gone", func(b *builder) { b.id = jobID(0xeeee, 1) }},
	{"fresh", func(b *builder) { b.enqueue() }},
	{"fresh_later", func(b *builder) { b.enqueueIn(time.Hour) }},
	{"fresh_no_lease", func(b *builder) { b.onLostLease(domain.Reconcile).enqueue() }},
	{"released", func(b *builder) { b.run().expect(domain.Released, b.release) }},
	{"snoozed", func(b *builder) { b.run().expect(domain.Snoozed, b.snooze) }},
	{"retried", func(b *builder) { b.run().expect(domain.Retried, b.fail) }},
	{"retried_due", func(b *builder) { b.run().expect(domain.Retried, b.fail); b.advance(time.Hour) }},
	{"retried_by_reaper", func(b *builder) { b.timeout(5*time.Second).run().advance(5*time.Second).expect(domain.Retried, b.reap) }},
	{"reaped", func(b *builder) { b.run().advance(tableLease).expect(domain.Reaped, b.reap) }},
	{"redriven", func(b *builder) {
		b.run().expect(domain.Failed, b.failForGood)
		b.expect(domain.Redriven, b.redrive)
	}},
	{"redriven_fresh", func(b *builder) {
		b.enqueue().expect(domain.CanceledEvent, b.cancel)
		b.expect(domain.Redriven, b.redrive)
	}},
	{"running", func(b *builder) { b.run() }},
	{"running_last_instant", func(b *builder) { b.run().advance(tableLease - time.Microsecond) }},
	{"pinged", func(b *builder) { b.run().expect(domain.Pinged, b.ping) }},
	{"pinged_past_first_lease", func(b *builder) {
		b.run().advance(tableLease-time.Second).expect(domain.Pinged, b.ping)
		b.advance(tableLease - time.Microsecond)
	}},
	{"last_attempt", func(b *builder) { b.attempts(1).run() }},
	{"no_lease", func(b *builder) { b.onLostLease(domain.Reconcile).run().advance(48 * time.Hour) }},
	{"lease_over", func(b *builder) { b.run().advance(tableLease) }},
	{"lease_over_no_restart_left", func(b *builder) { b.noRestarts().run().advance(tableLease) }},
	{"lease_over_fail", func(b *builder) { b.onLostLease(domain.FailIt).run().advance(tableLease) }},
	{"timed_out", func(b *builder) { b.timeout(5 * time.Second).run().advance(5 * time.Second) }},
	{"timed_out_last_attempt", func(b *builder) { b.attempts(1).timeout(5 * time.Second).run().advance(5 * time.Second) }},
	{"lease_over_then_timed_out", func(b *builder) { b.timeout(15 * time.Second).run().advance(20 * time.Second) }},
	{"timed_out_then_lease_over", func(b *builder) { b.timeout(5 * time.Second).run().advance(20 * time.Second) }},
	{"lease_and_timeout_at_once", func(b *builder) { b.timeout(tableLease).run().advance(tableLease) }},
	{"marked", func(b *builder) { b.mark() }},
	{"marked_no_lease", func(b *builder) { b.onLostLease(domain.Reconcile).mark().advance(48 * time.Hour) }},
	{"marked_lease_over", func(b *builder) { b.noRestarts().mark().advance(tableLease) }},
	{"marked_timed_out", func(b *builder) { b.attempts(1).timeout(5 * time.Second).mark().advance(5 * time.Second) }},
	{"success", func(b *builder) { b.run().expect(domain.Completed, b.complete) }},
	{"success_marked", func(b *builder) { b.mark().expect(domain.Completed, b.complete) }},
	{"failure", func(b *builder) { b.run().expect(domain.Failed, b.failForGood) }},
	{"failure_attempts", func(b *builder) { b.attempts(1).run().expect(domain.Failed, b.fail) }},
	{"failure_by_reaper", func(b *builder) { b.noRestarts().run().advance(tableLease).expect(domain.Failed, b.reap) }},
	{"canceled", func(b *builder) { b.mark().expect(domain.CanceledEvent, b.fail) }},
	{"canceled_by_release", func(b *builder) { b.mark().expect(domain.CanceledEvent, b.release) }},
	{"canceled_by_reaper", func(b *builder) { b.mark().advance(tableLease).expect(domain.CanceledEvent, b.reap) }},
	{"canceled_fresh", func(b *builder) { b.enqueue().expect(domain.CanceledEvent, b.cancel) }},
	{"canceled_after_run", func(b *builder) {
		b.run().expect(domain.Released, b.release)
		b.expect(domain.CanceledEvent, b.cancel)
	}},
}

func (b *builder) attempts(n int) *builder { b.params.Policy.MaxAttempts = n; return b }
func (b *builder) noRestarts() *builder    { b.params.Policy.RestartLimit = domain.None; return b }

func (b *builder) timeout(d time.Duration) *builder { b.params.Policy.Timeout = d; return b }

func (b *builder) onLostLease(o domain.OnLostLease) *builder {
	b.params.Policy.OnLostLease = o
	return b
}

func (b *builder) advance(d time.Duration) *builder {
	if b.err == nil {
		b.setClock(b.now.Add(d))
	}
	return b
}

func (b *builder) enqueueIn(d time.Duration) *builder { b.params.Delay = d; return b.enqueue() }

func (b *builder) enqueue() *builder {
	e, err := b.l.Enqueue(b.ctx, b.params)
	b.id, b.err = e.JobID, err
	return b
}

// run enqueues the job and lets the owner claim it twice.
func (b *builder) run() *builder {
	b.enqueue().claim()
	b.expect(domain.Released, b.release)
	return b.claim()
}

// mark is run and a cancel.
func (b *builder) mark() *builder { return b.run().expect(domain.CancelRequested, b.cancel) }

func (b *builder) claim() *builder {
	if b.err != nil {
		return b
	}
	c, err := b.l.Claim(b.ctx, ledger.ClaimParams{Worker: owner, Tags: []string{b.params.Tag}, Lease: b.lease})
	if b.err = err; err == nil && len(c.Jobs) != 1 {
		b.err = fmt.Errorf("claim gave %d jobs, want 1", len(c.Jobs))
	}
	if b.err == nil {
		b.held = c.Jobs[0].Held
	}
	return b
}

// expect takes a step and wants its event.
func (b *builder) expect(want domain.EventType, step func() (ledger.Answer, error)) *builder {
	if b.err != nil {
		return b
	}
	a, err := step()
	if b.err = err; err == nil && (a.Event != want || a.Repeated) {
		b.err = fmt.Errorf("step answered %+v, want %s", a, want)
	}
	return b
}

func (b *builder) complete() (ledger.Answer, error) {
	return b.l.Complete(b.ctx, owner, ledger.Completion{Held: b.held, Result: someBody})
}

// fail lets the job be due in an hour.
func (b *builder) fail() (ledger.Answer, error) {
	after := time.Hour
	return b.l.Fail(b.ctx, owner, ledger.Failure{Held: b.held, Class: domain.ClassTransient, Error: someBody, After: &after})
}

func (b *builder) failForGood() (ledger.Answer, error) {
	return b.l.Fail(b.ctx, owner, ledger.Failure{Held: b.held, Class: domain.ClassTransient, Error: someBody, Permanent: true})
}

func (b *builder) cancel() (ledger.Answer, error) {
	return b.l.Cancel(b.ctx, b.id, ledger.ByOperator{Actor: operator, Reason: "first"})
}

func (b *builder) redrive() (ledger.Answer, error) {
	return b.l.Redrive(b.ctx, b.id, ledger.ByOperator{Actor: operator})
}

func (b *builder) release() (ledger.Answer, error) {
	return only(b.l.Release(b.ctx, owner, b.held))
}

func (b *builder) snooze() (ledger.Answer, error) {
	return only(b.l.Snooze(b.ctx, owner, ledger.Snooze{Held: b.held, Delay: time.Hour}))
}

func (b *builder) ping() (ledger.Answer, error) {
	return only(b.l.Ping(b.ctx, ledger.PingParams{Worker: owner, Lease: b.lease, Pings: []ledger.Ping{{Held: b.held, Progress: someBody}}}))
}

func (b *builder) reap() (ledger.Answer, error) {
	return only(b.l.Reap(b.ctx, ledger.ReapParams{Actor: reaper, Tags: []string{b.params.Tag}}))
}

// only is the answer of a call about one job, refusals included.
func only(answers []ledger.Answer, err error) (ledger.Answer, error) {
	if err != nil {
		return ledger.Answer{}, err
	}
	if len(answers) != 1 {
		return ledger.Answer{}, fmt.Errorf("got %d answers, want 1", len(answers))
	}
	return answers[0], answers[0].Err
}
