package domain

import (
	"bytes"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Verb names what a caller asks for.
type Verb string

// The verbs.
const (
	VerbEnqueue  Verb = "enqueue"
	VerbClaim    Verb = "claim"
	VerbPing     Verb = "ping"
	VerbComplete Verb = "complete"
	VerbFail     Verb = "fail"
	VerbRelease  Verb = "release"
	VerbSnooze   Verb = "snooze"
	VerbCancel   Verb = "cancel"
	VerbReap     Verb = "reap"
	VerbRedrive  Verb = "redrive"
)

// Transition is one row of the table of transitions.
type Transition struct {
	Verb Verb
	// Fenced verbs show a worker and a generation and need the lease; a refused one
	// leaves a rejected event behind.
	Fenced bool
	// From lists the states in which the verb can succeed.
	From []State
	// Events lists what it may append: exactly one of them when it succeeds.
	Events []EventType
	decide func(Job, Command, time.Time) (Event, Refusal)
}

// Transitions is the table of transitions: the specification of every verb.
var Transitions = []Transition{
	{VerbEnqueue, false, []State{Gone}, []EventType{Enqueued}, decideEnqueue},
	{VerbClaim, false, []State{Waiting}, []EventType{Claimed}, decideClaim},
	{VerbPing, true, []State{Running}, []EventType{Pinged}, decidePing},
	{VerbComplete, true, []State{Running}, []EventType{Completed}, decideComplete},
	{VerbFail, true, []State{Running}, []EventType{Retried, Failed, CanceledEvent}, decideFail},
	{VerbRelease, true, []State{Running}, []EventType{Released, CanceledEvent}, decideRelease},
	{VerbSnooze, true, []State{Running}, []EventType{Snoozed, CanceledEvent}, decideSnooze},
	{VerbCancel, false, []State{Waiting, Running}, []EventType{CanceledEvent, CancelRequested}, decideCancel},
	{VerbReap, false, []State{Running}, []EventType{Reaped, Retried, Failed, CanceledEvent}, decideReap},
	{VerbRedrive, false, []State{Ended}, []EventType{Redriven}, decideRedrive},
}

// Command is one call of a verb for one job. Fields that a verb does not use are zero.
type Command struct {
	Verb       Verb
	Actor      string // for fenced verbs and claim: the worker
	Generation int    // fenced verbs: what the caller holds
	Lease      time.Duration
	Digest     []byte // of the body that comes with the call, nil if none
	Class      Class
	Permanent  bool           // fail: do not try again
	After      *time.Duration // fail: the delay; nil means the policy's. snooze: the delay
	Reason     string
	Operation  uuid.UUID // cancel, redrive: acts on a job once, however often it is sent
	Enqueue    Event     // enqueue: kind, tag, priority, due time, policy, facts, origin
}

// Answer is what one command does to one job.
type Answer struct {
	// Event is appended when Refusal is empty and Repeated is false; when Repeated, it is
	// the event that the first call appended. A refused fenced call may append a Rejected one.
	Event    Event
	Refusal  Refusal
	Repeated bool
}

// Decide says what c does to the job with the given past (all its events, in order) at
// now. It is the definition that the SQL functions are compared with.
func Decide(past []Event, c Command, now time.Time) (Answer, error) {
	j, err := Fold(past)
	if err != nil {
		return Answer{}, err
	}
	t := transitionOf(c.Verb)
	if first, ok := acted(past, c); ok {
		return Answer{Event: first, Repeated: true}, nil
	}
	e, refusal := Event{}, refuseState(t, j, c, now)
	if refusal == "" {
		e, refusal = t.decide(j, c, now)
	}
	if refusal == "" {
		return Answer{Event: stamp(e, j, c, now)}, nil
	}
	if !t.Fenced || j.State == Gone || refusal == RefusedUnknownGeneration {
		return Answer{Refusal: refusal}, nil
	}
	if first, ok := repeated(past, c); ok {
		return Answer{Event: first, Repeated: true}, nil
	}
	if alreadyRejected(past, c) {
		return Answer{Refusal: refusal}, nil
	}
	rejected := stamp(Event{Type: Rejected, Verb: c.Verb, Reason: string(refusal)}, j, c, now)
	rejected.Generation = c.Generation
	return Answer{Event: rejected, Refusal: refusal}, nil
}

func transitionOf(v Verb) Transition {
	for _, t := range Transitions {
		if t.Verb == v {
			return t
		}
	}
	panic("domain: no transition for verb " + string(v))
}

// stamp fills what every event carries.
func stamp(e Event, j Job, c Command, now time.Time) Event {
	e.Version, e.At, e.Actor, e.Operation = j.Version+1, now, c.Actor, c.Operation
	if e.Type != Enqueued { // which names the job to be
		e.JobID = j.ID
	}
	if e.Type != Claimed {
		e.Generation = j.Generation
	}
	if !setsAttempt(e.Type) {
		e.Attempt = j.Attempt
	}
	return e
}

// setsAttempt: these types carry an attempt of their own, the others the job's.
func setsAttempt(t EventType) bool {
	switch t {
	case Claimed, Released, Snoozed, Reaped, Redriven:
		return true
	}
	return false
}

// refuseState is the first half of every guard: does the job exist, is it in a state that
// the verb can act on, and, for fenced verbs, does the caller hold it.
func refuseState(t Transition, j Job, c Command, now time.Time) Refusal {
	switch {
	case c.Verb == VerbEnqueue && j.State == Gone:
		return ""
	case c.Verb == VerbEnqueue:
		return RefusedExists
	case j.State == Gone:
		return RefusedNotFound
	}
	if t.Fenced {
		return refuseFenced(j, c, now)
	}
	for _, s := range t.From {
		if s == j.State {
			return ""
		}
	}
	switch {
	case c.Verb == VerbRedrive:
		return RefusedNotEnded
	case j.State == Ended:
		return RefusedEnded
	}
	return RefusedNotDue
}

// refuseFenced is the guard of ping, complete, fail, release and snooze.
func refuseFenced(j Job, c Command, now time.Time) Refusal {
	switch {
	case c.Generation < 1 || c.Generation > j.Generation:
		return RefusedUnknownGeneration
	case c.Generation < j.Generation:
		return RefusedFenced
	case j.Worker != c.Actor:
		return RefusedFenced
	case j.State == Ended:
		return RefusedEnded
	case j.State == Waiting:
		return RefusedFenced
	case !j.TimeoutAt.IsZero() && !now.Before(j.TimeoutAt):
		return RefusedTimedOut
	case !j.LeaseUntil.IsZero() && !now.Before(j.LeaseUntil):
		return RefusedLeaseOver
	}
	return ""
}

func decideEnqueue(_ Job, c Command, now time.Time) (Event, Refusal) {
	e := c.Enqueue
	e.Type, e.Digest = Enqueued, c.Digest
	if e.ScheduledFor.IsZero() {
		e.ScheduledFor = now
	}
	return e, ""
}

func decideClaim(j Job, c Command, now time.Time) (Event, Refusal) {
	if !j.Due(now) {
		return Event{}, RefusedNotDue
	}
	e := Event{Type: Claimed, Generation: j.Generation + 1, Attempt: j.Attempt + 1}
	if j.Policy.OnLostLease != Reconcile {
		e.LeaseUntil = now.Add(c.Lease)
	}
	return e, ""
}

func decidePing(j Job, c Command, now time.Time) (Event, Refusal) {
	e := Event{Type: Pinged, Digest: c.Digest}
	if !j.LeaseUntil.IsZero() {
		e.LeaseUntil = now.Add(c.Lease)
	}
	return e, ""
}

func decideComplete(_ Job, c Command, _ time.Time) (Event, Refusal) {
	return Event{Type: Completed, Digest: c.Digest}, ""
}

// decideFail: the cancel mark wins over everything, then the handler's word, then the budget.
func decideFail(j Job, c Command, now time.Time) (Event, Refusal) {
	e := Event{Class: c.Class, Digest: c.Digest}
	switch {
	case j.CanceledBy != "":
		e.Type, e.Reason = CanceledEvent, j.CancelReason
	case c.Permanent:
		e.Type, e.Reason = Failed, ReasonPermanent
	case c.Class == ClassInvalidInput:
		e.Type, e.Reason = Failed, ReasonInvalidInput
	case j.Attempt >= j.Policy.MaxAttempts:
		e.Type, e.Reason = Failed, ReasonAttemptsExhausted
	default:
		delay := j.Policy.RetryDelay(j.ID, j.Attempt)
		if c.After != nil {
			delay = *c.After
		}
		e.Type, e.ScheduledFor = Retried, now.Add(delay)
	}
	return e, ""
}

func decideRelease(j Job, _ Command, _ time.Time) (Event, Refusal) {
	if j.CanceledBy != "" {
		return Event{Type: CanceledEvent, Reason: j.CancelReason}, ""
	}
	return Event{Type: Released, Attempt: j.Attempt - 1}, ""
}

func decideSnooze(j Job, c Command, now time.Time) (Event, Refusal) {
	if j.CanceledBy != "" {
		return Event{Type: CanceledEvent, Reason: j.CancelReason}, ""
	}
	return Event{Type: Snoozed, Attempt: j.Attempt - 1, Reason: c.Reason, ScheduledFor: now.Add(*c.After)}, ""
}

// decideCancel: a waiting job ends at once; a running one is marked, and its owner, or the
// reaper, ends it. A second mark changes nothing.
func decideCancel(j Job, c Command, _ time.Time) (Event, Refusal) {
	switch {
	case j.State == Waiting:
		return Event{Type: CanceledEvent, Reason: c.Reason}, ""
	case j.CanceledBy != "":
		return Event{}, RefusedAlreadyRequested
	}
	return Event{Type: CancelRequested, Reason: c.Reason}, ""
}

// decideReap: what came first, the time-out or the end of the lease, is the cause; which
// moment the reaper comes by does not matter.
func decideReap(j Job, _ Command, now time.Time) (Event, Refusal) {
	timedOut := !j.TimeoutAt.IsZero() && !now.Before(j.TimeoutAt)
	leaseOver := !j.LeaseUntil.IsZero() && !now.Before(j.LeaseUntil)
	if !timedOut && !leaseOver {
		return Event{}, RefusedAlive
	}
	byTimeout := timedOut && !j.LeaseUntil.Before(j.TimeoutAt)
	switch {
	case j.CanceledBy != "":
		return Event{Type: CanceledEvent, Reason: j.CancelReason}, ""
	case byTimeout && j.Attempt >= j.Policy.MaxAttempts:
		return Event{Type: Failed, Class: ClassTimeout, Reason: ReasonAttemptsExhausted}, ""
	case byTimeout:
		return Event{Type: Retried, Class: ClassTimeout, ScheduledFor: now.Add(j.Policy.RetryDelay(j.ID, j.Attempt))}, ""
	case j.Policy.OnLostLease == FailIt:
		return Event{Type: Failed, Class: ClassCrash, Reason: ReasonLeaseLost}, ""
	case j.Restarts >= j.Policy.RestartLimit:
		return Event{Type: Failed, Class: ClassCrash, Reason: ReasonRestartLimit}, ""
	}
	return Event{Type: Reaped, Attempt: j.Attempt - 1}, ""
}

func decideRedrive(j Job, c Command, now time.Time) (Event, Refusal) {
	if j.Outcome == Success {
		return Event{}, RefusedSucceeded
	}
	return Event{Type: Redriven, Attempt: 0, Reason: c.Reason, ScheduledFor: now}, ""
}

// repeated looks for the event that an earlier, answered or unanswered, sending of the same
// closing call appended: same worker and generation, an event that this verb can append,
// and the same body. Only then is a repetition harmless.
func repeated(past []Event, c Command) (Event, bool) {
	if c.Verb == VerbPing {
		return Event{}, false
	}
	for _, e := range past {
		if e.Generation != c.Generation || e.Actor != c.Actor || e.Type == CancelRequested {
			continue
		}
		for _, t := range transitionOf(c.Verb).Events {
			if e.Type == t && bytes.Equal(e.Digest, c.Digest) && (c.Verb != VerbFail || e.Class == c.Class) {
				return e, true
			}
		}
	}
	return Event{}, false
}

// acted looks for the event that an earlier sending of the same operation appended, whatever has become
// of the job since: a redrive whose answer was lost must not start a job anew that has failed again.
func acted(past []Event, c Command) (Event, bool) {
	if c.Operation == uuid.Nil {
		return Event{}, false
	}
	for _, e := range past {
		if e.Operation == c.Operation && slices.Contains(transitionOf(c.Verb).Events, e.Type) {
			return e, true
		}
	}
	return Event{}, false
}

// alreadyRejected: one rejected event per (generation, verb) is enough to prove that a late
// caller was there, and a caller that never gives up cannot fill the ledger.
func alreadyRejected(past []Event, c Command) bool {
	for _, e := range past {
		if e.Type == Rejected && e.Generation == c.Generation && e.Verb == c.Verb {
			return true
		}
	}
	return false
}
