package worker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
	"github.com/jobledger/jobledger/projections"
)

// TestSmallPool: a worker never waits for itself, however few connections it has: its pings and endings, and handlers
// that complete their jobs in transactions of their own, take turns. The lease is so long that a call that waits for a
// connection in vain, with others waiting for it, does not give up within this test.
func TestSmallPool(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		conns int32
		url   func(t *testing.T, db *pgtest.DB) string
	}{
		{"one", 1, func(_ *testing.T, db *pgtest.DB) string { return db.URLWith("pool_max_conns", "1") }},
		{"two", 2, func(_ *testing.T, db *pgtest.DB) string { return db.URLWith("pool_max_conns", "2") }},
		{"one_behind_a_pooler", 1, func(t *testing.T, db *pgtest.DB) string { return db.PgBouncer(t, "default_pool_size = 1") }},
		{"two_behind_a_pooler", 2, func(t *testing.T, db *pgtest.DB) string { return db.PgBouncer(t) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			pool, err := postgres.OpenPool(t.Context(), postgres.PoolConfig{URL: c.url(t, db)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			l, err := ledger.New(pool, ledger.Config{Actor: "tester"})
			if err != nil {
				t.Fatal(err)
			}
			workOff(t, l, db, pool, c.conns > 1)
		})
	}
}

// workOff has a worker run jobs that end in all ways, and one that doesn't before the worker stops. locked says that
// there is one whose row somebody else holds meanwhile, so that its ending must wait.
func workOff(t *testing.T, l *ledger.Ledger, db *pgtest.DB, pool *pgxpool.Pool, locked bool) {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), `CREATE TABLE note (job_id uuid PRIMARY KEY)`); err != nil {
		t.Fatal(err)
	}
	begun, unlocked := make(chan uuid.UUID, 1), make(chan struct{})
	cfg := brisk()
	cfg.Concurrency, cfg.Lease, cfg.PingEvery, cfg.StopTimeout = 10, 40*time.Second, time.Millisecond, time.Millisecond
	r := start(t, l, cfg, func(w *worker.Worker) {
		worker.Handle(w, "tx", func(ctx context.Context, job worker.Job[int]) (struct{}, error) {
			tx, err := pool.Begin(ctx)
			if err != nil {
				return struct{}{}, err
			}
			defer tx.Rollback(context.WithoutCancel(ctx)) // nothing after the commit
			if _, err := tx.Exec(ctx, `INSERT INTO note VALUES ($1)`, job.ID); err != nil {
				return struct{}{}, err
			}
			if _, err := l.EnqueueTx(ctx, tx, ledger.EnqueueParams{Kind: "next", Key: fmt.Sprint("next ", job.Args)}); err != nil {
				return struct{}{}, err
			}
			if err := job.CompleteTx(ctx, tx, job.Args); err != nil {
				return struct{}{}, err
			}
			return struct{}{}, tx.Commit(ctx)
		})
		worker.Handle(w, "next", func(_ context.Context, job worker.Job[struct{}]) (int, error) {
			return 1, job.SetProgress(job.Attempt)
		})
		worker.Handle(w, "again", func(_ context.Context, job worker.Job[int]) (int, error) {
			if job.Generation == 1 {
				return 0, worker.Snooze(time.Millisecond, "later")
			}
			return job.Args, nil
		})
		worker.Handle(w, "locked", func(ctx context.Context, job worker.Job[struct{}]) (int, error) {
			begun <- job.ID
			select {
			case <-unlocked:
			case <-ctx.Done():
			}
			return 0, worker.Permanent(errors.New("no"))
		})
		worker.Handle(w, "endless", func(ctx context.Context, _ worker.Job[struct{}]) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		})
	})
	unlock := func() {}
	if locked {
		unlock = lockRow(t, l, db, begun, unlocked)
	}
	var jobs []uuid.UUID
	enqueue(t, l, "endless", nil, nil)
	for n := range 100 {
		jobs = append(jobs, enqueue(t, l, "tx", n, nil))
		if n%5 == 0 {
			jobs = append(jobs, enqueue(t, l, "again", n, nil))
		}
	}
	for _, job := range jobs {
		succeeded(t, l, job)
	}
	db.WaitTrue(t, "what they enqueued has ended", `SELECT count(*) = 100 FROM jobledger.job_completed WHERE kind = 'next'`)
	db.WaitTrue(t, "what they wrote is there", `SELECT count(*) = 100 FROM note`)
	unlock()
	finish(t, l, db, r)
}

// lockRow lets the locked job end while its row is locked, and returns once the worker waits for that.
func lockRow(t *testing.T, l *ledger.Ledger, db *pgtest.DB, begun <-chan uuid.UUID, unlocked chan<- struct{}) (unlock func()) {
	t.Helper()
	id := enqueue(t, l, "locked", nil, nil)
	receive(t, "the job whose row is locked", begun)
	tx, err := db.Connect(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM jobledger.job_runtime WHERE job_id = $1 FOR UPDATE`, id); err != nil {
		t.Fatal(err)
	}
	close(unlocked)
	db.WaitBlockedBy(t, tx.Conn().PgConn().PID(), 1)
	return func() {
		if err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
		if job := ended(t, l, id); job.Outcome != domain.Failure || job.Error != "no" {
			t.Errorf("the job whose row was locked is %+v", job)
		}
	}
}

// finish stops the worker: what still ran is given back.
func finish(t *testing.T, l *ledger.Ledger, db *pgtest.DB, r *running) {
	t.Helper()
	if err := r.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	left, err := l.Read().List(t.Context(), projections.Filter{State: domain.Waiting})
	if err != nil || len(left) != 1 || left[0].Kind != "endless" || left[0].Attempt != 0 {
		t.Errorf("left is %+v, %v, want the endless job, given back", left, err)
	}
	if s := r.Stats(); s.Refused > 0 || s.Lost > 0 {
		t.Errorf("stats are %+v, want nothing lost or refused", s)
	}
	verified(t, l, db)
}
