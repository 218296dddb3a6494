package ledger_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// sqlState returns the SQLSTATE of an error of Postgres, "" for others.
func sqlState(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// shortLockTimeout makes enqueueing wait for a key much shorter than its five seconds.
func shortLockTimeout(t *testing.T, db *pgtest.DB) {
	t.Helper()
	const arguments = `SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'jobledger'::regnamespace AND proname = 'enqueue_many'`
	var function string
	must(0, db.Pool.QueryRow(t.Context(), arguments).Scan(&function))(t)
	must(db.Pool.Exec(t.Context(), `ALTER FUNCTION `+function+` SET lock_timeout = '100ms'`))(t)
}

// TestKeyBusy: a key that an open transaction holds is waited for within bounds; then the whole batch is
// refused, to be tried again, and a caller's own transaction goes on.
func TestKeyBusy(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	var bound bool
	must(0, db.Pool.QueryRow(ctx, `SELECT 'lock_timeout=5s' = ANY (proconfig) FROM pg_proc
		WHERE pronamespace = 'jobledger'::regnamespace AND proname = 'enqueue_many'`).Scan(&bound))(t)
	if !bound {
		t.Error("enqueue_many does not bound its wait to five seconds")
	}
	shortLockTimeout(t, db)
	holder := must(db.Connect(t).Begin(ctx))(t)
	must(l.EnqueueTx(ctx, holder, keyed("k", `1`)))(t)
	before := jobsStored(t, db)

	t.Run("alone", func(t *testing.T) {
		if _, err := l.Enqueue(ctx, keyed("k", `1`)); !errors.Is(err, domain.ErrKeyBusy) || !ledger.Retryable(err) {
			t.Errorf("answered with %v, want ErrKeyBusy, to be tried again", err)
		}
	})
	t.Run("in_a_batch", func(t *testing.T) {
		_, err := l.EnqueueMany(ctx, []ledger.EnqueueParams{{Kind: "pay"}, keyed("free", `1`), keyed("k", `1`)})
		if !errors.Is(err, domain.ErrKeyBusy) {
			t.Errorf("answered with %v, want ErrKeyBusy", err)
		}
	})
	t.Run("in_sql", func(t *testing.T) {
		_, err := db.Pool.Exec(ctx, `SELECT jobledger.enqueue('pay', '1', key => 'k')`)
		if code := sqlState(err); code != "JL423" {
			t.Errorf("answered with %v, want JL423", err)
		}
	})
	if n := jobsStored(t, db); n != before {
		t.Errorf("%d rows are stored, want %d as before", n, before)
	}
	t.Run("in_a_transaction", func(t *testing.T) {
		var other ledger.Enqueued
		must(0, pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error {
			if _, err := l.EnqueueTx(ctx, tx, keyed("k", `1`)); !errors.Is(err, domain.ErrKeyBusy) {
				t.Errorf("answered with %v, want ErrKeyBusy", err)
			}
			jobs, err := l.EnqueueTx(ctx, tx, ledger.EnqueueParams{Kind: "pay"})
			other = append(jobs, ledger.Enqueued{})[0]
			return err
		}))(t)
		must(l.Job(ctx, other.JobID))(t)
	})
	must(0, holder.Rollback(ctx))(t)
	if e := must(l.Enqueue(ctx, keyed("k", `2`)))(t); e.Replayed {
		t.Errorf("after the holder's roll-back: got %+v, want a new job", e)
	}
	verified(t, l, db)
}

// TestKeyInOneBatch: equal keys inside a batch are one job.
func TestKeyInOneBatch(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	jobs := must(l.EnqueueMany(t.Context(), []ledger.EnqueueParams{
		keyed("a", `{"n":1}`), {Kind: "pay"}, keyed("b", `2`), keyed("a", `{ "n":1}`), keyed("a", `{"n":1}`)}))(t)
	if jobs[3].JobID != jobs[0].JobID || jobs[4].JobID != jobs[0].JobID || !jobs[3].Replayed || !jobs[4].Replayed || jobs[0].Replayed {
		t.Errorf("got %+v, want the fourth and fifth as replays of the first", jobs)
	}
	if jobs[1].Replayed || jobs[2].Replayed || jobs[1].JobID == jobs[2].JobID {
		t.Errorf("got %+v, want the second and third as jobs of their own", jobs)
	}
	verified(t, l, db)
}

// TestKeyPerSchema: another tenant's key is another key.
func TestKeyPerSchema(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	must(0, postgres.MigrateUp(t.Context(), db.URL, "tenant"))(t)
	other := must(ledger.New(db.Pool, ledger.Config{Schema: "tenant"}))(t)
	a, b := must(l.Enqueue(t.Context(), keyed("k", `1`)))(t), must(other.Enqueue(t.Context(), keyed("k", `2`)))(t)
	if a.JobID == b.JobID || b.Replayed {
		t.Errorf("got %+v and %+v, want two jobs", a, b)
	}
	if _, err := other.Job(t.Context(), a.JobID); !errors.Is(err, domain.ErrNotFound) {
		t.Errorf("the other tenant sees the job: %v", err)
	}
	verified(t, l, db)
	verified(t, other, db)
}

// TestKeyWithJobID: a caller that chose the job's id and lost the answer sends the same again.
func TestKeyWithJobID(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	p := keyed("k", `1`)
	p.ID = uuid.New()
	first := must(l.Enqueue(t.Context(), p))(t)
	if again := must(l.Enqueue(t.Context(), p))(t); first.JobID != p.ID || again.JobID != p.ID || !again.Replayed {
		t.Errorf("got %+v and then %+v, want a replay of %s", first, again, p.ID)
	}
	verified(t, l, db)
}

// TestPolicyOfARolledBackTransaction: a policy that was new in a transaction that rolled back is gone,
// and must not be remembered.
func TestPolicyOfARolledBackTransaction(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	p := ledger.EnqueueParams{Kind: "pay", Policy: domain.Policy{MaxAttempts: 7}}
	tx := must(db.Pool.Begin(ctx))(t)
	must(l.EnqueueTx(ctx, tx, p, p))(t)
	must(0, tx.Rollback(ctx))(t)

	job := must(l.Enqueue(ctx, p))(t)
	if got := must(l.Job(ctx, job.JobID))(t).Policy; got != p.Policy.WithDefaults() {
		t.Errorf("job has policy %+v, want %+v", got, p.Policy.WithDefaults())
	}
	// Now it is committed and remembered.
	must(0, pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error {
		_, err := l.EnqueueTx(ctx, tx, p)
		return err
	}))(t)
	var policies int
	must(0, db.Pool.QueryRow(context.WithoutCancel(ctx), `SELECT count(*) FROM jobledger.policy`).Scan(&policies))(t)
	if policies != 2 {
		t.Errorf("%d policies are stored, want the default and one more", policies)
	}
	verified(t, l, db)
}
