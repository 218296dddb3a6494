package projections

import (
	"fmt"
	"strings"
	"time"

	"github.com/jobledger/jobledger/domain"
)

// Cause is a word for why a job is as it is. Programs may rely on it; new ones may come.
type Cause string

// Why a waiting job does not run.
const (
	CauseHeldNodes       Cause = "held_for_nodes"     // it waits to be admitted to a node
	CauseHeldForeign     Cause = "held_by_foreign"    // another queue has it
	CauseScheduled       Cause = "scheduled"          // its due time is yet to come
	CauseRetryLater      Cause = "retry_later"        // an attempt failed; the next one is due later
	CauseSnoozed         Cause = "snoozed"            // a handler put it off
	CauseNoHandlerThere  Cause = "no_handler_found"   // it was put off by a worker that has no handler for its kind
	CauseTagPaused       Cause = "tag_paused"         // an operator paused its tag
	CauseNoWorker        Cause = "no_worker"          // nobody serves its tag
	CauseWorkersSilent   Cause = "workers_silent"     // who served its tag has not been seen for a while
	CauseWorkersStopping Cause = "workers_stopping"   // who serves its tag claims no more
	CauseNoHandler       Cause = "no_handler"         // who serves its tag has no handler for its kind
	CauseSlotsBusy       Cause = "slots_busy"         // who could run it has no free slot
	CauseBehind          Cause = "behind_others"      // others of its tag come first
	CauseNext            Cause = "next"               // nothing is wrong: the next claim takes it
	CauseTakenBack       Cause = "lease_was_lost"     // its last owner lost the lease
	CauseRetryDue        Cause = "retry_due"          // its last attempt failed, the delay is over
	CauseReleased        Cause = "released"           // its last owner gave it back
	CauseRedriven        Cause = "redriven"           // an operator gave it a new life
	CauseRunning         Cause = "running"            // nothing is wrong
	CauseCancelRequested Cause = "cancel_requested"   // its owner will hear of it with the next ping
	CauseLeaseOver       Cause = "lease_over"         // nobody has taken it back yet
	CauseTimedOut        Cause = "timed_out"          // nobody has ended the attempt yet
	CauseOwnerSilent     Cause = "owner_silent"       // its owner shows no sign, the lease lasts
	CauseVerdict         Cause = "waits_for_verdict"  // it has no lease: only a verdict decides
	CauseProgress        Cause = "progress"           // when its handler last reported some
	CauseSucceeded       Cause = "succeeded"          // ended with success
	CauseCanceled        Cause = "canceled"           // ended by a cancel
	CausePermanent       Cause = "permanent"          // dead letter: the handler said so
	CauseInvalidInput    Cause = "invalid_input"      // dead letter: its args can never work
	CauseExhausted       Cause = "attempts_exhausted" // dead letter: the last attempt that its policy allows failed
	CauseRestartLimit    Cause = "restart_limit"      // dead letter: lost its lease too often
	CauseLeaseLost       Cause = "lease_lost"         // dead letter: repeating it is not safe
	CauseFailed          Cause = "failed"             // dead letter for a reason that this binary does not know
	CauseLateReports     Cause = "late_reports"       // reports that came too late were refused; they changed nothing
)

// causes says what the situation means, the most decisive first.
func (s situation) causes() []Because {
	var c because
	switch s.job.State {
	case domain.Waiting:
		s.waiting(&c)
	case domain.Running:
		s.running(&c)
	case domain.Ended:
		s.ended(&c)
	}
	if s.late > 0 {
		c.add(CauseLateReports, s.lastly, "%d late reports of earlier runs were refused; they changed nothing", s.late)
	}
	return c
}

// because gathers causes.
type because []Because

func (c *because) add(cause Cause, at time.Time, text string, args ...any) {
	*c = append(*c, Because{Cause: cause, At: at, Text: fmt.Sprintf(text, args...)})
}

// waiting: what stands in its way, from the outermost to the innermost; then how it came to wait.
func (s situation) waiting(c *because) {
	j := s.job
	switch s.held {
	case "nodes":
		c.add(CauseHeldNodes, j.ChangedAt, "it waits until a node has room for it")
	case "foreign":
		c.add(CauseHeldForeign, j.ChangedAt, "it was handed to another queue and waits for word from there")
	}
	if j.ScheduledFor.After(s.now) {
		s.notDue(c)
	}
	if !s.paused.IsZero() {
		c.add(CauseTagPaused, s.paused, "tag %q is paused", j.Tag)
	}
	s.served(c)
	if s.ahead > 0 {
		c.add(CauseBehind, time.Time{}, "%s due jobs of tag %q come first, by priority and due time", many(s.ahead), j.Tag)
	}
	if len(*c) == 0 {
		c.add(CauseNext, j.ScheduledFor, "nothing is wrong: it is due, the first of tag %q, and a worker has a free slot: the next claim takes it", j.Tag)
	}
	if !j.ScheduledFor.After(s.now) {
		s.before(c)
	}
}

