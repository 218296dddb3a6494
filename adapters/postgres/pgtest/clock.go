package pgtest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// testClock replaces the clock by one that stands still until it is moved. It reads a sequence, because that alone is
// outside of transactions: a move is seen at once by all sessions, also in the middle of a statement, and it cannot be
// rolled back. A sequence counts whole microseconds, as timestamptz does, and the product stays exact until 2255.
const testClock = `
CREATE OR REPLACE FUNCTION {schema}.clock()
RETURNS timestamptz
LANGUAGE sql
VOLATILE
AS $$
  SELECT 'epoch'::timestamptz + last_value * interval '1 microsecond'
  FROM {schema}.test_clock
$$`

// testClockValue is what the clock reads. Functions run as other roles, too.
const testClockValue = `
CREATE SEQUENCE IF NOT EXISTS {schema}.test_clock MINVALUE -9223372036854775808;
GRANT SELECT ON SEQUENCE {schema}.test_clock TO PUBLIC`

// Querier is what the clock needs of a connection or pool.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// SetClock sets the clock of the ledger in a schema, as DB.SetClock does.
func SetClock(ctx context.Context, db Querier, schema string, at time.Time) error {
	// The value comes before the function that reads it: other sessions may be at work already.
	for _, step := range []string{testClockValue, "SELECT setval('{schema}.test_clock', $1)", testClock} {
		args := []any{pgx.QueryExecModeSimpleProtocol}
		if strings.Contains(step, "$1") {
			args = append(args, at.UnixMicro())
		}
		if _, err := db.Exec(ctx, inSchema(step, schema), args...); err != nil {
			return err
		}
	}
	return nil
}

// AdvanceClock moves the clock of the ledger in a schema, as DB.Advance does.
func AdvanceClock(ctx context.Context, db Querier, schema string, d time.Duration) (time.Time, error) {
	const move = `SELECT setval('{schema}.test_clock', last_value + $1) FROM {schema}.test_clock`
	var micros int64
	err := db.QueryRow(ctx, inSchema(move, schema), d.Microseconds()).Scan(&micros)
	return time.UnixMicro(micros).UTC(), err
}

// Clock reads the clock of the ledger in a schema, and tells whether it was set.
func Clock(ctx context.Context, db Querier, schema string) (now time.Time, set bool, err error) {
	const read = `SELECT {schema}.clock(), to_regclass('{schema}.test_clock') IS NOT NULL`
	err = db.QueryRow(ctx, inSchema(read, schema)).Scan(&now, &set)
	return now.UTC(), set, err
}

// inSchema names the schema, also inside of quotes.
func inSchema(text, schema string) string {
	name := pgx.Identifier{schema}.Sanitize()
	text = strings.ReplaceAll(text, "'{schema}", "'"+strings.ReplaceAll(name, "'", "''"))
	return strings.ReplaceAll(text, "{schema}", name)
}

// SetClock sets the ledger's clock in this database to a time, to the microsecond, where it stands still until SetClock
// or Advance moves it. All sessions see it at once, also those in a transaction. There is no way back to the real time.
func (db *DB) SetClock(t testing.TB, at time.Time) {
	t.Helper()
	db.do(t, "set the clock", func(ctx context.Context, conn *pgx.Conn) error { return SetClock(ctx, conn, Schema, at) })
}

// Advance moves a clock that was set by d, back if d is negative, and returns the new time. d counts in whole
// microseconds, what is below is cut off.
func (db *DB) Advance(t testing.TB, d time.Duration) (now time.Time) {
	t.Helper()
	db.do(t, "advance the clock", func(ctx context.Context, conn *pgx.Conn) (err error) {
		now, err = AdvanceClock(ctx, conn, Schema, d)
		return err
	})
	return now
}

// Now returns what the ledger's clock says, be it the real one or a set one, in UTC.
func (db *DB) Now(t testing.TB) (now time.Time) {
	t.Helper()
	db.do(t, "read the clock", func(ctx context.Context, conn *pgx.Conn) (err error) {
		now, _, err = Clock(ctx, conn, Schema)
		return err
	})
	return now
}

// do runs a step of a helper on the connection for helpers, and fails the test if it doesn't work.
func (db *DB) do(t testing.TB, what string, step func(context.Context, *pgx.Conn) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
	defer cancel()
	if err := db.withControl(ctx, func(conn *pgx.Conn) error { return step(ctx, conn) }); err != nil {
		t.Fatalf("pgtest: %s: %v", what, err)
	}
}
