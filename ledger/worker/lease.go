package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jobledger/jobledger/ledger"
)

// lease is a job that this worker holds, from the claim until the ledger has the outcome. Its fields
// are guarded by Worker.mu, except job and arrived, which never change.
type lease struct {
	job     ledger.Claimed
	arrived time.Time // when the claim's answer was here

	// renewed is when the statement was sent that last extended the lease: the database read its
	// clock later than that, so the lease lasts at least from there.
	renewed time.Time
	end     *time.Timer             // stops the handler in time; nil where there is no lease to lose
	cancel  context.CancelCauseFunc // nil until the handler starts
	cause   error                   // why the handler was told to stop; the first one stays
	lost    bool                    // the database said so: no ping, and no report but of success

	// calling: a ping or the outcome is on its way. One call at a time, or a ping that arrives behind
	// the outcome would be refused and leave a rejected event.
	calling  bool
	pinging  <-chan struct{} // the ping that is on its way, if it is one; closed when it is over
	progress json.RawMessage
	altered  bool // progress is not all that the handler said
	unsent   bool // progress is newer than what the ledger has
	inTx     bool // the handler completes it itself: no ping

	// What the handler returned, for RunOne; written by its goroutine before the slot is free.
	result any
	err    error

	outcome *outcome // nil while the handler runs
	stuck   bool     // the outcome was sent once in vain: ping the lease until it gets through
}

func (l *lease) held() ledger.Held { return l.job.Held }

// logged names the lease in log lines.
func (l *lease) logged() slog.Attr {
	return slog.Group("job", slog.String("id", l.job.JobID.String()), slog.String("kind", l.job.Kind),
		slog.Int("generation", l.job.Generation))
}

// admit takes up a job that was claimed by a statement sent at sent.
func (w *Worker) admit(job ledger.Claimed, sent time.Time) {
	l := &lease{job: job, arrived: time.Now(), renewed: sent}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leases[l] = struct{}{}
	w.ready = append(w.ready, l)
	if job.Lease > 0 {
		l.end = time.AfterFunc(w.untilEnd(l), func() { w.cutOff(l) })
	}
}

// untilEnd is how long l may go on without a ping.
func (w *Worker) untilEnd(l *lease) time.Duration {
	return time.Until(l.renewed.Add(l.job.Lease - w.cfg.Margin))
}

// extend notes that a statement sent at sent has extended the lease.
func (w *Worker) extend(l *lease, sent time.Time) {
	l.renewed = sent
	if l.end != nil && l.cause == nil {
		l.end.Reset(w.untilEnd(l))
	}
}

// cutOff runs when no ping has got through in time.
func (w *Worker) cutOff(l *lease) {
	w.mu.Lock()
	_, held := w.leases[l]
	// A ping that came through just now has set the timer anew.
	late := held && w.untilEnd(l) <= 0
	w.mu.Unlock()
	if late {
		w.interrupt(l, ErrLeaseLost)
	}
}

// interrupt tells a handler to stop, once. A job that waits for its slot is not begun any more.
func (w *Worker) interrupt(l *lease, cause error) {
	w.mu.Lock()
	if l.cause != nil {
		w.mu.Unlock()
		return
	}
	l.cause = cause
	reporting := l.outcome != nil
	if l.cancel != nil {
		l.cancel(cause)
	}
	i := slices.Index(w.ready, l)
	if i >= 0 {
		w.ready = slices.Delete(w.ready, i, i+1)
	}
	w.mu.Unlock()
	if i >= 0 {
		w.over(l, w.judge(context.Background(), l, nil, cause))
	}
	switch cause {
	case ErrLeaseLost:
		w.stats.lost.Add(1)
		what := "lease is lost: its handler is told to stop"
		if reporting {
			what = "lease ends before its outcome could be committed"
		}
		w.tell(slog.LevelWarn, what, l)
	case ErrTimedOut:
		w.tell(slog.LevelWarn, "attempt timed out", l, slog.Duration("timeout", l.job.Timeout))
	}
}

// setProgress notes what the next ping shall carry.
func (w *Worker) setProgress(l *lease, text json.RawMessage, altered bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !bytes.Equal(l.progress, text) {
		l.progress, l.altered, l.unsent = bytes.Clone(text), altered, true
	}
}

// enterTx keeps pings away from a lease that its handler is about to complete in a transaction, once
// the one that is on its way is over: behind the commit it would be refused.
func (w *Worker) enterTx(ctx context.Context, l *lease) error {
	for {
		w.mu.Lock()
		pinging := l.pinging
		if l.outcome != nil {
			w.mu.Unlock()
			return fmt.Errorf("complete job %s: the worker has released it: %w", l.job.JobID, ErrStopping)
		}
		l.inTx = pinging == nil
		w.mu.Unlock()
		if pinging == nil {
			return nil
		}
		select {
		case <-pinging:
		case <-ctx.Done():
			return fmt.Errorf("complete job %s: %w", l.job.JobID, context.Cause(ctx))
		}
	}
}

// leaveTx takes enterTx back: the handler's call was refused.
func (w *Worker) leaveTx(l *lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l.inTx = false
}

// settle gives a lease up: the ledger has its outcome, or never will.
func (w *Worker) settle(l *lease) {
	w.mu.Lock()
	if _, held := w.leases[l]; held {
		delete(w.leases, l)
		if l.outcome != nil {
			w.reported--
		}
		if l.end != nil {
			l.end.Stop()
		}
	}
	w.mu.Unlock()
	w.wake()
}

// wake lets the loop of Run look again.
func (w *Worker) wake() {
	select {
	case w.pulse <- struct{}{}:
	default:
	}
}
