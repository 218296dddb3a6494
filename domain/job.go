// Package domain is the pure model of jobledger: what a job is, which events
// happen to it and which of them are allowed when. It has no clock and no I/O;
// the SQL functions in package ledger implement the same rules, and tests drive
// both with the same commands and compare every answer.
package domain

import (
	"time"

	"github.com/google/uuid"
)

// State says in which of the three homes a job is.
type State string

// A job that exists is in exactly one of these states. Gone means that no
// event has created it (or that it was never seen).
const (
	Gone    State = ""        // no such job
	Waiting State = "waiting" // its home is job_queue
	Running State = "running" // its home is job_runtime
	Ended   State = "ended"   // its home is job_completed
)

// States lists the states of jobs that exist.
var States = []State{Waiting, Running, Ended}

// Outcome is how a job ended. A job with outcome Failure is a dead letter.
type Outcome string

// The outcomes.
const (
	Success  Outcome = "success"
	Failure  Outcome = "failure"
	Canceled Outcome = "canceled"
)

// Class says why an attempt failed; it decides what happens next.
type Class string

// The classes of a failed attempt.
const (
	ClassTransient    Class = "transient"       // may succeed when tried again
	ClassInvalidInput Class = "invalid_input"   // never succeeds: a dead letter at once
	ClassUnknown      Class = "outcome_unknown" // an outside effect may or may not have happened
	ClassTimeout      Class = "timeout"         // ran longer than its policy allows
	ClassCrash        Class = "crash"           // the process that ran it died
	ClassPanic        Class = "panic"           // the handler panicked
)

// Classes lists every class, in the order of the documentation.
var Classes = []Class{ClassTransient, ClassInvalidInput, ClassUnknown, ClassTimeout, ClassCrash, ClassPanic}

// Reasons for which a job ends with Failure.
const (
	ReasonPermanent         = "permanent"          // the handler said that trying again is pointless
	ReasonInvalidInput      = "invalid_input"      // class invalid_input
	ReasonAttemptsExhausted = "attempts_exhausted" // the last attempt that the policy allows has failed
	ReasonRestartLimit      = "restart_limit"      // its lease was lost more often than the policy allows
	ReasonLeaseLost         = "lease_lost"         // on_lost_lease is fail
)

// Job is one unit of work as its events leave it; it is what Fold computes and
// what the home row of the job stores. Bodies (args, result, error, progress)
// live apart: a *Version field names the event that brought the body, 0 if none.
type Job struct {
	ID    uuid.UUID
	State State

	// Version is the number of events so far, rejected ones included.
	Version int
	// Generation is the fencing token: one more on every claim, never reset.
	Generation int
	// Attempt counts the runs that are charged to the retry budget.
	Attempt int
	// Restarts counts leases that were lost since enqueue or redrive.
	Restarts int

	Kind         string
	Tag          string
	Priority     int // higher first
	ScheduledFor time.Time
	Policy       Policy
	Facts        string // JSON object of labels, correlation id and traceparent; "" if none
	Origin       Origin

	EnqueuedAt time.Time
	ChangedAt  time.Time // the last event other than a rejected one

	// Set by a claim, cleared when the job goes back to the queue. An ended job
	// keeps Worker and StartedAt of its last run.
	Worker     string
	StartedAt  time.Time
	PingedAt   time.Time // zero until the first ping
	LeaseUntil time.Time // zero where on_lost_lease is reconcile
	TimeoutAt  time.Time // zero where on_lost_lease is reconcile

	// The cancel mark while the job runs; who and why once it is canceled.
	CanceledBy   string
	CancelReason string

	ProgressVersion int
	ProgressAt      time.Time
	ErrorVersion    int

	Outcome       Outcome
	Class         Class
	Reason        string
	EndedAt       time.Time
	ResultVersion int
}

// Origin says where a job came from; it is fixed at enqueue.
type Origin struct {
	TriggerKind string // api, webhook, schedule, manual, job or sql
	TriggerRef  string
	ParentID    uuid.UUID // uuid.Nil if none
	WorkID      uuid.UUID // the caller's own id of the work, uuid.Nil if none
	PinID       int       // the pinned source, 0 if none
}

// Due reports whether a waiting job could be claimed at now, tags and pauses aside.
func (j Job) Due(now time.Time) bool {
	return j.State == Waiting && !j.ScheduledFor.After(now)
}

// Before reports whether j is claimed before other when both are due: higher
// priority first, then the earlier due time, then the smaller id.
func (j Job) Before(other Job) bool {
	if j.Priority != other.Priority {
		return j.Priority > other.Priority
	}
	if !j.ScheduledFor.Equal(other.ScheduledFor) {
		return j.ScheduledFor.Before(other.ScheduledFor)
	}
	return string(j.ID[:]) < string(other.ID[:])
}
