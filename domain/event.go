package domain

import (
	"time"

	"github.com/google/uuid"
)

// EventType names a fact about a job in the past tense. The set is open: later
// parts add types of their own; a reader must pass over types that it does not know.
type EventType string

// The events in the life of a job.
const (
	Enqueued        EventType = "enqueued"
	Claimed         EventType = "claimed"
	Pinged          EventType = "pinged"
	Completed       EventType = "completed"
	Retried         EventType = "retried"
	Failed          EventType = "failed"
	Released        EventType = "released"
	Snoozed         EventType = "snoozed"
	CancelRequested EventType = "cancel_requested"
	CanceledEvent   EventType = "canceled"
	Reaped          EventType = "reaped"
	Redriven        EventType = "redriven"
	Rejected        EventType = "rejected"
)

// EventInfo is one row of the registry of event types.
type EventInfo struct {
	Type    EventType
	From    []State // the states it may find the job in
	To      State   // the state it leaves the job in; Gone means unchanged
	Meaning string
}

// Registry lists every event type with the states it leads from and to.
// Fold refuses an event that its row does not allow.
var Registry = []EventInfo{
	{Enqueued, []State{Gone}, Waiting, "the job was created"},
	{Claimed, []State{Waiting}, Running, "a worker took the lease of a new generation"},
	{Pinged, []State{Running}, Running, "the owner extended the lease, perhaps with progress"},
	{Completed, []State{Running}, Ended, "the owner reported success"},
	{Retried, []State{Running}, Waiting, "the attempt failed and another one is due later"},
	{Failed, []State{Running}, Ended, "the attempt failed and no other one is allowed"},
	{Released, []State{Running}, Waiting, "the owner gave the job back unspent"},
	{Snoozed, []State{Running}, Waiting, "the owner put the job off unspent"},
	{CancelRequested, []State{Running}, Running, "the running job was marked for cancellation"},
	{CanceledEvent, []State{Waiting, Running}, Ended, "the job was canceled"},
	{Reaped, []State{Running}, Waiting, "an expired lease was taken back"},
	{Redriven, []State{Ended}, Waiting, "an operator gave an ended job a new life"},
	{Rejected, []State{Waiting, Running, Ended}, Gone, "a stale call was refused"},
}

// Lookup returns the registry's row of t; ok is false for an unknown type.
func Lookup(t EventType) (info EventInfo, ok bool) {
	for _, info := range Registry {
		if info.Type == t {
			return info, true
		}
	}
	return EventInfo{}, false
}

// Event is one immutable fact about a job. Fields that a type does not use are zero.
type Event struct {
	Seq        int64 // identity of the row; has gaps, not an order
	JobID      uuid.UUID
	Version    int // 1, 2, 3, ... within the job
	Type       EventType
	At         time.Time // the database's clock
	Generation int       // for Rejected: the generation that was shown
	Attempt    int       // after this event
	Actor      string    // who, as claimed by the caller: the worker, the operator, the reaper
	DBUser     string    // who, as authenticated by Postgres

	Kind         string
	Tag          string
	Priority     int
	ScheduledFor time.Time // enqueued, retried, snoozed, redriven: when it is due
	LeaseUntil   time.Time // claimed, pinged
	Class        Class     // retried, failed
	Reason       string    // failed, canceled, snoozed, cancel_requested, rejected
	Verb         Verb      // rejected: which call was refused
	Digest       []byte    // salted SHA-256 of the body that came with the event, nil if none
	Altered      bool      // that body is not quite what was reported: it could not be stored as it was
	Operation    uuid.UUID // joins the events of one bulk operation, uuid.Nil if none
	Facts        string    // small JSON object; "" if none
	Policy       Policy    // enqueued
	Origin       Origin    // enqueued
}
