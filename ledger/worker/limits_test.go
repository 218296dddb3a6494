package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

// TestRoleLimits: where statements or waits for locks are bounded, as a role may have it, a row that somebody holds keeps back its
// own job alone, and that job ends when the row is free.
func TestRoleLimits(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"statement_timeout", "lock_timeout"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			l, db := newLedger(t)
			pool, err := postgres.OpenPool(t.Context(), postgres.PoolConfig{URL: db.URLWith(setting, "200ms")})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			limited, err := ledger.New(pool, ledger.Config{})
			if err != nil {
				t.Fatal(err)
			}
			const jobs = 30
			begun, end := make(chan struct{}, jobs), make(chan struct{})
			cfg := brisk()
			cfg.Concurrency, cfg.Lease = jobs, 30*time.Second
			start(t, limited, cfg, func(w *worker.Worker) {
				worker.Handle(w, "test", func(ctx context.Context, _ worker.Job[struct{}]) (int, error) {
					begun <- struct{}{}
					select {
					case <-end:
					case <-ctx.Done():
					}
					return 1, nil
				})
			})
			var ids []uuid.UUID
			for range jobs {
				ids = append(ids, enqueue(t, l, "test", nil, nil))
			}
			for range jobs {
				receive(t, "a job that runs", begun)
			}
			tx, err := db.Connect(t).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), `SELECT FROM jobledger.job_runtime WHERE job_id = ANY ($1) FOR UPDATE`, ids[:2]); err != nil {
				t.Fatal(err)
			}
			close(end)
			for _, id := range ids[2:] {
				succeeded(t, l, id)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, id := range ids[:2] {
				if job := succeeded(t, l, id); job.Restarts > 0 {
					t.Errorf("job %s was begun again", id)
				}
			}
			verified(t, l, db)
		})
	}
}
