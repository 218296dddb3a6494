package modeltest

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// TestIntervals calls the functions from a session whose time zone is about to skip an hour, with
// intervals in days: they are elapsed time, as in the domain, not days of a calendar.
func TestIntervals(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	g.setClock(time.Date(2026, 3, 7, 17, 0, 0, 0, time.UTC)) // 14 hours before the gap
	conn := g.db.Connect(t)
	if _, err := conn.Exec(g.ctx, `SET TimeZone = 'America/New_York'; SET search_path = jobledger`); err != nil {
		t.Fatal(err)
	}
	day, want := g.now, g.now.Add(24*time.Hour)
	policy := one[int](t, conn, `SELECT ensure_policy(timeout => '1 day', backoff_base => '1 day', backoff_cap => '1 month')`)
	job := one[uuid.UUID](t, conn, `SELECT enqueue('k', tag => 'due', policy_id => $1)`, policy)
	later := one[uuid.UUID](t, conn, `SELECT enqueue('k', tag => 'later', delay => '1 day', key => 'x', key_ttl => '1 day')`)

	at := func(what, query string, args ...any) {
		t.Helper()
		if got := one[time.Time](t, conn, query, args...); !got.Equal(want) {
			t.Errorf("%s is %s, want %s: 24 hours after %s", what, got.UTC(), want, day)
		}
	}
	at("due time of an enqueue", `SELECT scheduled_for FROM job_queue WHERE job_id = $1`, later)
	at("lease of a claim", `SELECT lease_until FROM claim('w', ARRAY['due'], 1, '1 day')`)
	at("time-out", `SELECT timeout_at FROM job_runtime WHERE job_id = $1`, job)
	at("lease of a ping", `SELECT lease_until FROM ping('w', ARRAY[$1::uuid], ARRAY[1], '1 day')`, job)
	at("due time of a snooze", `SELECT scheduled_for FROM snooze('w', ARRAY[$1::uuid], ARRAY[1], ARRAY[interval '1 day'])`, job)
	one[uuid.UUID](t, conn, `SELECT job_id FROM cancel(ARRAY[$1::uuid])`, later)
	running := one[uuid.UUID](t, conn, `SELECT enqueue('k', tag => 'other')`)
	one[uuid.UUID](t, conn, `SELECT job_id FROM claim('w', ARRAY['other'])`)
	at("due time of a retry", `SELECT scheduled_for FROM fail('w', ARRAY[$1::uuid], ARRAY[1], delays => ARRAY[interval '1 day'])`, running)

	g.setClock(want.Add(-time.Microsecond))
	if again := one[uuid.UUID](t, conn, `SELECT enqueue('k', key => 'x')`); again != later {
		t.Error("a key of one day was free a microsecond before 24 hours were over")
	}
	g.setClock(want)
	if again := one[uuid.UUID](t, conn, `SELECT enqueue('k', key => 'x')`); again == later {
		t.Error("a key of one day was not free after 24 hours")
	}
	v, err := g.l.Read().Verify(g.ctx, g.db.Pool, nil)
	if err != nil || len(v.Findings) > 0 {
		t.Errorf("verify: %+v, %v", v.Findings, err)
	}
}

// one is the single value that a query gives.
func one[T any](t *testing.T, conn *pgx.Conn, query string, args ...any) T {
	t.Helper()
	var v T
	if err := conn.QueryRow(context.Background(), query, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}
