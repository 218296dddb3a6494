package ledger_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// TestTxFrozen: a process that stands still between the end of a run in its own transaction and the
// commit holds a lock that no reaper waits for. Its session is ended with the lease, so that others
// can take the job over.
func TestTxFrozen(t *testing.T) {
	t.Parallel()
	ends := map[string]string{
		"complete": `SELECT event FROM jobledger.complete('w', ARRAY[$1::uuid], ARRAY[1])`,
		"fail":     `SELECT event FROM jobledger.fail('w', ARRAY[$1::uuid], ARRAY[1])`,
		"release":  `SELECT event FROM jobledger.release('w', ARRAY[$1::uuid], ARRAY[1])`,
		"snooze":   `SELECT event FROM jobledger.snooze('w', ARRAY[$1::uuid], ARRAY[1], ARRAY[interval '1 hour'])`,
	}
	for verb, end := range ends {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			l, db := newLedger(t)
			id := claimed(t, l, time.Second)
			tx := must(db.Pool.Begin(t.Context()))(t)
			var event string
			if err := tx.QueryRow(t.Context(), end, id).Scan(&event); err != nil || event == "" {
				t.Fatalf("%s answered %q, %v", verb, event, err)
			}
			db.WaitTrue(t, "the job is taken back", `SELECT EXISTS (SELECT FROM jobledger.reap('reaper', 10) WHERE event = 'reaped')`)
			if err := tx.Commit(t.Context()); err == nil {
				t.Error("the commit of a frozen transaction succeeded")
			}
			job := must(l.Job(t.Context(), id))(t)
			if job.State != domain.Waiting || job.Restarts != 1 {
				t.Errorf("the job is %s after %d restarts", job.State, job.Restarts)
			}
			verified(t, l, db)
		})
	}

	t.Run("a_shorter_bound_stays", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		long, short := claimed(t, l, time.Hour), claimed(t, l, time.Minute)
		for _, c := range []struct {
			id          uuid.UUID
			own, within string
		}{{long, "10s", "10s"}, {short, "1h", "1min"}} {
			err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), `SET LOCAL idle_in_transaction_session_timeout = '`+c.own+`'`); err != nil {
					return err
				}
				if _, err := l.CompleteTx(t.Context(), tx, "w", ledger.Completion{Held: ledger.Held{JobID: c.id, Generation: 1}}); err != nil {
					return err
				}
				var bound string
				var fits bool
				err := tx.QueryRow(t.Context(), `SELECT b, b::interval > '0' AND b::interval <= $1::text::interval
					FROM current_setting('idle_in_transaction_session_timeout') b`, c.within).Scan(&bound, &fits)
				if err == nil && !fits {
					t.Errorf("with a bound of %s before, it is %s, want at most %s", c.own, bound, c.within)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
		if bound := must(pgx.CollectOneRow(must(db.Pool.Query(t.Context(), `SELECT current_setting('idle_in_transaction_session_timeout')`))(t), pgx.RowTo[string]))(t); bound != "0" {
			t.Errorf("after the transaction the bound is %s", bound)
		}
	})
}

// claimed enqueues a job and claims it for worker w.
func claimed(t *testing.T, l *ledger.Ledger, lease time.Duration) uuid.UUID {
	t.Helper()
	id := must(l.Enqueue(t.Context(), ledger.EnqueueParams{Kind: "k"}))(t).JobID
	c := must(l.Claim(t.Context(), ledger.ClaimParams{Worker: "w", Lease: lease}))(t)
	if len(c.Jobs) != 1 || c.Jobs[0].JobID != id {
		t.Fatalf("claimed %+v", c)
	}
	return id
}
