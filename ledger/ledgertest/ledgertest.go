package ledgertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/ledger"
)

// stepTimeout bounds each question to the database.
const stepTimeout = 30 * time.Second

// Config is where the ledger of a test is. The zero value is right for most.
type Config struct {
	// DatabaseURL is a server to create the database on, as a URL: postgres://user@host/database. Its role must be
	// allowed to create databases; ours begin with jl_. Default: JOBLEDGER_TEST_DATABASE_URL, else a private server.
	DatabaseURL string
	// Template has what the application needs beside the ledger. Default: nothing.
	Template *Template
	// MaxConns bounds the connections of Pool. Default 8.
	MaxConns int32
	// MaxRuns is how many runs one call of RunDue, RunAll or RunFor makes before the test fails, since a handler may
	// enqueue its next run for ever. Default 1000.
	MaxRuns int
	// Schema and Actor are as in ledger.Config. Another schema than the default one has to be migrated for each test,
	// which takes a few tenths of a second.
	Schema, Actor string
}

// Ledger is a ledger that belongs to one test. Hand its Ledger, or its Pool, to the application.
type Ledger struct {
	*ledger.Ledger
	Scope // what is committed

	Pool *pgxpool.Pool
	// URL is the connection URL of its database, for whatever opens connections of its own; "" from On.
	URL string

	database *pgtest.Database // nil from On
	maxRuns  int
}

// New returns an empty ledger in a database of its own, which is dropped at the end of the test. The test fails at once
// if there is none to be had; the message says what to install.
func New(t testing.TB, cfg ...Config) *Ledger {
	t.Helper()
	l, err := open(context.Background(), t.Name(), oneConfig(cfg))
	if err != nil {
		t.Fatalf("ledgertest: %v", err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("ledgertest: %v", err)
		}
	})
	return l
}

// Open is New where there is no test, as in TestMain. The caller closes the ledger.
func Open(ctx context.Context, cfg ...Config) (*Ledger, error) {
	l, err := open(ctx, "ledgertest", oneConfig(cfg))
	if err != nil {
		return nil, fmt.Errorf("open a ledger for tests: %w", err)
	}
	return l, nil
}

// MustOpen is Open for an Example, which has nobody to return an error to.
func MustOpen(cfg ...Config) *Ledger {
	l, err := Open(context.Background(), cfg...)
	if err != nil {
		panic(err)
	}
	return l
}

// On returns the ledger in a database that the test has made itself and migrated (postgres.MigrateUp). It stays as it
// is at the end of the test. Of cfg only Schema, Actor and MaxRuns count. SetClock sets the clock of that ledger for all who use
// it, and for good.
func On(t testing.TB, pool *pgxpool.Pool, cfg ...Config) *Ledger {
	t.Helper()
	l, err := on(pool, oneConfig(cfg))
	if err != nil {
		t.Fatalf("ledgertest: %v", err)
	}
	ctx, cancel := step()
	defer cancel()
	var there bool
	err = pool.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, pgx.Identifier{l.Schema(), "job_event"}.Sanitize()).Scan(&there)
	if err == nil && !there {
		err = fmt.Errorf("there is no ledger in schema %s of this database: call postgres.MigrateUp first", l.Schema())
	}
	if err != nil {
		t.Fatalf("ledgertest: %v", err)
	}
	return l
}

// Close drops the database of a ledger from Open. Connections that have not come back after 10 s are an error.
func (l *Ledger) Close() error {
	if l.database == nil {
		return errors.New("close the ledger of a test: its database is not ours")
	}
	if err := l.database.Close(context.Background(), l.Pool); err != nil {
		return fmt.Errorf("close the ledger of a test: %w", err)
	}
	return nil
}

func oneConfig(cfg []Config) Config {
	if len(cfg) == 0 {
		return Config{}
	}
	return cfg[0]
}

func open(ctx context.Context, name string, cfg Config) (*Ledger, error) {
	database, err := cfg.database(ctx)
	if err != nil {
		return nil, err
	}
	pool, err := postgres.OpenPool(ctx, postgres.PoolConfig{URL: database.URL, MaxConns: cfg.MaxConns, Name: name[:min(len(name), 63)]})
	if err != nil {
		return nil, errors.Join(err, database.Drop(context.WithoutCancel(ctx)))
	}
	l, err := on(pool, cfg)
	if err == nil && l.Schema() != pgtest.Schema {
		err = postgres.MigrateUp(ctx, database.URL, l.Schema())
	}
	if err != nil {
		return nil, errors.Join(err, database.Close(context.WithoutCancel(ctx), pool))
	}
	l.URL, l.database = database.URL, database
	return l, nil
}

// database makes a new one, from the application's template if there is one.
func (cfg Config) database(ctx context.Context) (*pgtest.Database, error) {
	if cfg.Template == nil {
		return pgtest.Create(ctx, cfg.DatabaseURL)
	}
	template, err := cfg.Template.on(ctx, cfg.DatabaseURL)
	if err != nil {
		return nil, err
	}
	return template.Copy(ctx)
}

func on(pool *pgxpool.Pool, cfg Config) (*Ledger, error) {
	l, err := ledger.New(pool, ledger.Config{Schema: cfg.Schema, Actor: cfg.Actor})
	if err != nil {
		return nil, err
	}
	return &Ledger{Ledger: l, Scope: scopeOf(l, pool), Pool: pool, maxRuns: cmp.Or(cfg.MaxRuns, 1000)}, nil
}
