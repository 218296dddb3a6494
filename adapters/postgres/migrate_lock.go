package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// lockTimeout is how long a migration waits for one lock on something that workers use, and so how long they stall
	// behind it in one try. It must be far below the shortest lease.
	lockTimeout = 200 * time.Millisecond
	// turnTimeout is how long it waits at a time for another migrator. Nobody stalls behind that.
	turnTimeout = 5 * time.Second
	// The pauses between two tries leave the workers at least twice the time that a try may cost them.
	pauseFirst, pauseLongest = 500 * time.Millisecond, 5 * time.Second
	// noticeEvery is how often a wait that goes on for the same reason is told of.
	noticeEvery = 15 * time.Second
)

// LockedError says that a migration gave up because others held what it must lock. Nothing of that step was done.
type LockedError struct {
	Waited   time.Duration
	Blockers []Blocker // who was seen to hold it last; empty if they were gone before they were seen
	Err      error     // what the database said
}

// Blocker is a session that keeps a migration waiting.
type Blocker struct {
	PID         int32 // 0: a prepared transaction (pg_prepared_xacts)
	Application string
	User        string
	State       string        // as in pg_stat_activity, such as "idle in transaction"
	Age         time.Duration // of its transaction
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("gave up after %s of tries: %s (%v); nothing of this step was done", e.Waited.Round(100*time.Millisecond), e.holders(), e.Err)
}

func (e *LockedError) Unwrap() error { return e.Err }

// Hint says what to do about it.
func (e *LockedError) Hint() string {
	for _, b := range e.Blockers {
		if b.PID != 0 {
			return fmt.Sprintf("run it again when that session is done, or end it: SELECT pg_terminate_backend(%d)", b.PID)
		}
	}
	return "run it again; pg_stat_activity and pg_locks tell who holds locks"
}

// holders names who holds the lock.
func (e *LockedError) holders() string {
	if len(e.Blockers) == 0 {
		return "a lock is held by others"
	}
	var names []string
	for _, b := range e.Blockers {
		names = append(names, b.String())
	}
	return "a lock is held by " + strings.Join(names, ", ")
}

func (b Blocker) String() string {
	if b.PID == 0 {
		return "a prepared transaction"
	}
	about := []string{}
	if b.Application != "" {
		about = append(about, b.Application)
	}
	if b.User != "" {
		about = append(about, "user "+b.User)
	}
	if b.State != "" {
		about = append(about, b.State)
	}
	if b.Age > 0 {
		about = append(about, "transaction open for "+b.Age.Round(time.Second).String())
	}
	return fmt.Sprintf("pid %d (%s)", b.PID, strings.Join(about, ", "))
}

// insist runs f in a savepoint, and again as long as others are in its way and the patience lasts. Each lock is waited for
// for at most timeout; going back to the savepoint gives all of them free, so that those who have queued behind
// them get on during the pause.
func (m *migrator) insist(ctx context.Context, tx pgx.Tx, what string, timeout time.Duration, f func(context.Context, pgx.Tx) error) error {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = pauseFirst, pauseLongest
	var waited time.Duration
	var seen []Blocker
	told := notices{tell: m.notice}
	for {
		began := time.Now()
		looking := m.watch.look(ctx, m.backend)
		err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", timeout.Milliseconds())); err != nil {
				return err
			}
			return f(ctx, tx)
		})
		blockers := looking()
		if err == nil || !inTheWay(err) {
			return err
		}
		if len(blockers) > 0 {
			seen = blockers
		}
		locked := &LockedError{Blockers: seen, Err: err}
		pause := pauses.NextBackOff()
		tried := time.Since(began)
		if tried+pause > m.patience {
			locked.Waited = waited + tried
			return locked
		}
		m.patience -= tried + pause
		waited += tried + pause
		told.waiting(what, locked)
		if err := pauseFor(ctx, pause); err != nil {
			return err
		}
	}
}

// inTheWay reports whether err means that others were in the way, so that the same may work later. The last two are what
// sessions get that create or replace the same thing at once without our lock, such as a person's by hand.
func inTheWay(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	switch pg.Code {
	case pgerrcode.LockNotAvailable, pgerrcode.DeadlockDetected, pgerrcode.SerializationFailure:
		return true
	case pgerrcode.UniqueViolation:
		return pg.SchemaName == "pg_catalog"
	case pgerrcode.InternalError:
		return strings.HasPrefix(pg.Message, "tuple concurrently ")
	}
	return false
}

func pauseFor(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// notices tells of a wait once for each reason, and now and then while it lasts.
type notices struct {
	tell func(string)
	last string
	at   time.Time
}

func (n *notices) waiting(what string, e *LockedError) {
	sessions := fmt.Sprint(pids(e.Blockers))
	if sessions == n.last && time.Since(n.at) < noticeEvery {
		return
	}
	n.last, n.at = sessions, time.Now()
	n.tell(fmt.Sprintf("%s: %s; trying again", what, e.holders()))
}

func pids(blockers []Blocker) []int32 {
	var out []int32
	for _, b := range blockers {
		out = append(out, b.PID)
	}
	return out
}
