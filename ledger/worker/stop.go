package worker

import (
	"context"
	"log/slog"
	"time"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

const (
	// flushTimeout bounds how long a stop waits for outcomes to be committed; a lease that is shorter
	// does, too: behind its end they would be refused.
	flushTimeout = 10 * time.Second
	// leaveTimeout bounds what a stop tells people.
	leaveTimeout = 2 * time.Second
)

// stop brings a worker that claims no more to its end; see Run.
func (w *Worker) stop(life context.Context) error {
	w.setState(ledger.Stopping)
	w.releaseReady()
	if w.countRunning() > 0 {
		w.announce(life)
	}
	if !w.wait(life, w.cfg.StopTimeout, w.hurried, w.idle) {
		w.interruptAll(ErrStopping)
		w.wait(life, w.cfg.StopGrace, nil, w.idle)
	}
	if life.Err() != nil {
		return context.Cause(life)
	}
	abandoned := w.abandon()
	w.wait(life, min(flushTimeout, w.cfg.Lease), nil, w.settled)
	if life.Err() != nil {
		return context.Cause(life)
	}
	if unreported := w.countLeases(); abandoned > 0 || unreported > 0 {
		w.log.LogAttrs(life, slog.LevelWarn, "stopped without the end of everything",
			slog.Int("abandoned_handlers", abandoned), slog.Int("unreported_outcomes", unreported))
		return &StopError{Abandoned: abandoned, Unreported: unreported}
	}
	return nil
}

// announce shows people at once that the worker stops. It matters to nobody else, so an error is let go.
func (w *Worker) announce(life context.Context) {
	ctx, cancel := context.WithTimeout(life, leaveTimeout)
	defer cancel()
	_ = w.beat(ctx)
}

// wait returns true as soon as done does, false after d, when enough is closed or when the worker is killed.
func (w *Worker) wait(life context.Context, d time.Duration, enough <-chan struct{}, done func() bool) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	for !done() {
		select {
		case <-w.pulse:
		case <-t.C:
			return done()
		case <-enough:
			return done()
		case <-life.Done():
			return false
		}
	}
	return true
}

func (w *Worker) idle() bool    { return w.countRunning() == 0 }
func (w *Worker) settled() bool { return w.countLeases() == 0 }

func (w *Worker) countRunning() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running
}

func (w *Worker) countLeases() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.leases)
}

// releaseReady gives back what was claimed but not started.
func (w *Worker) releaseReady() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.ready {
		w.report(l, &outcome{verb: domain.VerbRelease})
	}
	w.ready = nil
}

// interruptAll tells every handler to stop.
func (w *Worker) interruptAll(cause error) {
	w.mu.Lock()
	var running []*lease
	for l := range w.leases {
		if l.outcome == nil {
			running = append(running, l)
		}
	}
	w.mu.Unlock()
	for _, l := range running {
		w.interrupt(l, cause)
	}
}

// abandon releases the jobs of handlers that have not returned, so that others start them at once. A
// handler that completes its job in a transaction of its own keeps it. It returns how many handlers
// there are.
func (w *Worker) abandon() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for l := range w.leases {
		if l.outcome != nil {
			continue
		}
		n++
		if l.inTx || l.lost {
			delete(w.leases, l) // the transaction, or the reaper, decides
			if l.end != nil {
				l.end.Stop()
			}
			continue
		}
		w.report(l, &outcome{verb: domain.VerbRelease})
	}
	return n
}
