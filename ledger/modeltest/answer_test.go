// Package modeltest drives the SQL functions and the domain with the same commands, and compares every
// answer, every home row and every event. It holds tests only.
package modeltest

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// reply is the answer about one job, in the terms of both sides.
type reply struct {
	Event                        domain.EventType
	Refusal                      domain.Refusal
	Repeated                     bool
	Version, Generation, Attempt int
	At, LeaseUntil, ScheduledFor time.Time
	CancelRequested              bool
	Outcome                      domain.Outcome
}

// told is what the ledger answered. An error that is no well-formed refusal of this very call is returned.
func told(c domain.Command, a ledger.Answer) (reply, error) {
	r := reply{
		Event: a.Event, Repeated: a.Repeated, Version: a.Version, Generation: a.Generation, Attempt: a.Attempt,
		At: a.At, LeaseUntil: a.LeaseUntil, ScheduledFor: a.ScheduledFor, CancelRequested: a.CancelRequested, Outcome: a.Outcome,
	}
	if a.Err == nil {
		if c.Verb == domain.VerbCancel && a.Event == "" && a.CancelRequested {
			r.Refusal = domain.RefusedAlreadyRequested
		}
		return r, nil
	}
	refused, ok := errors.AsType[*domain.RefusedError](a.Err)
	if !ok {
		return r, a.Err
	}
	r.Refusal = refused.Refusal
	want := domain.RefusedError{Verb: c.Verb, JobID: a.JobID, Generation: c.Generation, Refusal: r.Refusal}
	if r.Refusal == domain.RefusedEnded {
		want.Outcome = a.Outcome
	}
	if *refused != want {
		return r, fmt.Errorf("refused as %+v, want %+v", *refused, want)
	}
	return r, nil
}

// expected is what the ledger has to answer where the domain decided a; before and after are the job as
// it was and as the event, if any, left it.
func expected(before, after domain.Job, c domain.Command, a domain.Answer) reply {
	switch {
	case a.Refusal == domain.RefusedNotFound:
		return reply{Refusal: a.Refusal}
	case a.Refusal != "":
		// About the job as it was judged: without the rejected event that may follow.
		return reply{Refusal: a.Refusal, Version: before.Version, Generation: before.Generation, Attempt: before.Attempt,
			LeaseUntil: before.LeaseUntil, CancelRequested: before.CanceledBy != "", Outcome: before.Outcome}
	}
	e := a.Event
	r := reply{Event: e.Type, Repeated: a.Repeated, Version: e.Version, Generation: e.Generation, Attempt: e.Attempt,
		At: e.At, LeaseUntil: e.LeaseUntil, ScheduledFor: e.ScheduledFor, Outcome: outcomeOf(e.Type)}
	if a.Repeated {
		return r
	}
	r.CancelRequested = before.CanceledBy != ""
	switch {
	case e.Type == domain.CancelRequested:
		r.CancelRequested, r.LeaseUntil = true, before.LeaseUntil
	case after.State == domain.Waiting:
		r.ScheduledFor = after.ScheduledFor
	}
	if c.Verb == domain.VerbRedrive {
		r.CancelRequested = false // the mark belongs to the life before
	}
	return r
}

func outcomeOf(t domain.EventType) domain.Outcome {
	switch t {
	case domain.Completed:
		return domain.Success
	case domain.Failed:
		return domain.Failure
	case domain.CanceledEvent:
		return domain.Canceled
	}
	return ""
}

// word is an answer in one word: what happened, = and what had happened the first time, or why nothing
// did, with * where the refusal left a rejected event behind.
func word(a domain.Answer) string {
	switch {
	case a.Repeated:
		return "=" + string(a.Event.Type)
	case a.Refusal == "":
		return string(a.Event.Type)
	case a.Event.Type == domain.Rejected:
		return string(a.Refusal) + "*"
	}
	return string(a.Refusal)
}

// same compares what both sides say about the same thing; nil if they agree.
func same(what string, got, want any) error {
	if reflect.DeepEqual(got, want) { // the fast way, which nearly all take
		return nil
	}
	if d := cmp.Diff(want, got); d != "" {
		return fmt.Errorf("%s differs (- domain, + SQL):\n%s", what, d)
	}
	return nil
}
