package postgres_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/ledger"
)

// migratorVariable makes the test binary a migrator of the database that it names.
const migratorVariable = "JOBLEDGER_TEST_MIGRATOR"

func TestMain(m *testing.M) {
	url := os.Getenv(migratorVariable)
	if url == "" {
		os.Exit(m.Run())
	}
	notice := postgres.MigrateNotice(func(line string) { fmt.Println(line) })
	if err := postgres.MigrateUp(context.Background(), url, "jobledger", notice); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// holder is a session that holds a lock, as somebody's open transaction does.
type holder struct {
	tx  pgx.Tx
	pid uint32
}

func hold(t *testing.T, db *pgtest.DB, lock string) holder {
	t.Helper()
	conn := db.Connect(t)
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SET LOCAL search_path = jobledger; SET LOCAL application_name = 'dump'; "+lock); err != nil {
		t.Fatal(err)
	}
	return holder{tx: tx, pid: conn.PgConn().PID()}
}

func (h holder) leave(t *testing.T) {
	t.Helper()
	if err := h.tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestCase36_migration_waits_for_a_lock: while somebody dumps the database, a migration needs a table for itself. Nodes of
// the release before it go on: whoever queues behind the migration gets on although the dump has not ended, for the
// migration gives up its place. When the dump is over, it goes through.
func TestCase36_migration_waits_for_a_lock(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"job_event", "job_queue"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			db, old := release1(t)
			numberedOnly(t, db)
			dump := hold(t, db, "LOCK TABLE job_event, job_queue, job_runtime IN ACCESS SHARE MODE")
			stop := make(chan struct{})
			var nodes sync.WaitGroup
			t.Cleanup(nodes.Wait)
			for i := range 3 {
				node := &binary{conn: db.Connect(t), statements: old.statements}
				nodes.Go(func() {
					if rounds, err := node.node(t.Context(), fmt.Sprint("node", i), stop); err != nil {
						t.Errorf("node %d after %d rounds: %v", i, rounds, err)
					}
				})
			}
			notices, migrated := make(chan string, 100), make(chan error, 1)
			// The migration itself tests that no wait of it can be longer.
			files := overlay(t, "locks", `DO 'BEGIN ASSERT current_setting(''lock_timeout'') = ''200ms''; END';
				ALTER TABLE `+table+` ADD COLUMN extra text;`)
			go func() {
				migrated <- postgres.MigrateUp(t.Context(), db.URL, "jobledger", postgres.MigrateFiles(files),
					postgres.MigrateNotice(func(line string) { notices <- line }))
			}()

			// This one is in the queue behind the migration, which is in the queue behind the dump.
			migrator := db.WaitBlockedBy(t, dump.pid, 1)[0]
			if _, err := old.take(t.Context(), "behind"); err != nil {
				t.Error(err)
			}
			want := fmt.Sprintf("90001_locks.sql: a lock is held by pid %d (dump, user ", dump.pid)
			for line := ""; !strings.HasPrefix(line, want); {
				select {
				case line = <-notices:
				case err := <-migrated:
					t.Fatalf("migrated with %v, without the notice %q", err, want)
				}
			}
			db.WaitBlockedBy(t, dump.pid, 1) // it tries again, and is undone again
			if _, err := old.take(t.Context(), "behind"); err != nil {
				t.Error(err)
			}
			if len(migrated) > 0 {
				t.Errorf("migrated while the dump held the table: %v", <-migrated)
			}
			if s := status(t, db, "jobledger"); s.Migration >= 90001 || s.Functions != 1 {
				t.Errorf("while it waits the status is %+v", s)
			}
			dump.leave(t)
			if err := <-migrated; err != nil {
				t.Fatalf("backend %d: %v", migrator, err)
			}
			if s := status(t, db, "jobledger"); s.Migration != 90001 || s.Functions != ledger.FunctionsVersion || s.Fit() != nil {
				t.Errorf("at the end the status is %+v", s)
			}
			if _, err := old.take(t.Context(), "behind"); err != nil {
				t.Error(err)
			}
			close(stop)
			nodes.Wait()
			lives(t, db, "jobledger")
		})
	}
}

// numberedOnly runs the numbered migrations and leaves the functions as they are.
func numberedOnly(t *testing.T, db *pgtest.DB) {
	t.Helper()
	err := postgres.MigrateUp(t.Context(), db.URL, "jobledger", postgres.MigrateFiles(overlay(t, "bad", "SELECT 1/0")))
	if err == nil || !strings.Contains(err.Error(), "90001_bad.sql: ") {
		t.Fatal(err)
	}
}

