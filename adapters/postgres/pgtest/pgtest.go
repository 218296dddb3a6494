// Package pgtest gives each test a database of its own, with the schema in it, in 30 to 100 ms.
//
// All test packages of a user that run at the same time share one Postgres without fsync (package embedded), which
// stops when the last of them ends. In it is a template, named after the hash of the migrations and functions, of which
// each test gets a copy. Set JOBLEDGER_TEST_DATABASE_URL to use another server (a superuser on a server for tests
// alone: databases named jl_* are dropped), JOBLEDGER_TEST_PG_BIN to use the Postgres in that folder, or
// JOBLEDGER_TEST_DATA_DIR to have the data there. Without the last they are in memory where there is enough
// (/dev/shm/jobledger-pgtest-<uid>), and stay for the next run.
//
// Two more variables run any test under other conditions: JOBLEDGER_TEST_ISOLATION is the default isolation of each
// database, such as "serializable"; JOBLEDGER_TEST_POOL says how DB.Pool reaches it, see poolVariable.
package pgtest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Schema is the schema that the migrations are applied in.
const Schema = "jobledger"

const (
	// defaultMaxConns is the size of a test's pool: enough for a test's own parallelism, and small enough for many
	// tests at the same time on one server.
	defaultMaxConns = 8
	// stepTimeout bounds each step of preparing or removing a database.
	stepTimeout = time.Minute
	// closeTimeout bounds how long a pool waits for connections that the test has not given back.
	closeTimeout = 10 * time.Second
)

// DB is a database that belongs to one test and is dropped at its end.
type DB struct {
	URL  string        // a connection URL of the database
	Name string        // its name
	Pool *pgxpool.Pool // closed at the end of the test

	mu      sync.Mutex
	control *pgx.Conn // for helpers, which must work while the pool is exhausted or blocked; nil until first used
}

// Option changes what New and Empty return.
type Option func(*config)

type config struct {
	maxConns int32
}

// MaxConns sets how many connections the pool may open. Default 8. The server has room for 400, all tests together.
func MaxConns(n int32) Option { return func(c *config) { c.maxConns = n } }

// New returns a database with the current schema. The test fails at once if there is none to be had.
func New(t testing.TB, options ...Option) *DB {
	t.Helper()
	server := sharedServer(t)
	template, err := server.template(t.Context())
	if err != nil {
		t.Fatalf("pgtest: prepare the template database: %v", err)
	}
	return create(t, server, template, options)
}

// Empty returns a database without any schema, for tests of the migrations.
func Empty(t testing.TB, options ...Option) *DB {
	t.Helper()
	return create(t, sharedServer(t), "template0", options)
}

func create(t testing.TB, server *server, template string, options []Option) *DB {
	t.Helper()
	c := config{maxConns: defaultMaxConns}
	for _, option := range options {
		option(&c)
	}
	db := &DB{Name: server.nextName()}
	db.URL = server.urlOf(db.Name)
	ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
	defer cancel()
	if err := server.createDatabase(ctx, db.Name, template); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() { db.remove(t, server) })
	if err := server.setIsolation(ctx, db.Name); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	pool, err := db.openPool(t, c.maxConns)
	if err != nil {
		t.Fatalf("pgtest: open a pool: %v", err)
	}
	db.Pool = pool
	return db
}

// remove closes what the test has used and drops its database.
func (db *DB) remove(t testing.TB, server *server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	db.mu.Lock()
	if db.control != nil {
		db.control.Close(ctx)
	}
	db.mu.Unlock()
	if db.Pool != nil && !closePool(db.Pool, closeTimeout) {
		t.Errorf("pgtest: a connection of the pool was not given back within %s of the test's end", closeTimeout)
	}
	if err := server.dropDatabase(ctx, db.Name); err != nil {
		t.Errorf("pgtest: %v", err)
	}
}

// closePool closes the pool and says whether all its connections came back in time. Close alone waits without end.
func closePool(pool *pgxpool.Pool, timeout time.Duration) bool {
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
		return true
	case <-time.After(timeout):
		return false
	}
}

// Connect returns a connection outside the pool, for tests with sessions that block each other. It is closed at the
// end of the test.
func (db *DB) Connect(t testing.TB) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, db.URL)
	if err != nil {
		t.Fatalf("pgtest: connect: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		conn.Close(ctx)
	})
	return conn
}

// withControl runs f with the helpers' connection, one at a time.
func (db *DB) withControl(ctx context.Context, f func(*pgx.Conn) error) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.control == nil || db.control.IsClosed() {
		conn, err := pgx.Connect(ctx, db.URL)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		db.control = conn
	}
	return f(db.control)
}
