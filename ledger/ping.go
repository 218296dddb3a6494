package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/domain"
)

// Ping is one lease to extend.
type Ping struct {
	Held
	// Progress, when not nil, is stored for people to see and for the next attempt to start from: a
	// value that marshals to JSON of at most 4 KiB. What cannot be stored as it is gets substitutes and
	// a flag, as a result does. Send it only when it has changed.
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
// the lease stands as it was. It never waits for a lock. If the connection breaks it is sent again, so that
// one call may leave two events.
func (l *Ledger) Ping(ctx context.Context, p PingParams) ([]Answer, error) {
	return l.ping(ctx, poolQuerier{l.pool}, p)
}

// beginOwn begins a transaction of ours that, if we are frozen in the middle of it, is held for five seconds at most:
// nobody can take back a job whose row is locked.
const beginOwn = `BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '5s'`

// PingWhenConnected is Ping for a caller whose leases change while it waits for a connection: choose is called once
// there is one, in the pool as well as in a pooler behind it, and returns what is to be pinged. From then on it waits
// for nobody. It returns no answers if choose returns nothing.
func (l *Ledger) PingWhenConnected(ctx context.Context, p PingParams, choose func() []Ping) (answers []Answer, err error) {
	var refused error
	err = pgx.BeginTxFunc(ctx, l.pool, pgx.TxOptions{BeginQuery: beginOwn}, func(tx pgx.Tx) error {
		p.Pings = choose()
		answers, refused = l.ping(ctx, ownTx{tx}, p)
		return refused
	})
	switch {
	case refused != nil:
		return nil, refused
	case err != nil:
		return nil, fmt.Errorf("ping: %w", err)
	}
	return answers, nil
}

func (l *Ledger) ping(ctx context.Context, q querier, p PingParams) ([]Answer, error) {
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
	progress, altered, salts := make([]*string, len(p.Pings)), make([]bool, len(p.Pings)), newSalts(len(p.Pings))
	for i, ping := range p.Pings {
		held[i] = ping.Held
		progress[i], altered[i] = outputJSON(ping.Progress, domain.MaxProgressBytes)
	}
	if err := checkHeld(p.Worker, held); err != nil {
		return nil, fmt.Errorf("ping: %w", err)
	}
	jobs, generations := split(held)
	return l.call(ctx, q, domain.VerbPing, held, len(held), p.Worker, jobs, generations, p.Lease, progress, salts, noneAsNil(altered))
}

// checkHeld is the door of every fenced verb.
func checkHeld(worker string, held []Held) error {
	if err := domain.CheckText("worker", worker, domain.MaxActorBytes); err != nil {
		return err
	}
	return domain.CheckBatch(len(held))
}
