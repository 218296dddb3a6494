// Package postgres connects jobledger to a database: the pool, the migrations, and in its
// sub-packages a private server (embedded) and the kit for tests (pgtest).
package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// PoolConfig is how a pool is opened.
type PoolConfig struct {
	// URL is a Postgres connection URL or key=value string.
	URL string
	// MaxConns bounds the connections. Default 8: what a worker needs for claims, pings, endings and
	// a few handlers' own transactions.
	MaxConns int32
	// Name is shown as application_name. Default "jobledger".
	Name string
}

// The named time-outs of a pool.
const (
	connectTimeout = 5 * time.Second  // to open one connection
	pingTimeout    = 5 * time.Second  // to test an idle one before use: pgx has none by default
	connLifetime   = 30 * time.Minute // after which a connection is replaced, less up to a tenth
	idleCheck      = 15 * time.Second // how often idle ones are looked at
)

// OpenPool opens a pool and asks the database once, so that a wrong URL is told at once. READ
// COMMITTED is set on each connection whatever the database's default: the guards rely on it.
func OpenPool(ctx context.Context, c PoolConfig) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	if c.MaxConns == 0 {
		c.MaxConns = 8
	}
	if c.Name == "" {
		c.Name = "jobledger"
	}
	cfg.MaxConns = c.MaxConns
	cfg.PingTimeout = pingTimeout
	cfg.MaxConnLifetime = connLifetime
	cfg.MaxConnLifetimeJitter = connLifetime / 10
	cfg.HealthCheckPeriod = idleCheck
	cfg.ConnConfig.ConnectTimeout = connectTimeout
	cfg.ConnConfig.RuntimeParams["application_name"] = c.Name
	cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "read committed"
	cfg.ConnConfig.RuntimeParams["timezone"] = "UTC"
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("open pool: %w", err)
	}
	return pool, nil
}
