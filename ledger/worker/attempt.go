package worker

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"runtime/debug"
	"slices"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// attempt runs one handler to its end, be it a panic, and hands the outcome on.
func (w *Worker) attempt(ctx, life context.Context, l *lease, handle Handler) {
	defer l.cancel(nil)
	if l.job.Timeout > 0 {
		// Counted from the answer of the claim, the local end of the attempt is never before the
		// database's: what is over here is over there.
		deadline, stop := context.WithDeadlineCause(ctx, l.arrived.Add(l.job.Timeout), ErrTimedOut)
		defer stop()
		defer context.AfterFunc(deadline, func() {
			if context.Cause(deadline) == ErrTimedOut {
				w.interrupt(l, ErrTimedOut)
			}
		})()
		ctx = deadline
	}
	// What stands here if the handler ends its goroutine (runtime.Goexit) instead of returning.
	result, err := any(nil), error(&panicError{value: "the handler ended its goroutine"})
	defer func() {
		if v := recover(); v != nil {
			result, err = nil, &panicError{value: v, stack: debug.Stack()}
		}
		l.result, l.err = result, err
		w.over(l, w.judge(ctx, l, result, err))
		w.freeSlot(life)
	}()
	result, err = handle(ctx, w.jobOf(l))
}

func (w *Worker) jobOf(l *lease) Job[json.RawMessage] {
	j := l.job
	return Job[json.RawMessage]{Args: j.Args, Info: Info{
		ID: j.JobID, Kind: j.Kind, Tag: j.Tag, Priority: j.Priority, Attempt: j.Attempt, Restarts: j.Restarts, Generation: j.Generation,
		Facts: j.Facts, LastError: j.LastError, LastProgress: j.Progress,
		EnqueuedAt: j.EnqueuedAt, ScheduledFor: j.ScheduledFor, StartedAt: j.StartedAt,
		w: w, lease: l,
	}}
}

// judge says what is to be reported of a run; nil for nothing.
//
// A success is always reported, even when the lease is lost: the database decides, and a refusal
// leaves a rejected event that shows that a late worker was there. An error is not reported where the
// database would refuse it for certain: then the reaper ends the run, with class timeout where it
// timed out. After a stop, or when the worker was cut off, an error that says nothing more gives the
// job back unspent: the handler was interrupted, it did not fail.
func (w *Worker) judge(ctx context.Context, l *lease, result any, err error) *outcome {
	w.mu.Lock()
	inTx, lost, cause := l.inTx, l.lost, l.cause
	w.mu.Unlock()
	if cause == nil {
		cause = context.Cause(ctx)
	}
	if err == nil {
		if inTx {
			w.stats.succeeded.Add(1)
			return nil
		}
		return &outcome{verb: domain.VerbComplete, result: marshalled(result)}
	}
	var panicked *panicError
	if errors.As(err, &panicked) {
		w.stats.panics.Add(1)
		w.tell(slog.LevelError, "handler panicked", l, slog.Any("panic", panicked.value))
	}
	var v *verdict
	switch {
	case cause == ErrTimedOut:
		w.stats.timedOut.Add(1)
		w.reaper.hurry()
		return nil
	case lost || cause == ErrKilled:
		return nil
	case panicked != nil:
		return &outcome{verb: domain.VerbFail, failure: ledger.Failure{Class: domain.ClassPanic, Error: err.Error()}}
	case errors.As(err, &v) && v.snooze != nil:
		return &outcome{verb: domain.VerbSnooze, delay: *v.snooze, reason: v.reason}
	case v != nil:
		class := v.class
		if !slices.Contains(domain.Classes, class) {
			class = domain.ClassTransient
		}
		return &outcome{verb: domain.VerbFail, failure: ledger.Failure{Class: class, Error: err.Error(), Permanent: v.permanent, After: v.after}}
	case cause == ErrStopping || cause == ErrLeaseLost:
		return &outcome{verb: domain.VerbRelease}
	}
	return &outcome{verb: domain.VerbFail, failure: ledger.Failure{Class: domain.ClassTransient, Error: err.Error()}}
}

// marshalled makes JSON of a result in the handler's goroutine: the one that reports is busy enough,
// and the handler may go on to change what it returned. What does not marshal is left to the ledger.
func marshalled(result any) any {
	switch r := result.(type) {
	case nil, json.RawMessage:
		return result
	case ledger.Altered:
		return ledger.Altered{Value: marshalled(r.Value)}
	}
	text, err := json.Marshal(result)
	switch {
	case err != nil:
		return result
	case ledger.Substituted(result, text):
		return ledger.Altered{Value: json.RawMessage(text)}
	}
	return json.RawMessage(text)
}

// over takes up the outcome of a run; nil means that there is nothing to report. A stop that did not
// wait for the handler has decided already.
func (w *Worker) over(l *lease, o *outcome) {
	w.mu.Lock()
	_, held := w.leases[l]
	abandoned := l.outcome != nil || !held
	if !abandoned && o != nil {
		w.report(l, o)
	}
	w.mu.Unlock()
	if !abandoned && o == nil {
		w.settle(l)
	}
}

// freeSlot lets the next job start.
func (w *Worker) freeSlot(life context.Context) {
	w.mu.Lock()
	w.running--
	w.mu.Unlock()
	w.startReady(life)
	w.wake()
}
