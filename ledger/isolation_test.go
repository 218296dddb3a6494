package ledger_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// sqlCalls are the functions that answer about jobs, as a program calls them that knows no library: $1 is the job, $2 the
// generation that it shows.
var sqlCalls = map[string]string{
	"ping":     `SELECT event, refusal FROM jobledger.ping('w', ARRAY[$1::uuid], ARRAY[$2::int])`,
	"complete": `SELECT event, refusal FROM jobledger.complete('w', ARRAY[$1::uuid], ARRAY[$2::int])`,
	"fail":     `SELECT event, refusal FROM jobledger.fail('w', ARRAY[$1::uuid], ARRAY[$2::int])`,
	"release":  `SELECT event, refusal FROM jobledger.release('w', ARRAY[$1::uuid], ARRAY[$2::int])`,
	"snooze":   `SELECT event, refusal FROM jobledger.snooze('w', ARRAY[$1::uuid], ARRAY[$2::int], ARRAY[interval '0'])`,
	"cancel":   `SELECT event, refusal FROM jobledger.cancel(ARRAY[$1::uuid]) WHERE $2::int IS NOT NULL`,
	"redrive":  `SELECT event, refusal FROM jobledger.redrive(ARRAY[$1::uuid]) WHERE $2::int IS NOT NULL`,
}

// TestOldSnapshot: whoever calls a function in a transaction that keeps a snapshot (REPEATABLE READ and above), of a job
// that has changed since, is told to run the transaction again (40001), and never what the job was. A job that has not
// changed gives the answer that it gives otherwise.
func TestOldSnapshot(t *testing.T) {
	t.Parallel()
	fenced := []string{"ping", "complete", "fail", "release", "snooze"}
	for _, c := range []struct {
		name  string
		calls []string
		// before leads to what the snapshot shows; since to what is.
		before, since func(t *testing.T, l *ledger.Ledger, db *pgtest.DB) uuid.UUID
		want          string // word for a job that has not changed
	}{
		{"claimed_since", fenced, enqueueOne, claimIt, "unknown_generation"},
		{"renewed_since", fenced, expiring, renewIt, "lease_over"},
		{"ended_since", []string{"cancel"}, enqueueOne, completeIt, "canceled"},
		{"failed_since", []string{"redrive"}, claimedJob, failIt, "not_ended"},
		{"redriven_since", []string{"cancel"}, endedJob, redriveIt, "ended"},
	} {
		for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
			for _, call := range c.calls {
				if level == pgx.Serializable && call != "complete" && call != "cancel" {
					continue // it differs at the commit alone
				}
				t.Run(c.name+"/"+strings.ReplaceAll(string(level), " ", "_")+"/"+call, func(t *testing.T) {
					t.Parallel()
					l, db := newLedger(t)
					db.SetClock(t, zeroHour)
					answer := func(change func(*testing.T, *ledger.Ledger, *pgtest.DB) uuid.UUID) (string, error) {
						id := c.before(t, l, db)
						tx := must(db.Connect(t).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level}))(t)
						defer tx.Rollback(t.Context())
						must(tx.Exec(t.Context(), `SELECT count(*) FROM jobledger.job`))(t) // takes the snapshot
						if change != nil {
							change(t, l, db)
						}
						if c.name == "renewed_since" {
							db.Advance(t, 6*time.Second)
						}
						var event, refusal *string
						err := tx.QueryRow(t.Context(), sqlCalls[call], id, 1).Scan(&event, &refusal)
						if refusal != nil {
							return *refusal, err
						}
						if event != nil {
							return *event, err
						}
						return "", err
					}
					if got, err := answer(nil); err != nil || got != c.want {
						t.Errorf("unchanged: answered %q and %v, want %s", got, err, c.want)
					}
					if got, err := answer(c.since); sqlState(err) != "40001" || !ledger.Retryable(err) {
						t.Errorf("changed since: answered %q and %v, want 40001", got, err)
					}
				})
			}
		}
	}
}

// lastOne is the newest job.
func lastOne(t *testing.T, l *ledger.Ledger, db *pgtest.DB) ledger.Held {
	t.Helper()
	h := ledger.Held{Generation: 1}
	must(0, db.Pool.QueryRow(t.Context(), `SELECT job_id FROM jobledger.job ORDER BY job_id DESC LIMIT 1`).Scan(&h.JobID))(t)
	return h
}

func enqueueOne(t *testing.T, l *ledger.Ledger, _ *pgtest.DB) uuid.UUID {
	t.Helper()
	return must(l.Enqueue(t.Context(), ledger.EnqueueParams{Kind: "test"}))(t).JobID
}

func claimIt(t *testing.T, l *ledger.Ledger, db *pgtest.DB) uuid.UUID {
	t.Helper()
	id := lastOne(t, l, db).JobID
	for _, c := range must(l.Claim(t.Context(), ledger.ClaimParams{Worker: "w", Max: 10, Lease: 5 * time.Second}))(t).Jobs {
		if c.JobID == id {
			return id
		}
	}
	t.Fatal("the job was not claimed")
	return id
}

func claimedJob(t *testing.T, l *ledger.Ledger, db *pgtest.DB) uuid.UUID {
	t.Helper()
	enqueueOne(t, l, db)
	return claimIt(t, l, db)
}

