package ledger

import (
	"context"
	"fmt"

	"github.com/jobledger/jobledger/domain"
)

// WorkerState is what a worker says of itself.
type WorkerState string

// The states of a worker.
const (
	Working  WorkerState = "working"  // claims and runs jobs
	Sleeping WorkerState = "sleeping" // found nothing to claim
	Stopping WorkerState = "stopping" // claims no more
)

// WorkerSeen is what is shown about a worker.
type WorkerSeen struct {
	Worker      string
	Tags, Kinds []string
	Host        string
	PID         int
	Slots       int // how many handlers it runs at once
	Running     int // how many it runs now
	State       WorkerState
}

// WorkerSeen tells the ledger that a worker is alive. It keeps no lease: that is Ping's.
func (l *Ledger) WorkerSeen(ctx context.Context, w WorkerSeen) error {
	if err := w.check(); err != nil {
		return fmt.Errorf("worker seen: %w", err)
	}
	_, err := l.pool.Exec(ctx, l.stmts["worker_seen"], w.Worker, append([]string{}, w.Tags...), append([]string{}, w.Kinds...), w.Host, w.PID, w.Slots, w.Running, string(w.State))
	if err != nil {
		return fmt.Errorf("worker seen: %w", fromPostgres(err))
	}
	return nil
}

func (w WorkerSeen) check() error {
	if err := domain.CheckText("worker", w.Worker, domain.MaxActorBytes); err != nil {
		return err
	}
	if err := domain.CheckNames("tags", w.Tags, 0); err != nil {
		return err
	}
	if err := domain.CheckNames("kinds", w.Kinds, 0); err != nil {
		return err
	}
	if err := domain.CheckText("host", w.Host, domain.MaxNameBytes); err != nil {
		return err
	}
	for _, c := range []struct {
		field string
		n     int
	}{{"pid", w.PID}, {"slots", w.Slots}, {"running", w.Running}} {
		if err := domain.CheckCount(c.field, c.n); err != nil {
			return err
		}
	}
	switch w.State {
	case Working, Sleeping, Stopping:
		return nil
	}
	return &domain.FieldError{Field: "state", Value: w.State, Want: "working, sleeping or stopping"}
}

// WorkerGone removes a worker that has stopped in good order, and those not seen for a day.
func (l *Ledger) WorkerGone(ctx context.Context, worker string) error {
	if _, err := l.pool.Exec(ctx, l.stmts["worker_gone"], worker); err != nil {
		return fmt.Errorf("worker gone: %w", fromPostgres(err))
	}
	return nil
}

// ExtendEvents makes sure that there are event partitions ahead of the newest event. `migrate up`
// calls it, and the reaper once an hour.
func (l *Ledger) ExtendEvents(ctx context.Context) error {
	if _, err := l.pool.Exec(ctx, l.stmts["extend_events"]); err != nil {
		return fmt.Errorf("extend events: %w", fromPostgres(err))
	}
	return nil
}
