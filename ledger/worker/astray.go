package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/projections"
)

// astray knows of claims whose answer was lost: their jobs are this worker's, and run nowhere.
type astray struct {
	lost  bool      // the last claim may have been carried out
	since time.Time // the last job that was claimed with an answer, by the database's clock
	named bool      // the worker's name was given: leases of a process before it may go by it
}

// known notes a job that has arrived.
func (a *astray) known(job ledger.Claimed) {
	if job.StartedAt.After(a.since) {
		a.since = job.StartedAt
	}
}

// giveBackAstray releases the jobs of a claim whose answer was lost, so that they need not wait for the end of
// their leases: those of this worker that were claimed after the last ones that it got, for it makes one
// claim at a time. Jobs of a claim that still runs in the server are not seen; they come back with their leases.
func (w *Worker) giveBackAstray(ctx context.Context) error {
	if !w.astray.lost || w.astray.named && w.astray.since.IsZero() {
		return nil
	}
	jobs, err := w.l.Read().List(ctx, projections.Filter{State: domain.Running, Worker: w.cfg.Name, Limit: domain.MaxBatch})
	if err != nil {
		return fmt.Errorf("look for jobs of a claim whose answer was lost: %w", err)
	}
	var back []ledger.Held
	for _, j := range jobs {
		if j.StartedAt.After(w.astray.since) {
			back = append(back, ledger.Held{JobID: j.ID, Generation: j.Generation})
		}
	}
	answers, err := w.l.Release(ctx, w.cfg.Name, back...)
	if err != nil {
		return err
	}
	w.astray.lost = false
	n := 0
	for _, a := range answers {
		if a.Err == nil {
			n++
		} else if errors.Is(a.Err, domain.ErrContended) {
			w.astray.lost = true
		}
	}
	w.stats.astray.Add(int64(n))
	if ok, _ := w.sparse.admit(); ok && n > 0 {
		w.log.LogAttrs(ctx, slog.LevelWarn, "gave back the jobs of a claim whose answer was lost", slog.Int("jobs", n))
	}
	return nil
}

// leaveAstray is giveBackAstray at the stop. If it doesn't work then, the leases end.
func (w *Worker) leaveAstray(life context.Context) {
	ctx, cancel := context.WithTimeout(life, leaveTimeout)
	defer cancel()
	_ = w.giveBackAstray(ctx)
}
