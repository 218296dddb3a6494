package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/jobledger/jobledger/adapters/postgres/embedded"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
)

// TestMain makes the test binary the command, too: tests and scripts run `jobledger` as a process of its own.
func TestMain(m *testing.M) {
	// A process with the race detector in it lingers for a second at its end, and there are hundreds of them.
	os.Setenv("GORACE", strings.TrimSpace(os.Getenv("GORACE")+" atexit_sleep_ms=0"))
	testscript.Main(m, map[string]func(){"jobledger": main})
}

// TestScript runs the sessions in testdata/script, each on a database of its own that DATABASE_URL names.
func TestScript(t *testing.T) {
	t.Parallel()
	eachScript(t, "testdata/script", func(t *testing.T, file string) {
		db := pgtest.New(t)
		runScript(t, file, map[string]string{"DATABASE_URL": db.URL, "JOBLEDGER_DATA_DIR": "/nowhere"}, databaseCommands(t, db))
	})
}

// TestEmptyDatabase runs the sessions in testdata/empty, each on a database without a schema.
func TestEmptyDatabase(t *testing.T) {
	t.Parallel()
	eachScript(t, "testdata/empty", func(t *testing.T, file string) {
		db := pgtest.Empty(t)
		runScript(t, file, map[string]string{"DATABASE_URL": db.URL, "JOBLEDGER_DATA_DIR": "/nowhere"}, databaseCommands(t, db))
	})
}

// TestPrivate runs the sessions in testdata/private, each on a private Postgres in a new folder.
func TestPrivate(t *testing.T) {
	t.Parallel()
	eachScript(t, "testdata/private", func(t *testing.T, file string) {
		runScript(t, file, map[string]string{"DATABASE_URL": "", "JOBLEDGER_DATA_DIR": dataDir(t)}, map[string]command{})
	})
}

// dataDir returns a folder for a private Postgres, which is stopped at the end. It isn't t.TempDir: root's server runs
// as another user, who cannot enter that.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "jobledger-test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := embedded.Stop(context.Background(), embedded.Options{DataDir: dir}); err != nil {
			t.Errorf("stop the private Postgres: %v", err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func eachScript(t *testing.T, dir string, run func(t *testing.T, file string)) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in %s: %v", dir, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			run(t, file)
		})
	}
}

type command = func(ts *testscript.TestScript, neg bool, args []string)

func runScript(t *testing.T, file string, env map[string]string, commands map[string]command) {
	commands["exits"], commands["keep"], commands["lines"] = exits, keep, lines
	testscript.Run(t, testscript.Params{
		Files:               []string{file},
		Cmds:                commands,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("GORACE", os.Getenv("GORACE"))
			for name, value := range env {
				e.Setenv(name, value)
			}
			return nil
		},
	})
}

// exits runs a program that must end with an exit code: exits 2 jobledger job show x
func exits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	err = ts.Exec(args[1], args[2:]...)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// keep puts what the last program printed, or a field of its JSON, into a variable: keep ID, keep ID job_id
func keep(ts *testscript.TestScript, _ bool, args []string) {
	text := strings.TrimSpace(ts.ReadFile("stdout"))
	if len(args) > 1 {
		_, rest, ok := strings.Cut(text, `"`+args[1]+`":"`)
		if !ok {
			ts.Fatalf("no field %s in %s", args[1], text)
		}
		text, _, _ = strings.Cut(rest, `"`)
	}
	ts.Setenv(args[0], text)
}

// lines tests how many lines the last program printed: lines 3
func lines(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := strings.Count(ts.ReadFile("stdout"), "\n"); got != want {
		ts.Fatalf("%d lines, want %d", got, want)
	}
}

// databaseCommands act on the script's database behind the back of the program.
func databaseCommands(t *testing.T, db *pgtest.DB) map[string]command {
	var held pgx.Tx
	return map[string]command{
		// hold keeps a transaction open that has run a statement, until leave: hold 'LOCK TABLE jobledger.job_queue'
		"hold": func(ts *testscript.TestScript, _ bool, args []string) {
			var err error
			held, err = db.Connect(t).Begin(t.Context())
			ts.Check(err)
			_, err = held.Exec(t.Context(), args[0])
			ts.Check(err)
		},
		"leave": func(ts *testscript.TestScript, _ bool, _ []string) {
			ts.Check(held.Rollback(t.Context()))
		},
		// sql runs statements: sql 'DELETE FROM jobledger.job_queue'
		"sql": func(ts *testscript.TestScript, _ bool, args []string) {
			for _, statement := range args {
				_, err := db.Pool.Exec(t.Context(), statement)
				ts.Check(err)
			}
		},
		// until waits for a query to give true: until 'SELECT count(*) = 1 FROM jobledger.job_runtime'
		"until": func(ts *testscript.TestScript, _ bool, args []string) {
			db.WaitTrue(t, args[0], args[0])
		},
		// clock sets the database's clock: clock 2030-01-02T15:04:05Z
		"clock": func(ts *testscript.TestScript, _ bool, args []string) {
			at, err := time.Parse(time.RFC3339, args[0])
			ts.Check(err)
			db.SetClock(t, at)
		},
		// advance moves it: advance 10s
		"advance": func(ts *testscript.TestScript, _ bool, args []string) {
			d, err := time.ParseDuration(args[0])
			ts.Check(err)
			db.Advance(t, d)
		},
	}
}
