// Package postgres connects jobledger to a database: the pool, the migrations, and in its
// sub-packages a private server (embedded) and the kit for tests (pgtest).
package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/domain"
)

// PoolConfig is how a pool is opened.
type PoolConfig struct {
	// URL is a Postgres connection URL or key=value string. It may lead through a transaction pooler.
	URL string
	// MaxConns bounds the connections. One is enough, though handlers' transactions then take turns
	// with claims, pings and endings. Default: pool_max_conns of the URL, else 8, what a worker needs
	// for its own calls and a few handlers' transactions.
	MaxConns int32
	// Name is shown as application_name. Default "jobledger".
	Name string
}

// defaultMaxConns is how many connections a pool has if nobody says otherwise.
const defaultMaxConns = 8

// isolationParameter is what decides on the isolation of a statement that is its own transaction.
const isolationParameter = "default_transaction_isolation"

// The named time-outs of a pool.
const (
	connectTimeout = 5 * time.Second  // to open one connection
	pingTimeout    = 5 * time.Second  // to test an idle one before use: pgx has none by default
	connLifetime   = 30 * time.Minute // after which a connection is replaced, less up to a tenth
	idleCheck      = 15 * time.Second // how often idle ones are looked at
)

// OpenPool opens a pool and asks the database once, so that a wrong URL is told at once. READ
// COMMITTED is set on each connection whatever the database's default: the guards rely on it. Where a
// pooler keeps it from being set, the default itself must be READ COMMITTED, else the error is a
// *SessionError.
func OpenPool(ctx context.Context, c PoolConfig) (*pgxpool.Pool, error) {
	cfg, err := c.parse()
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	pool, err := open(ctx, cfg)
	if refusedParameter(err) {
		delete(cfg.ConnConfig.RuntimeParams, isolationParameter)
		pool, err = open(ctx, cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	return pool, nil
}

// parse reads the URL and adds what is ours.
func (c PoolConfig) parse() (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return nil, err
	}
	switch {
	case c.MaxConns < 0:
		return nil, &domain.FieldError{Field: "max_conns", Value: c.MaxConns, Want: "1 or more"}
	case c.MaxConns > 0:
		cfg.MaxConns = c.MaxConns
	case !strings.Contains(c.URL, "pool_max_conns"):
		cfg.MaxConns = defaultMaxConns
	}
	if c.Name == "" {
		c.Name = "jobledger"
	}
	cfg.PingTimeout = pingTimeout
	cfg.MaxConnLifetime = connLifetime
	cfg.MaxConnLifetimeJitter = connLifetime / 10
	cfg.HealthCheckPeriod = idleCheck
	cfg.ConnConfig.ConnectTimeout = connectTimeout
	cfg.ConnConfig.RuntimeParams["application_name"] = c.Name
	cfg.ConnConfig.RuntimeParams[isolationParameter] = "read committed"
	// The mode that needs nothing of a session and still has binary values: it works through poolers.
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	EvictReadOnly(cfg)
	return cfg, nil
}

// open opens a pool whose sessions are as the guards need them.
func open(ctx context.Context, cfg *pgxpool.Config) (*pgxpool.Pool, error) {
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := checkIsolation(ctx, pool); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}
