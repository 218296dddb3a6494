package ledger

import (
	"context"
	"fmt"
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
	_, err := l.pool.Exec(ctx, l.stmts["worker_seen"], w.Worker, w.Tags, w.Kinds, w.Host, w.PID, w.Slots, w.Running, string(w.State))
	if err != nil {
		return fmt.Errorf("worker seen: %w", fromPostgres(err))
	}
	return nil
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