// notDue: its due time is yet to come, and what set it.
func (s situation) notDue(c *because) {
	j, e := s.job, s.moved
	switch {
	case e.Type == domain.Retried:
		c.add(CauseRetryLater, j.ScheduledFor, "attempt %d of %d failed (%s) at %s: %s; the next one is due in %s", e.Attempt, j.Policy.MaxAttempts, e.Class,
			clock(e.At), firstLine(j.Error), until(s.now, j.ScheduledFor))
	case e.Type == domain.Snoozed && e.Reason == "no_handler":
		c.add(CauseNoHandlerThere, j.ScheduledFor, "worker %s has no handler for kind %q and put it off at %s; it is due again in %s", e.Actor, j.Kind,
			clock(e.At), until(s.now, j.ScheduledFor))
	case e.Type == domain.Snoozed:
		c.add(CauseSnoozed, j.ScheduledFor, "worker %s put it off at %s%s; it is due again in %s", e.Actor, clock(e.At), because1(e.Reason), until(s.now, j.ScheduledFor))
	default:
		c.add(CauseScheduled, j.ScheduledFor, "it is due in %s", until(s.now, j.ScheduledFor))
	}
}

// served: whether somebody could run it.
func (s situation) served(c *because) {
	j := s.job
	var live, claiming, able, free int
	var silent Worker
	for _, w := range s.workers {
		if !w.serves(j.Tag) {
			continue
		}
		switch {
		case w.Silent():
			if silent.Worker == "" || w.SeenAgo < silent.SeenAgo {
				silent = w
			}
			continue
		case w.State == "stopping":
			live++
			continue
		}
		live++
		claiming++
		if w.handles(j.Kind) {
			able++
			free += max(0, w.Slots-w.Running)
		}
	}
	switch {
	case live == 0 && silent.Worker != "":
		c.add(CauseWorkersSilent, silent.SeenAt, "no worker that serves tag %q has been seen for %s; the last one was %s", j.Tag, short(silent.SeenAgo), silent.Worker)
	case live == 0:
		c.add(CauseNoWorker, time.Time{}, "no worker serves tag %q", j.Tag)
	case claiming == 0:
		c.add(CauseWorkersStopping, time.Time{}, "all %d workers of tag %q are stopping", live, j.Tag)
	case able == 0:
		c.add(CauseNoHandler, time.Time{}, "none of the %d workers of tag %q has a handler for kind %q", claiming, j.Tag, j.Kind)
	case free == 0:
		c.add(CauseSlotsBusy, time.Time{}, "the %d workers that could run it have no free slot", able)
	}
}

// before: how a job that has run before came to wait again.
func (s situation) before(c *because) {
	j, e := s.job, s.moved
	switch e.Type {
	case domain.Reaped:
		c.add(CauseTakenBack, e.At, "the lease of generation %d was lost at %s; %d of %d such restarts are spent", e.Generation, clock(e.At), j.Restarts, j.Policy.RestartLimit)
	case domain.Retried:
		c.add(CauseRetryDue, e.At, "attempt %d of %d failed (%s) at %s: %s", e.Attempt, j.Policy.MaxAttempts, e.Class, clock(e.At), firstLine(j.Error))
	case domain.Released:
		c.add(CauseReleased, e.At, "worker %s gave it back at %s, no attempt spent", e.Actor, clock(e.At))
	case domain.Redriven:
		c.add(CauseRedriven, e.At, "%s redrove it at %s%s", e.Actor, clock(e.At), because1(e.Reason))
	}
}

