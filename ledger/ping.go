package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jobledger/jobledger/domain"
)

// Ping is one lease to extend.
type Ping struct {
	Held
	// Progress, when not nil, is stored for people to see and for the next attempt to start from: a
	// value that marshals to JSON of at most 4 KiB. Send it only when it has changed.
	Progress any
}

// PingParams extends leases of one worker.
type PingParams struct {
	Worker string
	// Lease is how long they last from the database's now. 1 s to 24 h, default 60 s.
	Lease time.Duration
	Pings []Ping
}

// Ping extends leases and reports, per job, whether cancellation was asked for. Answers come in the
// order of p.Pings. An answer whose Err is ErrFenced, ErrLeaseOver, ErrTimedOut, ErrEnded or
// ErrNotFound means that the caller has lost the job and must stop working on it; ErrBusy means that
// the lease stands as it was. It never waits for a lock.
func (l *Ledger) Ping(ctx context.Context, p PingParams) ([]Answer, error) {
	if len(p.Pings) == 0 {
		return nil, nil
	}
	if p.Lease == 0 {
		p.Lease = domain.DefaultLease
	}
	if err := domain.CheckLease(p.Lease); err != nil {
		return nil, fmt.Errorf("ping: %w", err)
	}
	held := make([]Held, len(p.Pings))
	progress, salts := make([]*string, len(p.Pings)), newSalts(len(p.Pings))
	for i, ping := range p.Pings {
		text, err := body("progress", ping.Progress, domain.MaxProgressBytes)
		if err != nil {
			return nil, fmt.Errorf("ping: job %d: %w", i, atIndex(err, i))
		}
		held[i], progress[i] = ping.Held, text
	}
	if err := checkHeld(p.Worker, held); err != nil {
		return nil, fmt.Errorf("ping: %w", err)
	}
	jobs, generations := split(held)
	return l.call(ctx, pgxQuerier{l.pool}, domain.VerbPing, held, len(held), p.Worker, jobs, generations, p.Lease, progress, salts)
}

// checkHeld is the door of every fenced verb.
func checkHeld(worker string, held []Held) error {
	if err := domain.CheckText("worker", worker, domain.MaxActorBytes); err != nil {
		return err
	}
	return domain.CheckBatch(len(held))
}
