package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
)

// defaultTo sets what statements in new sessions of the database run under.
func defaultTo(t *testing.T, db *pgtest.DB, isolation string) {
	t.Helper()
	execute(t, db, `ALTER DATABASE `+pgx.Identifier{db.Name}.Sanitize()+` SET default_transaction_isolation = '`+isolation+`'`)
}

func execute(t *testing.T, db *pgtest.DB, statement string, args ...any) {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), statement, args...); err != nil {
		t.Fatal(err)
	}
}

// isolation opens a pool and says what its statements run under.
func isolation(t *testing.T, url string) (string, error) {
	t.Helper()
	pool, err := postgres.OpenPool(t.Context(), postgres.PoolConfig{URL: url, MaxConns: 2})
	if err != nil {
		return "", err
	}
	defer pool.Close()
	var level string
	err = pool.QueryRow(t.Context(), `SELECT current_setting('transaction_isolation')`).Scan(&level)
	return level, err
}

// TestCase31_IsolationBehindAPooler: statements run under READ COMMITTED, or the pool is refused. The hint of the
// refusal helps.
func TestCase31_IsolationBehindAPooler(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string][]string{
		"refuses_the_setting": nil,
		"drops_the_setting":   {"ignore_startup_parameters = default_transaction_isolation"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			if level, err := isolation(t, db.PgBouncer(t, settings...)); err != nil || level != "read committed" {
				t.Errorf("got %q and %v", level, err)
			}
			defaultTo(t, db, "serializable")
			if level, err := isolation(t, db.URL); err != nil || level != "read committed" {
				t.Errorf("past the pooler: got %q and %v", level, err)
			}
			_, err := isolation(t, db.PgBouncer(t, settings...))
			var session *postgres.SessionError
			if !errors.As(err, &session) || session.Hint == "" {
				t.Errorf("the database defaults to serializable: got %v, want a SessionError", err)
			}
			execute(t, db, `ALTER ROLE current_user IN DATABASE `+pgx.Identifier{db.Name}.Sanitize()+` SET default_transaction_isolation = 'read committed'`)
			if level, err := isolation(t, db.PgBouncer(t, settings...)); err != nil || level != "read committed" {
				t.Errorf("with the hint followed: got %q and %v", level, err)
			}
		})
	}
}

// TestCase32_MigrateUpThroughAPooler: it needs nothing of a session, and leaves none of it behind, even if the pooler
// has one server process for all.
func TestCase32_MigrateUpThroughAPooler(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string][]string{
		"many_servers":   nil,
		"one_server":     {"default_pool_size = 1"},
		"drops_settings": {"ignore_startup_parameters = search_path, statement_timeout, lock_timeout, default_transaction_isolation"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, old := release1(t)
			pooled := db.PgBouncer(t, settings...)
			holder := hold(t, db, "LOCK TABLE function_version IN SHARE MODE")
			err := postgres.MigrateUp(t.Context(), pooled, "jobledger", postgres.MigrateWait(time.Second))
			if locked, ok := errors.AsType[*postgres.LockedError](err); !ok {
				t.Errorf("got %v, want a LockedError", err)
			} else if name == "many_servers" && (len(locked.Blockers) != 1 || locked.Blockers[0].PID != int32(holder.pid)) {
				t.Errorf("got %v, want the session %d", err, holder.pid)
			}
			noLockLeft(t, db)
			holder.leave(t)
			errs := make(chan error)
			for range 4 {
				go func() { errs <- postgres.MigrateUp(t.Context(), pooled, "jobledger") }()
			}
			for range 4 {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			noLockLeft(t, db)
			if s, err := postgres.MigrateStatus(t.Context(), pooled, "jobledger"); err != nil || !s.UpToDate() {
				t.Errorf("status through the pooler: %+v, %v, want up to date", s, err)
			}
			if d := cmp.Diff(catalogue(t, pgtest.New(t), "jobledger"), catalogue(t, db, "jobledger")); d != "" {
				t.Errorf("through the pooler it made something else:\n%s", d)
			}
			old.lives(t)
			lives(t, db, "jobledger")
		})
	}
}

func noLockLeft(t *testing.T, db *pgtest.DB) {
	t.Helper()
	db.WaitTrue(t, "no lock is left", `SELECT count(*) = 0 FROM pg_locks
		WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
}

// TestCase32_HolderKilled: what takes a lock through a pooler takes it for its transaction; it goes with the client.
func TestCase32_HolderKilled(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pooled := db.PgBouncer(t)
	conn, err := pgx.Connect(t.Context(), pooled)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `BEGIN; SELECT jobledger.extend_events(6)`); err != nil {
		t.Fatal(err)
	}
	db.WaitTrue(t, "the lock is there", `SELECT count(*) = 1 FROM pg_locks
		WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	conn.PgConn().Conn().Close() // without a word, as a process that was killed
	noLockLeft(t, db)
	pool, err := postgres.OpenPool(t.Context(), postgres.PoolConfig{URL: pooled})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var made int
	if err := pool.QueryRow(t.Context(), `SELECT jobledger.extend_events(6)`).Scan(&made); err != nil || made != 2 {
		t.Errorf("the next one made %d partitions, %v, want those that the first one did not", made, err)
	}
}

// TestPoolMaxConns: the bound comes from the caller, or else from the URL.
func TestPoolMaxConns(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	for _, c := range []struct {
		url  string
		max  int32
		want int32
	}{{db.URL, 0, 8}, {db.URL, 1, 1}, {db.URLWith("pool_max_conns", "3"), 0, 3}, {db.URLWith("pool_max_conns", "3"), 5, 5}} {
		pool, err := postgres.OpenPool(t.Context(), postgres.PoolConfig{URL: c.url, MaxConns: c.max})
		if err != nil {
			t.Fatal(err)
		}
		if got := pool.Config().MaxConns; got != c.want {
			t.Errorf("MaxConns %d with %s gave %d, want %d", c.max, c.url, got, c.want)
		}
		pool.Close()
	}
	var field *domain.FieldError
	if _, err := postgres.OpenPool(t.Context(), postgres.PoolConfig{URL: db.URL, MaxConns: -1}); !errors.As(err, &field) || field.Field != "max_conns" {
		t.Errorf("MaxConns -1: got %v, want a FieldError", err)
	}
	if _, err := postgres.MigrateStatus(t.Context(), db.URLWith("pool_max_conns", "3"), "ledger"); err != nil {
		t.Errorf("a URL with settings of the pool: %v", err)
	}
}

// TestMigrateUpUnderARoleOfItsOwn: what a role limits, or sets otherwise, for its statements does not stop a migration.
func TestMigrateUpUnderARoleOfItsOwn(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	role := `ALTER ROLE current_user IN DATABASE ` + pgx.Identifier{db.Name}.Sanitize()
	for _, setting := range []string{"statement_timeout = '200ms'", "default_transaction_isolation = 'serializable'", "search_path = 'elsewhere'"} {
		execute(t, db, role+" SET "+setting)
	}
	slow := overlay(t, "slow", `SELECT pg_sleep(0.4)`)
	if err := postgres.MigrateUp(t.Context(), db.URL, "ledger", postgres.MigrateFiles(slow)); err != nil {
		t.Fatal(err)
	}
	execute(t, db, role+" RESET ALL")
	if s := status(t, db, "ledger"); !s.UpToDate() || s.Migration != 90001 {
		t.Errorf("status is %+v", s)
	}
	lives(t, db, "ledger")
}
