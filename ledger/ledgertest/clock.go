package ledgertest

import (
	"context"
	"testing"
	"time"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
)

// Now returns what the ledger's clock says, be it the real one or a set one, in UTC.
func (l *Ledger) Now(t testing.TB) time.Time {
	t.Helper()
	now, _ := l.clock(t)
	return now
}

// SetClock sets the ledger's clock to a time, where it stands still until SetClock or Advance moves it. All sessions
// see it at once, also those in a transaction. It counts whole microseconds, until the year 2255.
func (l *Ledger) SetClock(t testing.TB, at time.Time) {
	t.Helper()
	ctx, cancel := step()
	defer cancel()
	if err := pgtest.SetClock(ctx, l.Pool, l.Schema(), at); err != nil {
		t.Fatalf("ledgertest: set the clock: %v", err)
	}
}

// Advance moves the ledger's clock by d and returns the new time. A clock that was not set stands still from then on.
func (l *Ledger) Advance(t testing.TB, d time.Duration) time.Time {
	t.Helper()
	l.stopClock(t)
	ctx, cancel := step()
	defer cancel()
	now, err := pgtest.AdvanceClock(ctx, l.Pool, l.Schema(), d)
	if err != nil {
		t.Fatalf("ledgertest: advance the clock: %v", err)
	}
	return now
}

// stopClock lets the clock stand still where it is, and returns that.
func (l *Ledger) stopClock(t testing.TB) time.Time {
	t.Helper()
	now, set := l.clock(t)
	if !set {
		l.SetClock(t, now)
	}
	return now
}

func (l *Ledger) clock(t testing.TB) (now time.Time, set bool) {
	t.Helper()
	ctx, cancel := step()
	defer cancel()
	now, set, err := pgtest.Clock(ctx, l.Pool, l.Schema())
	if err != nil {
		t.Fatalf("ledgertest: read the clock: %v", err)
	}
	return now, set
}

// step is the context of one question. It is not the test's: its end would make clean-up fail.
func step() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), stepTimeout)
}
