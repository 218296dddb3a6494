package domain

import (
	"fmt"
	"slices"
	"time"
)

// Fold computes a job from all its events in order. It returns a *FoldError that names the
// first event that cannot follow the ones before it: a version that is not the next one, an
// event of another job, or a transition that the registry does not allow. Events of unknown
// type count as versions and change nothing. Fold(nil) is a job in state Gone.
func Fold(events []Event) (Job, error) {
	var j Job
	for _, e := range events {
		if err := j.Apply(e); err != nil {
			return j, err
		}
	}
	return j, nil
}

// Apply folds one more event into j; j is unchanged when it returns an error.
func (j *Job) Apply(e Event) error {
	if e.Version != j.Version+1 {
		return &FoldError{Event: e, Problem: fmt.Sprintf("version %d follows version %d", e.Version, j.Version)}
	}
	if j.State != Gone && e.JobID != j.ID {
		return &FoldError{Event: e, Problem: fmt.Sprintf("event of job %s in the history of job %s", e.JobID, j.ID)}
	}
	info, known := Lookup(e.Type)
	if known && !slices.Contains(info.From, j.State) {
		return &FoldError{Event: e, Problem: fmt.Sprintf("%s cannot happen to a job that is %s", e.Type, j.State.orGone())}
	}
	j.Version = e.Version
	if !known || e.Type == Rejected {
		return nil
	}
	j.State, j.Attempt, j.ChangedAt = info.To, e.Attempt, e.At
	switch e.Type {
	case Enqueued:
		j.ID, j.Kind, j.Tag, j.Priority, j.Policy = e.JobID, e.Kind, e.Tag, e.Priority, e.Policy
		j.Facts, j.Origin, j.ScheduledFor, j.EnqueuedAt = e.Facts, e.Origin, e.ScheduledFor, e.At
	case Claimed:
		j.startRun(e)
	case Pinged:
		j.PingedAt, j.LeaseUntil = e.At, e.LeaseUntil
		if e.Digest != nil {
			j.ProgressVersion, j.ProgressAt = e.Version, e.At
		}
	case Completed:
		j.end(e, Success)
		if e.Digest != nil {
			j.ResultVersion = e.Version
		}
	case Retried:
		j.keepError(e)
		j.requeue(e.ScheduledFor)
	case Failed:
		j.keepError(e)
		j.end(e, Failure)
	case Released:
		j.requeue(j.ScheduledFor)
	case Snoozed:
		j.requeue(e.ScheduledFor)
	case CancelRequested:
		j.CanceledBy, j.CancelReason = e.Actor, e.Reason
	case CanceledEvent:
		if j.CanceledBy == "" {
			j.CanceledBy, j.CancelReason = e.Actor, e.Reason
		}
		j.keepError(e)
		j.end(e, Canceled)
	case Reaped:
		j.Restarts++
		j.requeue(j.ScheduledFor)
	case Redriven:
		j.redrive(e)
	}
	return nil
}

func (j *Job) startRun(e Event) {
	j.Generation, j.Worker, j.StartedAt, j.PingedAt, j.LeaseUntil = e.Generation, e.Actor, e.At, time.Time{}, e.LeaseUntil
	if j.Policy.OnLostLease != Reconcile {
		j.TimeoutAt = e.At.Add(j.Policy.Timeout)
	}
}

// leaveRun clears what only a running job has.
func (j *Job) leaveRun() {
	j.PingedAt, j.LeaseUntil, j.TimeoutAt, j.ProgressAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}
}

func (j *Job) requeue(due time.Time) {
	j.leaveRun()
	j.Worker, j.StartedAt, j.ScheduledFor = "", time.Time{}, due
}

func (j *Job) end(e Event, o Outcome) {
	j.leaveRun()
	j.Outcome, j.Reason, j.EndedAt = o, e.Reason, e.At
	j.Class = ""
	if o == Failure {
		j.Class = e.Class
	}
	if o != Failure {
		j.Reason = ""
	}
}

func (j *Job) keepError(e Event) {
	if e.Digest != nil {
		j.ErrorVersion = e.Version
	}
}

// redrive starts a new life: attempts, restarts and the start time begin anew, generation
// and version go on.
func (j *Job) redrive(e Event) {
	j.Restarts, j.Outcome, j.Class, j.Reason, j.EndedAt = 0, "", "", "", time.Time{}
	j.CanceledBy, j.CancelReason, j.ResultVersion = "", "", 0
	j.requeue(e.ScheduledFor)
}

func (s State) orGone() string {
	if s == Gone {
		return "not there yet"
	}
	return string(s)
}
