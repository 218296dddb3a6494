package postgres

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgerrcode"
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
