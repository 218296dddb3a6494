package pgtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// waitPoll is how often a condition is looked at.
const waitPoll = 5 * time.Millisecond

// waitTimeout bounds how long a condition may take to come true.
const waitTimeout = 30 * time.Second

// WaitBlocked returns once the backend waits for a lock that another session holds. The id of a backend is
// conn.PgConn().PID(). The test fails if that doesn't happen within 30 s.
func (db *DB) WaitBlocked(t testing.TB, pid uint32) {
	t.Helper()
	const query = `SELECT cardinality(pg_blocking_pids($1)) > 0`
	db.WaitTrue(t, fmt.Sprintf("backend %d is blocked", pid), query, int32(pid))
}

// WaitBlockedBy returns once at least n backends wait for a lock that this one holds, with their ids. It serves where
// the waiting connection was taken from a pool, so that its id isn't known. The test fails if that doesn't happen
// within 30 s.
func (db *DB) WaitBlockedBy(t testing.TB, blocker uint32, n int) []uint32 {
	t.Helper()
	const query = `SELECT pid FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)) ORDER BY pid`
	var blocked []uint32
	db.wait(t, fmt.Sprintf("%d backends are blocked by %d", n, blocker), func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		rows, err := conn.Query(ctx, query, int32(blocker))
		if err != nil {
			return false, err
		}
		pids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
		if err != nil || len(pids) < n {
			return false, err
		}
		for _, pid := range pids {
			blocked = append(blocked, uint32(pid))
		}
		return true, nil
	})
	return blocked
}

// WaitTrue returns once the query, of one row with one boolean, gives true. what says in the failure's message what
// was waited for. The test fails if that doesn't happen within 30 s.
func (db *DB) WaitTrue(t testing.TB, what, query string, args ...any) {
	t.Helper()
	db.wait(t, what, func(ctx context.Context, conn *pgx.Conn) (ok bool, err error) {
		err = conn.QueryRow(ctx, query, args...).Scan(&ok)
		return ok, err
	})
}

// wait looks at the condition until it holds. The connection is given free between two looks, so that several
// goroutines may wait at the same time.
func (db *DB) wait(t testing.TB, what string, holds func(context.Context, *pgx.Conn) (bool, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	ticker := time.NewTicker(waitPoll)
	defer ticker.Stop()
	for {
		ok := false
		err := db.withControl(ctx, func(conn *pgx.Conn) (err error) {
			ok, err = holds(ctx, conn)
			return err
		})
		if ok {
			return
		}
		if err != nil {
			t.Fatalf("pgtest: wait until %s: %v", what, err)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("pgtest: wait until %s: it isn't so after %s", what, waitTimeout)
		case <-ticker.C:
		}
	}
}
