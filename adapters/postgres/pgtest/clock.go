package pgtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// testClock replaces the clock by one that stands still until it is moved. It reads a sequence, because that alone is
// outside of transactions: a move is seen at once by all sessions, also in the middle of a statement, and it cannot be
// rolled back. A sequence counts whole microseconds, as timestamptz does, and the product stays exact until 2255.
const testClock = `
CREATE OR REPLACE FUNCTION jobledger.clock()
RETURNS timestamptz
LANGUAGE sql
VOLATILE
AS $$
  SELECT 'epoch'::timestamptz + last_value * interval '1 microsecond'
  FROM jobledger.test_clock
$$`

// testClockValue is what the clock reads. Functions run as other roles, too.
const testClockValue = `
CREATE SEQUENCE IF NOT EXISTS jobledger.test_clock MINVALUE -9223372036854775808;
GRANT SELECT ON SEQUENCE jobledger.test_clock TO PUBLIC`

// SetClock sets the ledger's clock in this database to a time, to the microsecond, where it stands still until SetClock
// or Advance moves it. All sessions see it at once, also those in a transaction. There is no way back to the real time.
func (db *DB) SetClock(t testing.TB, at time.Time) {
	t.Helper()
	db.do(t, "set the clock", func(ctx context.Context, conn *pgx.Conn) error {
		// The value comes before the function that reads it: other sessions may be at work already.
		if _, err := conn.Exec(ctx, testClockValue); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, `SELECT setval('jobledger.test_clock', $1)`, at.UnixMicro()); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, testClock)
		return err
	})
}

// Advance moves a clock that was set by d, back if d is negative, and returns the new time. d counts in whole
// microseconds, what is below is cut off.
func (db *DB) Advance(t testing.TB, d time.Duration) time.Time {
	t.Helper()
	var now time.Time
	db.do(t, "advance the clock", func(ctx context.Context, conn *pgx.Conn) error {
		const move = `SELECT setval('jobledger.test_clock', last_value + $1) FROM jobledger.test_clock`
		var micros int64
		err := conn.QueryRow(ctx, move, d.Microseconds()).Scan(&micros)
		now = time.UnixMicro(micros).UTC()
		return err
	})
	return now
}

// Now returns what the ledger's clock says, be it the real one or a set one, in UTC.
func (db *DB) Now(t testing.TB) time.Time {
	t.Helper()
	var now time.Time
	db.do(t, "read the clock", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT jobledger.clock()`).Scan(&now)
	})
	return now.UTC()
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