// running: what is wrong with its run, or that nothing is.
func (s situation) running(c *because) {
	j := s.job
	var owner Worker
	for _, w := range s.workers {
		if w.Worker == j.Worker {
			owner = w
		}
	}
	switch {
	case !j.TimeoutAt.IsZero() && !j.TimeoutAt.After(s.now) && !j.LeaseUntil.Before(j.TimeoutAt):
		c.add(CauseTimedOut, j.TimeoutAt, "its attempt timed out %s ago and no reaper has ended it: is a worker or \"jobledger up\" running?", until(j.TimeoutAt, s.now))
	case !j.LeaseUntil.IsZero() && !j.LeaseUntil.After(s.now):
		c.add(CauseLeaseOver, j.LeaseUntil, "the lease of %s ended %s ago and no reaper has taken it back: is a worker or \"jobledger up\" running?", j.Worker,
			until(j.LeaseUntil, s.now))
	case j.LeaseUntil.IsZero():
		c.add(CauseVerdict, j.StartedAt, "it runs without a lease (on_lost_lease is reconcile): only a verdict ends it")
	case owner.Worker == "":
		c.add(CauseOwnerSilent, j.LeaseUntil, "worker %s is not in the list of workers; unless it pings, others take the job over when the lease ends, in %s", j.Worker,
			until(s.now, j.LeaseUntil))
	case owner.Silent():
		c.add(CauseOwnerSilent, j.LeaseUntil, "worker %s was last seen %s ago; unless it pings, others take the job over when the lease ends, in %s", j.Worker,
			short(owner.SeenAgo), until(s.now, j.LeaseUntil))
	}
	if j.CanceledBy != "" {
		c.add(CauseCancelRequested, s.asked.At, "%s asked to cancel it%s; its worker hears of that with the next ping", j.CanceledBy, because1(j.CancelReason))
	}
	if len(*c) == 0 {
		c.add(CauseRunning, j.StartedAt, "nothing is wrong: worker %s has run it for %s, the lease lasts another %s, the time-out comes in %s", j.Worker,
			until(j.StartedAt, s.now), until(s.now, j.LeaseUntil), until(s.now, j.TimeoutAt))
	}
	if !j.ProgressAt.IsZero() {
		c.add(CauseProgress, j.ProgressAt, "its handler last reported progress %s ago", until(j.ProgressAt, s.now))
	}
}

// ended: how, and of a dead letter why.
func (s situation) ended(c *because) {
	j := s.job
	switch {
	case j.Outcome == domain.Success:
		c.add(CauseSucceeded, j.EndedAt, "it ended with success on attempt %d", j.Attempt)
	case j.Outcome == domain.Canceled:
		c.add(CauseCanceled, j.EndedAt, "%s canceled it%s", j.CanceledBy, because1(j.CancelReason))
	case j.Reason == domain.ReasonPermanent:
		c.add(CausePermanent, j.EndedAt, "dead letter: the handler said that trying again is pointless: %s", firstLine(j.Error))
	case j.Reason == domain.ReasonInvalidInput:
		c.add(CauseInvalidInput, j.EndedAt, "dead letter: its input can never work: %s", firstLine(j.Error))
	case j.Reason == domain.ReasonAttemptsExhausted:
		c.add(CauseExhausted, j.EndedAt, "dead letter: attempt %d of %d failed (%s): %s", j.Attempt, j.Policy.MaxAttempts, j.Class, firstLine(j.Error))
	case j.Reason == domain.ReasonRestartLimit:
		c.add(CauseRestartLimit, j.EndedAt, "dead letter: it lost its lease after %d forgiven times; the last owner was %s", j.Restarts, j.Worker)
	case j.Reason == domain.ReasonLeaseLost:
		c.add(CauseLeaseLost, j.EndedAt, "dead letter: %s lost the lease, and the policy says that running it again is not safe", j.Worker)
	default:
		c.add(CauseFailed, j.EndedAt, "dead letter: %s (%s): %s", j.Reason, j.Class, firstLine(j.Error))
	}
}

func because1(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

// firstLine is the first line of an error text.
func firstLine(text string) string {
	line, _, cut := strings.Cut(strings.TrimSpace(text), "\n")
	const most = 200
	if len(line) > most {
		line, cut = strings.ToValidUTF8(line[:most], ""), true
	}
	if line == "" {
		return "no error text"
	}
	if cut {
		line += " ..."
	}
	return line
}

func many(n int) string {
	if n > maxAhead {
		return fmt.Sprintf("more than %d", maxAhead)
	}
	return fmt.Sprint(n)
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05Z") }

// until is the time between two instants, rounded to what people want to know.
func until(from, to time.Time) string { return short(to.Sub(from)) }

func short(d time.Duration) string {
	switch {
	case d >= time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	case d >= time.Second:
		return d.Round(time.Second).String()
	}
	return d.Round(time.Millisecond).String()
}
