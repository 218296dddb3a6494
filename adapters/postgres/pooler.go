package postgres

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// SessionError says what a connection lacks because of a pooler in front of the database, and what to do about it
// (Hint, one sentence).
type SessionError struct{ Problem, Hint string }

// Error returns the problem; the hint is left to whoever shows it to a person.
func (e *SessionError) Error() string { return e.Problem }

// refusedParameter reports whether a connection was refused for a setting that it asked for: poolers know few.
func refusedParameter(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == pgerrcode.ProtocolViolation && strings.Contains(pg.Message, "startup parameter")
}

// checkIsolation refuses a pool whose statements do not run under READ COMMITTED. One that asked for it gets it, but
// for a pooler that refuses the setting, or drops it without a word.
func checkIsolation(ctx context.Context, pool *pgxpool.Pool) error {
	var isolation string
	if err := pool.QueryRow(ctx, `SELECT current_setting('default_transaction_isolation')`).Scan(&isolation); err != nil {
		return err
	}
	if isolation == "read committed" {
		return nil
	}
	return &SessionError{
		Problem: "statements run under " + strings.ToUpper(isolation) + " here, and the pooler in front of the database keeps us from changing that",
		Hint:    "ALTER ROLE name SET default_transaction_isolation = 'read committed' for the user of the pooler's connections, then RECONNECT in its console",
	}
}

// checkDirect refuses a database that is reached through a pooler without a session of our own: the lock of a
// migration would lie on a connection that others get, too, and stay there.
func checkDirect(ctx context.Context, cfg *pgx.ConnConfig) error {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if refusedParameter(err) {
		return errNeedsDirect()
	}
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var path string
	if err := conn.QueryRow(ctx, `SELECT current_setting('search_path')`).Scan(&path); err != nil {
		return err
	}
	if path != cfg.RuntimeParams["search_path"] {
		return errNeedsDirect() // dropped without a word: ignore_startup_parameters of PgBouncer
	}
	shared, err := sharesServer(ctx, conn, cfg)
	if err != nil {
		return err
	}
	if shared {
		return errNeedsDirect()
	}
	return nil
}

func errNeedsDirect() error {
	return &SessionError{
		Problem: "a pooler is in front of this database, and migrations need a session of their own",
		Hint:    "give the database's own address as --direct-url (JOBLEDGER_DIRECT_URL)",
	}
}

// sharesServer reports whether a pooler gives the server process of an open, idle connection to others. Postgres
// itself tells a new connection the id of its process; a pooler tells another number, since a cancellation must reach
// the pooler. In that case conn is watched, alone (some poolers take turns) and while a second connection holds a
// transaction: if both were served by one process, or conn by two, there is no session.
func sharesServer(ctx context.Context, conn *pgx.Conn, cfg *pgx.ConnConfig) (bool, error) {
	first, err := serverProcess(ctx, conn)
	if err != nil || first == conn.PgConn().PID() {
		return false, err
	}
	if again, err := serverProcess(ctx, conn); err != nil || again != first {
		return true, err
	}
	other, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return false, err
	}
	defer other.Close(context.WithoutCancel(ctx))
	tx, err := other.Begin(ctx)
	if err != nil {
		return false, err
	}
	second, err := serverProcess(ctx, tx)
	if err != nil || second == first {
		return true, err
	}
	again, err := serverProcess(ctx, conn)
	return again != first, err
}

func serverProcess(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (pid uint32, err error) {
	err = db.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid)
	return pid, err
}
