package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// watchEvery is how often a watcher looks who is in the way: a few times within lockTimeout.
const watchEvery = 40 * time.Millisecond

// watcher finds out who keeps a migration waiting, from a connection of its own: the waiting one cannot ask, and
// afterwards it is too late. Without a second connection, behind a small pooler, migrations go on all the same.
type watcher struct {
	config *pgx.ConnConfig
	conn   *pgx.Conn // nil until somebody had to wait
}

// look watches the transaction under way on waiting until the returned function is called, which gives who was in the way
// at the last look that found anybody.
func (w *watcher) look(ctx context.Context, backend int32) (stop func() []Blocker) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan []Blocker, 1)
	go func() {
		var found []Blocker
		for {
			if pauseFor(ctx, watchEvery) != nil {
				break
			}
			if blockers, err := w.blockers(ctx, backend); err == nil && len(blockers) > 0 {
				found = blockers
			}
		}
		done <- found
	}()
	return func() []Blocker {
		cancel()
		return <-done
	}
}

// blockers asks once. A prepared transaction has the number 0 and no session.
func (w *watcher) blockers(ctx context.Context, backend int32) ([]Blocker, error) {
	if w.conn == nil || w.conn.IsClosed() {
		conn, err := pgx.ConnectConfig(ctx, w.config.Copy())
		if err != nil {
			return nil, err
		}
		w.conn = conn
	}
	rows, err := w.conn.Query(ctx, `
SELECT DISTINCT b.pid, coalesce(a.application_name, ''), coalesce(a.usename, ''), coalesce(a.state, ''),
       coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8 AS age
FROM unnest(pg_blocking_pids($1)) AS b (pid)
LEFT JOIN pg_stat_activity a USING (pid)
ORDER BY b.pid`, backend)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (b Blocker, err error) {
		var age float64
		err = row.Scan(&b.PID, &b.Application, &b.User, &b.State, &age)
		b.Age = time.Duration(age * float64(time.Second))
		return b, err
	})
}

func (w *watcher) close() {
	if w.conn != nil {
		_ = closeNow(w.conn)
	}
}

// closeNow says goodbye, without waiting for long.
func closeNow(conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return conn.Close(ctx)
}