// expiring is a claimed job whose owner was refused each closing verb once: that leaves its mark once only.
func expiring(t *testing.T, l *ledger.Ledger, db *pgtest.DB) uuid.UUID {
	t.Helper()
	id := claimedJob(t, l, db)
	for call, text := range sqlCalls {
		if call != "cancel" && call != "redrive" {
			must(db.Pool.Exec(t.Context(), strings.ReplaceAll(text, "'w'", "'somebody else'"), id, 1))(t)
		}
	}
	return id
}

func renewIt(t *testing.T, l *ledger.Ledger, db *pgtest.DB) uuid.UUID {
	t.Helper()
	h := lastOne(t, l, db)
	a := must(l.Ping(t.Context(), ledger.PingParams{Worker: "w", Lease: time.Minute, Pings: []ledger.Ping{{Held: h}}}))(t)[0]
	must(0, a.Err)(t)
	return h.JobID
}

func completeIt(t *testing.T, l *ledger.Ledger, db *pgtest.DB) uuid.UUID {
	t.Helper()
	claimIt(t, l, db)
	h := lastOne(t, l, db)
	must(l.Complete(t.Context(), "w", ledger.Completion{Held: h}))(t)
	return h.JobID
}

func failIt(t *testing.T, l *ledger.Ledger, db *pgtest.DB) uuid.UUID {
	t.Helper()
	h := lastOne(t, l, db)
	must(l.Fail(t.Context(), "w", ledger.Failure{Held: h, Permanent: true}))(t)
	return h.JobID
}

func endedJob(t *testing.T, l *ledger.Ledger, db *pgtest.DB) uuid.UUID {
	t.Helper()
	claimedJob(t, l, db)
	return failIt(t, l, db)
}

func redriveIt(t *testing.T, l *ledger.Ledger, db *pgtest.DB) uuid.UUID {
	t.Helper()
	h := lastOne(t, l, db)
	must(l.Redrive(t.Context(), h.JobID, ledger.ByOperator{}))(t)
	return h.JobID
}

// TestSessionZone: what a call is told does not depend on the zone and style of its session.
func TestSessionZone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := db.Connect(t)
	must(conn.Exec(t.Context(), `SET timezone = 'America/St_Johns'; SET DateStyle = 'SQL, DMY'`))(t)
	for given, want := range map[string]string{
		"1969-12-31 23:59:59.5+00": "1969-12-31T23:59:59.5Z", "10000-01-01 00:00:00+00": "10000-01-01T00:00:00Z", "-infinity": "-infinity",
	} {
		_, err := conn.Exec(t.Context(), `SELECT jobledger.enqueue('k', scheduled_for => $1::timestamptz)`, pgx.QueryExecModeExec, given)
		if err == nil || !strings.Contains(err.Error(), "got '"+want+"'") {
			t.Errorf("%s: got %v, want it to name %s", given, err, want)
		}
	}
}

// spoiltStatements counts serialization failures.
type spoiltStatements struct{ n atomic.Int64 }

func (s *spoiltStatements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (s *spoiltStatements) TraceQueryEnd(_ context.Context, _ *pgx.Conn, d pgx.TraceQueryEndData) {
	if sqlState(d.Err) == "40001" {
		s.n.Add(1)
	}
}

// TestAnyIsolation: a ledger on any pool gives the answers of READ COMMITTED, whatever its sessions default to: callers
// who compete for keys and jobs all get through, and are spoilt no more once the first of them were.
func TestAnyIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(strings.ReplaceAll(level, " ", "_"), func(t *testing.T) {
			t.Parallel()
			const callers, rounds = 12, 15
			_, db := newLedger(t)
			cfg := must(pgxpool.ParseConfig(db.URLWith("default_transaction_isolation", level)))(t)
			var spoilt spoiltStatements
			cfg.MaxConns, cfg.ConnConfig.Tracer = callers, &spoilt
			pool := must(pgxpool.NewWithConfig(t.Context(), cfg))(t)
			t.Cleanup(pool.Close)
			l := must(ledger.New(pool, ledger.Config{}))(t)
			var group sync.WaitGroup
			var created, done atomic.Int64
			for n := range callers {
				group.Go(func() {
					worker := fmt.Sprintf("w%d", n)
					for round := range rounds {
						e, err := l.Enqueue(t.Context(), keyed(fmt.Sprintf("key-%d", round), `1`))
						if err != nil {
							t.Errorf("enqueue: %v", err)
						} else if !e.Replayed {
							created.Add(1)
						}
						c, err := l.Claim(t.Context(), ledger.ClaimParams{Worker: worker, Max: 2})
						if err != nil {
							t.Errorf("claim: %v", err)
						}
						for _, job := range c.Jobs {
							if a, err := l.Complete(t.Context(), worker, ledger.Completion{Held: job.Held, Result: 1}); err != nil || a.Event != domain.Completed {
								t.Errorf("complete: answered %+v and %v", a, err)
							}
							done.Add(1)
						}
					}
				})
			}
			group.Wait()
			if created.Load() != rounds || done.Load() > rounds {
				t.Errorf("%d jobs created and %d done, want %d and no more than that", created.Load(), done.Load(), rounds)
			}
			if n := spoilt.n.Load(); n == 0 || n > 2*callers {
				t.Errorf("%d statements of %d callers failed with 40001, want the first ones alone", n, callers)
			}
			verified(t, l, db)
		})
	}
}
