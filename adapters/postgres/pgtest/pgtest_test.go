package pgtest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNew(t *testing.T) {
	t.Parallel()

	t.Run("has_the_schema_and_shares_nothing", func(t *testing.T) {
		begin := time.Now()
		one := New(t)
		t.Logf("a database of its own: %s", time.Since(begin))
		other := New(t)
		execute(t, one, `CREATE TABLE jobledger.mine ()`)
		for _, c := range []struct {
			db   *DB
			name string
			want bool
		}{
			{one, "jobledger.job_event", true},
			{one, "jobledger.mine", true},
			{other, "jobledger.job_event", true},
			{other, "jobledger.mine", false},
		} {
			if got := ask[bool](t, c.db, `SELECT to_regclass($1) IS NOT NULL`, c.name); got != c.want {
				t.Errorf("%s exists in %s: %t", c.name, c.db.Name, got)
			}
		}
	})

	t.Run("is_gone_after_the_test", func(t *testing.T) {
		var name string
		t.Run("inner", func(t *testing.T) {
			db := New(t)
			name = db.Name
			db.Connect(t) // open to the end
		})
		db := Empty(t)
		if ask[bool](t, db, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, name) {
			t.Errorf("%s is still there", name)
		}
	})

	t.Run("takes_a_size_of_the_pool_and_gives_times_in_UTC", func(t *testing.T) {
		db := New(t, MaxConns(3))
		if got := db.Pool.Config().MaxConns; got != 3 {
			t.Errorf("the pool may open %d connections", got)
		}
		if got := ask[time.Time](t, db, `SELECT now()`); got.Location() != time.UTC {
			t.Errorf("a time in %s", got.Location())
		}
		if got := ask[string](t, db, `SELECT current_setting('application_name')`); got != t.Name()[:min(len(t.Name()), 63)] {
			t.Errorf("the connections are called %q", got)
		}
	})
}

func TestEmpty(t *testing.T) {
	t.Parallel()
	db := Empty(t)
	if got := ask[int](t, db, `SELECT count(*) FROM pg_namespace WHERE nspname = 'jobledger'`); got != 0 {
		t.Error("an empty database has our schema")
	}
}

