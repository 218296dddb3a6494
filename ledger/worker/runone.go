package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/jobledger/jobledger/ledger"
)

// ErrNoHandler is in Ran.Err when the worker has no handler for the job's kind and has put it off.
var ErrNoHandler = errors.New("no handler for this kind")

// Ran is a run that RunOne has brought to its end.
type Ran struct {
	Info
	Args json.RawMessage
	// Result and Err are what the handler returned, as they were; a panic is an error with its stack.
	// What became of the job is in the ledger: see Ledger.Job.
	Result any
	Err    error
}

// RunOne claims the next due job of the worker's tags, runs it and returns once its outcome is
// committed. It returns nil when nothing is due. It is for tests (package ledgertest) and for processes
// that are woken from outside, one job at a time; it may be called again and again, but not while Run
// or another RunOne is at work.
//
// What Run does for one job it does too: jobs of its tags whose lease or time-out is over are taken
// back first, the lease is pinged, progress stored, a cancellation heard of. The end of ctx stops it as
// it stops Run. An error says that the database could not be asked, or, as a *StopError, that the run
// could not be brought to its end.
func (w *Worker) RunOne(ctx context.Context) (*Ran, error) {
	if !w.started.CompareAndSwap(false, true) {
		return nil, errors.New("run one job: the worker is at work, or has run")
	}
	defer w.started.Store(false)
	if len(w.handlers) == 0 {
		return nil, errors.New("run one job: the worker has no handler")
	}
	w.wrap()
	defer w.setState(ledger.Working)
	life, die := context.WithCancelCause(context.WithoutCancel(ctx))
	defer die(nil)
	w.reapOwn(life)
	l, err := w.claimOne(ctx, life)
	if l == nil {
		return nil, err
	}
	refused := w.stats.refused.Load()
	err = w.runClaimed(ctx, life, die, l)
	return w.ran(life, l, w.stats.refused.Load() > refused), err
}

// runClaimed runs what has been claimed, with the loops that it needs, until the outcome is committed.
func (w *Worker) runClaimed(ctx, life context.Context, die context.CancelCauseFunc, l *lease) error {
	serving, stopServing := context.WithCancel(life)
	var loops sync.WaitGroup
	defer loops.Wait()
	defer stopServing()
	loops.Go(func() {
		select {
		case <-w.killed:
			die(ErrKilled)
		case <-serving.Done():
		}
	})
	w.serve(serving, &loops)
	w.startReady(life)
	w.waitIdle(ctx, life)
	err := w.stop(life)
	if ctx.Err() != nil {
		w.leave(life) // the stop may have told people of this worker
	}
	w.waitPing(life, l)
	return err
}

// waitPing waits for the ping of a lease that is on its way: cut off, it would go on in the database and keep the
// reaper from the row.
func (w *Worker) waitPing(life context.Context, l *lease) {
	w.mu.Lock()
	pinging := l.pinging
	w.mu.Unlock()
	if pinging == nil {
		return
	}
	select {
	case <-pinging:
	case <-life.Done():
	}
}

// claimOne claims one job, once it could: while others hold locks on what is due, it asks again.
func (w *Worker) claimOne(ctx, life context.Context) (*lease, error) {
	for ctx.Err() == nil {
		claims, err := w.claim(life, 1)
		if err != nil {
			return nil, fmt.Errorf("run one job: %w", err)
		}
		w.mu.Lock()
		if len(w.ready) > 0 {
			l := w.ready[0]
			w.mu.Unlock()
			return l, nil
		}
		w.mu.Unlock()
		if !claims.Contended {
			return nil, nil
		}
		sleep(ctx, contendedLongest)
	}
	return nil, fmt.Errorf("run one job: %w", context.Cause(ctx))
}

// waitIdle waits until no handler runs, or until something tells the worker to stop.
func (w *Worker) waitIdle(ctx, life context.Context) {
	for !w.idle() {
		select {
		case <-w.pulse:
		case <-ctx.Done():
			return
		case <-life.Done():
			return
		}
	}
}

// ran tells of a run. One that was left to the reaper, or whose outcome was refused since it came too late, is taken back
// now, if the database agrees.
func (w *Worker) ran(life context.Context, l *lease, refused bool) *Ran {
	w.mu.Lock()
	r := &Ran{Info: w.jobOf(l).Info, Args: l.job.Args}
	if w.running == 0 { // else the handler has been abandoned and still runs
		r.Result, r.Err = l.result, l.err
	}
	left := refused || l.outcome == nil && !l.inTx
	_, known := w.handlers[l.job.Kind]
	w.mu.Unlock()
	if !known {
		r.Err = fmt.Errorf("kind %q: %w", l.job.Kind, ErrNoHandler)
	}
	if left {
		w.reapOwn(life)
	}
	return r
}

// serve starts the loops that bring runs to their end: pings and outcomes.
func (w *Worker) serve(ctx context.Context, loops *sync.WaitGroup) {
	loops.Go(func() { w.pingLoop(ctx) })
	loops.Go(func() { w.slowLoop(ctx) })
	for _, verb := range outcomeVerbs {
		loops.Go(func() { w.laneLoop(ctx, w.lanes[verb]) })
	}
}