// TestMigratorKilled: SIGKILL at any point undoes the step under way, keeps those before, and leaves no lock behind.
func TestMigratorKilled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lock    string // what the test holds
		pausing bool   // whether it is killed between two tries
	}{
		// It has replaced the functions, and is about to record it.
		"in_the_middle": {"LOCK TABLE function_version IN SHARE MODE", false},
		"pausing":       {"LOCK TABLE function_version IN SHARE MODE", true},
		"in_the_queue":  {"SELECT pg_advisory_xact_lock(hashtextextended('jobledger migrate jobledger', 0))", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, old := release1(t)
			before := catalogue(t, db, "jobledger")
			holder := hold(t, db, c.lock)
			child := exec.CommandContext(t.Context(), os.Args[0])
			child.Env = append(os.Environ(), migratorVariable+"="+db.URL)
			out, err := child.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			if c.pausing {
				if line, err := bufio.NewReader(out).ReadString('\n'); !strings.Contains(line, "trying again") {
					t.Errorf("it says %q, %v", line, err)
				}
			} else {
				db.WaitBlockedBy(t, holder.pid, 1)
			}
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := child.Wait(); err == nil {
				t.Fatal("it had ended before it was killed")
			}
			holder.leave(t)
			db.WaitTrue(t, "its locks are free", `SELECT NOT EXISTS (SELECT FROM pg_stat_activity
				WHERE application_name = 'jobledger migrate' AND datname = current_database())`)
			if s := status(t, db, "jobledger"); s.Functions != 1 || s.Damage != "" {
				t.Errorf("status is %+v", s)
			}
			if len(migrationNames(t)) == 1 {
				if d := cmp.Diff(before, catalogue(t, db, "jobledger")); d != "" {
					t.Errorf("it left something half done:\n%s", d)
				}
			}
			old.lives(t)
			migrateUp(t, db, "jobledger")
			if s := status(t, db, "jobledger"); !s.UpToDate() || s.Fit() != nil {
				t.Errorf("after the next one the status is %+v", s)
			}
			old.lives(t)
			lives(t, db, "jobledger")
		})
	}
}

// TestTenMigratorsAtOnce: one at a time gets on, so that workers don't stall behind one after the other; the others find the
// work done.
func TestTenMigratorsAtOnce(t *testing.T) {
	t.Parallel()
	db, old := release1(t)
	numberedOnly(t, db)
	holder := hold(t, db, "LOCK TABLE function_version IN SHARE MODE")
	errs := make(chan error)
	for range 10 {
		go func() { errs <- postgres.MigrateUp(t.Context(), db.URL, "jobledger") }()
	}
	first := db.WaitBlockedBy(t, holder.pid, 1)
	db.WaitTrue(t, "the others wait for their turn", `SELECT count(*) = 9 FROM pg_locks
		WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	if again := db.WaitBlockedBy(t, holder.pid, 1); len(first) != 1 || len(again) != 1 || again[0] != first[0] {
		t.Errorf("%v, then %v wait for the table, want one and the same", first, again)
	}
	holder.leave(t)
	for range 10 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if d := cmp.Diff(catalogue(t, pgtest.New(t), "jobledger"), catalogue(t, db, "jobledger")); d != "" {
		t.Errorf("ten at once made something else than one:\n%s", d)
	}
	old.lives(t)
	lives(t, db, "jobledger")
}

// TestMigrateGivesUp: after its time it says who is in the way, and nothing of the step was done.
func TestMigrateGivesUp(t *testing.T) {
	t.Parallel()
	db, old := release1(t)
	numberedOnly(t, db)
	before := catalogue(t, db, "jobledger")
	holder := hold(t, db, "LOCK TABLE function_version IN SHARE MODE")
	var notices []string
	err := postgres.MigrateUp(t.Context(), db.URL, "jobledger", postgres.MigrateWait(3*time.Second),
		postgres.MigrateNotice(func(line string) { notices = append(notices, line) }))
	var locked *postgres.LockedError
	if !errors.As(err, &locked) || len(locked.Blockers) != 1 || locked.Blockers[0].PID != int32(holder.pid) {
		t.Fatalf("it gave up with %v (%+v), want the session %d", err, locked, holder.pid)
	}
	if want := fmt.Sprintf("a lock is held by pid %d (dump, ", holder.pid); !strings.Contains(err.Error(), want) ||
		!strings.Contains(err.Error(), "idle in transaction") || !strings.HasPrefix(err.Error(), "migrate: apply functions: gave up after ") {
		t.Errorf("it gave up with %q, want it to say %q", err, want)
	}
	if want := fmt.Sprintf("pg_terminate_backend(%d)", holder.pid); !strings.Contains(locked.Hint(), want) {
		t.Errorf("hint %q, want %q", locked.Hint(), want)
	}
	if len(notices) == 0 || len(notices) > 2 {
		t.Errorf("notices %q, want one, or two if it did not see at first who it was", notices)
	}
	if d := cmp.Diff(before, catalogue(t, db, "jobledger")); d != "" {
		t.Errorf("it left something half done:\n%s", d)
	}
	old.lives(t)
	ctx, cancel := context.WithCancel(t.Context())
	canceled := make(chan error)
	go func() { canceled <- postgres.MigrateUp(ctx, db.URL, "jobledger") }()
	db.WaitBlockedBy(t, holder.pid, 1)
	cancel()
	if err := <-canceled; !errors.Is(err, context.Canceled) {
		t.Errorf("canceled, it returned %v", err)
	}
	holder.leave(t)
	migrateUp(t, db, "jobledger")
}

// TestMigrateBesideADump: partitions ahead must not hold up a deploy.
func TestMigrateBesideADump(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := db.Pool.Exec(t.Context(), `SELECT setval('jobledger.job_event_seq', 16777216 * 2)`); err != nil {
		t.Fatal(err)
	}
	dump := hold(t, db, "LOCK TABLE job_event IN ACCESS SHARE MODE")
	var notices []string
	err := postgres.MigrateUp(t.Context(), db.URL, "jobledger", postgres.MigrateWait(time.Second),
		postgres.MigrateNotice(func(line string) { notices = append(notices, line) }))
	if err != nil {
		t.Fatal(err)
	}
	if last := notices[len(notices)-1]; !strings.HasPrefix(last, "event partitions ahead are left to the reaper: ") {
		t.Errorf("notices %q", notices)
	}
	dump.leave(t)
	lives(t, db, "jobledger")
}
