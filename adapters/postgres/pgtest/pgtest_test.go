package pgtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestNew(t *testing.T) {
	t.Parallel()
	t.Run("has_the_schema", func(t *testing.T) {
		db := New(t)
		var exists bool
		err := db.Pool.QueryRow(t.Context(), `SELECT to_regprocedure('jobledger.clock()') IS NOT NULL`).Scan(&exists)
		if err != nil || !exists {
			t.Fatalf("jobledger.clock() exists: %t, %v", exists, err)
		}
	})
	for i := range 5 {
		t.Run("timing", func(t *testing.T) {
			b := time.Now()
			New(t)
			t.Log(i, time.Since(b))
			b = time.Now()
			t.Cleanup(func() { t.Log("used", time.Since(b)) })
		})
	}
}

func TestClock(t *testing.T) {
	t.Parallel()
	db := New(t)
	at := time.Date(2031, 3, 30, 1, 59, 59, 999_999_000, time.UTC)
	db.SetClock(t, at)
	if now := db.Now(t); !now.Equal(at) {
		t.Fatal(now, at)
	}
	if now := db.Advance(t, time.Microsecond); !now.Equal(at.Add(time.Microsecond)) || !db.Now(t).Equal(now) {
		t.Fatal(now)
	}
}

func TestWaitBlocked(t *testing.T) {
	db := New(t)
	a, b := db.Connect(t), db.Connect(t)
	ctx := t.Context()
	tx, _ := a.Begin(ctx)
	tx.Exec(ctx, `LOCK TABLE jobledger.job_event`)
	done := make(chan error)
	go func() { done <- pgx.BeginFunc(ctx, b, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, `LOCK TABLE jobledger.job_event`); return err }) }()
	db.WaitBlocked(t, b.PgConn().PID())
	db.WaitBlockedBy(t, a.PgConn().PID(), 1)
	tx.Rollback(context.Background())
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
