package embedded

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestExclusive(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)

	t.Run("survives_kill_and_restart", func(t *testing.T) {
		server, err := StartExclusive(bounded(t), testOptions(dir))
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		execute(t, server.URL(), `CREATE TABLE kept AS SELECT 'committed' AS word`)
		conn, err := pgx.Connect(bounded(t), server.URL())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(bounded(t), `BEGIN; UPDATE kept SET word = 'not committed'`); err != nil {
			t.Fatal(err)
		}
		server.Kill()
		server.Kill() // it is down already
		if _, err := conn.Exec(bounded(t), `COMMIT`); err == nil {
			t.Error("a transaction outlived its server")
		}
		if err := server.Restart(bounded(t)); err != nil {
			t.Fatal(err)
		}
		if got := query(t, server.URL(), `SELECT word FROM kept`); got != "committed" {
			t.Errorf("after the crash: %q", got)
		}
		server.Stop()
		if err := server.Restart(bounded(t)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(server.Close(), server.Close()); err != nil {
			t.Errorf("close, twice: %v", err)
		}
		waitGone(t, dir)
	})

	t.Run("shares_with_nobody", func(t *testing.T) {
		server, err := StartExclusive(bounded(t), testOptions(dir))
		if err != nil {
			t.Fatal(err)
		}
		_, err = Acquire(bounded(t), testOptions(dir))
		refused(t, err, "has it for itself", "--data-dir")
		_, err = StartExclusive(bounded(t), testOptions(dir))
		refused(t, err, "a server runs in it", "--data-dir")
		_, err = Stop(bounded(t), testOptions(dir))
		refused(t, err, "has it for itself", "")
		if err := server.Close(); err != nil {
			t.Fatal(err)
		}
		acquire(t, testOptions(dir))
	})

	t.Run("ends_with_its_process", func(t *testing.T) {
		c := spawn(t, "exclusive", dir).ready(t)
		c.kill()
		waitGone(t, dir)
	})
}

// refused asserts that err is an *Error with these parts in its message and its hint.
func refused(t *testing.T, err error, message, hint string) {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Errorf("no refusal with a hint: %v", err)
		return
	}
	if !strings.Contains(e.Error(), message) {
		t.Errorf("error %q lacks %q", e.Error(), message)
	}
	if e.Hint == "" || !strings.Contains(e.Hint, hint) {
		t.Errorf("hint %q lacks %q", e.Hint, hint)
	}
}
