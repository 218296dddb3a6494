package postgres_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
)

// counter counts the statements that it is told of.
type counter struct{ n atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) { c.n.Add(1) }

// TestEvictReadOnly: a session that stays read-only is not used again once a write was refused there, and the
// settings that a pool had before still work.
func TestEvictReadOnly(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(context.Context, *pgxpool.Pool) error{
		"exec": func(ctx context.Context, pool *pgxpool.Pool) error {
			_, err := pool.Exec(ctx, `INSERT INTO t VALUES (1)`)
			return err
		},
		"query": func(ctx context.Context, pool *pgxpool.Pool) error {
			return pool.QueryRow(ctx, `INSERT INTO t VALUES ($1) RETURNING n`, 1).Scan(new(int))
		},
		"batch": func(ctx context.Context, pool *pgxpool.Pool) error {
			var b pgx.Batch
			b.Queue(`INSERT INTO t VALUES (1)`)
			return pool.SendBatch(ctx, &b).Close()
		},
		"transaction": func(ctx context.Context, pool *pgxpool.Pool) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `INSERT INTO t VALUES (1)`)
				return err
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Empty(t)
			if _, err := db.Pool.Exec(t.Context(), `CREATE TABLE t (n int)`); err != nil {
				t.Fatal(err)
			}
			cfg, err := pgxpool.ParseConfig(db.URL)
			if err != nil {
				t.Fatal(err)
			}
			var statements counter
			var given atomic.Int64
			cfg.MaxConns, cfg.ConnConfig.Tracer = 1, &statements
			cfg.AfterRelease = func(*pgx.Conn) bool { given.Add(1); return true }
			postgres.EvictReadOnly(cfg)
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			if _, err := pool.Exec(t.Context(), `SET default_transaction_read_only = on`); err != nil {
				t.Fatal(err)
			}
			var pg *pgconn.PgError
			if err := write(t.Context(), pool); !errors.As(err, &pg) || pg.Code != "25006" {
				t.Fatalf("answered %v, want 25006", err)
			}
			if err := write(t.Context(), pool); err != nil {
				t.Errorf("the next write: %v", err)
			}
			if statements.n.Load() == 0 && name != "batch" || given.Load() == 0 {
				t.Errorf("the pool's own tracer was told of %d statements and its AfterRelease called %d times", statements.n.Load(), given.Load())
			}
		})
	}
}
