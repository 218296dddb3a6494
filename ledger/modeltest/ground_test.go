package modeltest

import (
	"context"
	"testing"
	"time"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/ledger"
)

// enqueuer is who enqueues, cancels and redrives where a call names nobody.
const enqueuer = "enqueuer"

// start is when every sequence begins.
var start = time.Date(2026, 3, 29, 0, 59, 50, 0, time.UTC)

// ground is a database with a hooked clock on which sequences run, one after the other.
type ground struct {
	t   testing.TB
	ctx context.Context
	db  *pgtest.DB
	l   *ledger.Ledger
	now time.Time
}

func newGround(t testing.TB) *ground {
	t.Helper()
	return groundOn(t, pgtest.New(t))
}

// groundOn takes a database that has its functions already; setting the clock comes after them.
func groundOn(t testing.TB, db *pgtest.DB) *ground {
	t.Helper()
	l, err := ledger.New(db.Pool, ledger.Config{Actor: enqueuer})
	if err != nil {
		t.Fatal(err)
	}
	db.SetClock(t, start)
	return &ground{t: t, ctx: context.Background(), db: db, l: l, now: start}
}

// setClock moves the clock to an instant, back if need be.
func (g *ground) setClock(at time.Time) {
	g.now = g.db.Advance(g.t, at.Sub(g.now))
}

// reset empties the ledger: as a superuser, which no caller of it is.
func (g *ground) reset() error {
	_, err := g.db.Pool.Exec(g.ctx, `
DELETE FROM jobledger.job_queue; DELETE FROM jobledger.job_runtime; DELETE FROM jobledger.job_completed;
DELETE FROM jobledger.idempotency_key; DELETE FROM jobledger.tag_state;
TRUNCATE jobledger.job_event, jobledger.job_payload`)
	g.setClock(start)
	return err
}