func TestExclusive(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("makes a cluster")
	}
	server := Exclusive(t)
	const look = `SELECT to_regclass('jobledger.job_event') IS NOT NULL`
	for _, when := range []string{"at first", "after a crash"} {
		conn, err := pgx.Connect(t.Context(), server.URL())
		if err != nil {
			t.Fatal(err)
		}
		var migrated bool
		if err := conn.QueryRow(t.Context(), look).Scan(&migrated); err != nil || !migrated {
			t.Errorf("%s the schema is there: %t, %v", when, migrated, err)
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
		server.Kill()
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestClosePool(t *testing.T) {
	t.Parallel()
	pool := New(t).Pool
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if closePool(pool, time.Millisecond) {
		t.Error("a pool was closed while a connection is out")
	}
	conn.Release()
}

func TestClock(t *testing.T) {
	t.Parallel()
	db := New(t)
	if off := time.Since(db.Now(t)).Abs(); off > time.Hour {
		t.Errorf("the real clock is off by %s", off)
	}
	for _, at := range []time.Time{
		time.Date(2031, 3, 30, 1, 59, 59, 999_999_000, time.UTC),
		time.Date(1969, 12, 31, 23, 59, 59, 999_999_000, time.UTC),
		time.Date(2254, 6, 15, 12, 0, 0, 1_000, time.UTC),
	} {
		db.SetClock(t, at)
		if got := db.Now(t); !got.Equal(at) {
			t.Errorf("set to %s, it is %s", at, got)
		}
		for _, d := range []time.Duration{time.Microsecond, -time.Hour, 24 * time.Hour} {
			at = at.Add(d)
			if told, got := db.Advance(t, d), db.Now(t); !told.Equal(at) || !got.Equal(at) {
				t.Errorf("moved by %s to %s, told %s, it is %s", d, at, told, got)
			}
		}
	}

	t.Run("moves_for_transactions_that_are_open", func(t *testing.T) {
		at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		db.SetClock(t, at)
		conn := db.Connect(t)
		err := pgx.BeginTxFunc(t.Context(), conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
			for _, want := range []time.Time{at, at.Add(time.Second)} {
				var now time.Time
				if err := tx.QueryRow(t.Context(), `SELECT jobledger.clock()`).Scan(&now); err != nil {
					return err
				}
				if !now.Equal(want) {
					t.Errorf("in the transaction it is %s, want %s", now, want)
				}
				db.Advance(t, time.Second)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func TestWait(t *testing.T) {
	t.Parallel()
	db := New(t)
	holder, waiter := db.Connect(t), db.Connect(t)
	ctx := t.Context()
	if _, err := holder.Exec(ctx, `BEGIN; SELECT pg_advisory_xact_lock(1)`); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := waiter.Exec(ctx, `SELECT pg_advisory_xact_lock(1)`)
		done <- err
	}()
	pid := waiter.PgConn().PID()
	db.WaitBlocked(t, pid)
	if got := db.WaitBlockedBy(t, holder.PgConn().PID(), 1); !slices.Equal(got, []uint32{pid}) {
		t.Errorf("blocked are %d, want %d", got, pid)
	}
	if _, err := holder.Exec(ctx, `COMMIT`); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	db.WaitTrue(t, "nobody waits", `SELECT NOT EXISTS (SELECT FROM pg_locks WHERE NOT granted)`)
}

// process returns what another test process would be: another keeper, with an owner of its own.
func process(t *testing.T) *server {
	t.Helper()
	s, err := connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := s.keeper.Close(context.Background())
		if s.lease != nil {
			err = errors.Join(err, s.lease.Close())
		}
		if err != nil {
			t.Error(err)
		}
	})
	return s
}

func exists(t *testing.T, s *server, name string) (exists bool) {
	t.Helper()
	const query = `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`
	if err := s.keeper.QueryRow(t.Context(), query, name).Scan(&exists); err != nil {
		t.Fatal(err)
	}
	return exists
}

// TestLeftovers is not parallel: its processes sweep what any other leaves behind.
func TestLeftovers(t *testing.T) {
	killed, living := process(t), process(t)
	lost, used := killed.nextName(), living.nextName()
	for _, name := range []string{lost, used} {
		if err := living.createDatabase(t.Context(), name, "template0"); err != nil {
			t.Fatal(err)
		}
	}
	if err := killed.keeper.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The server frees the locks of a session a moment after its end.
	New(t).WaitTrue(t, "the session is gone",
		`SELECT NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = $1::oid)`, killed.owner)
	next := process(t)
	if exists(t, next, lost) {
		t.Errorf("%s of a killed process is still there", lost)
	}
	if !exists(t, next, used) {
		t.Errorf("%s of a living process is gone", used)
	}
	if err := living.dropDatabase(t.Context(), used); err != nil {
		t.Fatal(err)
	}
}

func TestOldTemplates(t *testing.T) {
	other, us := process(t), process(t)
	current, err := us.template(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	used, unused := us.prefix+templateInfix+"used", us.prefix+templateInfix+"unused"
	for _, name := range []string{used, unused} {
		if err := us.createDatabase(t.Context(), name, "template0"); err != nil {
			t.Fatal(err)
		}
	}
	const lock = `SELECT pg_advisory_lock_shared($1, $2)`
	if _, err := other.keeper.Exec(t.Context(), lock, int32(templateLocks), templateKey(used)); err != nil {
		t.Fatal(err)
	}
	if err := us.dropOldTemplates(t.Context(), current); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{current: true, used: true, unused: false} {
		if got := exists(t, us, name); got != want {
			t.Errorf("%s exists: %t", name, got)
		}
	}
	if err := us.dropDatabase(t.Context(), used); err != nil {
		t.Fatal(err)
	}
}

func TestAnothersServer(t *testing.T) {
	shared := sharedServer(t)
	t.Setenv(urlVariable, shared.base.String())
	s := process(t)
	if s.lease != nil {
		t.Error("a server was started all the same")
	}
	name := s.nextName()
	if err := s.createDatabase(t.Context(), name, "template0"); err != nil {
		t.Fatal(err)
	}
	if !exists(t, shared, name) {
		t.Errorf("%s is on another server", name)
	}
	if err := s.dropDatabase(t.Context(), name); err != nil {
		t.Fatal(err)
	}

	t.Setenv(urlVariable, "host=/tmp dbname=x")
	if _, err := connect(t.Context()); err == nil {
		t.Error("a connection string that is no URL was taken")
	}
}

func execute(t *testing.T, db *DB, statement string) {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// ask returns the answer of a query with one value.
func ask[T any](t *testing.T, db *DB, query string, args ...any) (answer T) {
	t.Helper()
	if err := db.Pool.QueryRow(t.Context(), query, args...).Scan(&answer); err != nil {
		t.Fatal(err)
	}
	return answer
}
