package embedded

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestAcquire(t *testing.T) {
	t.Parallel()

	t.Run("creates_then_shares_then_starts_again", func(t *testing.T) {
		dir := dataDirIn(t, "/tmp")
		o := Options{DataDir: dir} // as in production, with fsync, on a disk
		begin := time.Now()
		first := acquire(t, o)
		t.Logf("cold start: %s", time.Since(begin))
		execute(t, first.URL(), `CREATE TABLE kept (word text)`)
		execute(t, first.URL(), `INSERT INTO kept VALUES ('still here')`)

		begin = time.Now()
		second := acquire(t, o)
		t.Logf("shared: %s", time.Since(begin))
		if first.URL() != second.URL() || first.state.ServerPID != second.state.ServerPID {
			t.Errorf("two leases, two servers: %+v, %+v", first.state, second.state)
		}
		for _, setting := range []struct{ name, want string }{
			{"fsync", "on"}, {"synchronous_commit", "on"}, {"full_page_writes", "on"}, {"data_checksums", "on"},
			{"server_encoding", "UTF8"}, {"lc_collate", "C"}, {"TimeZone", "UTC"}, {"listen_addresses", ""},
			{"max_connections", "200"}, {"jit", "off"}, {"unix_socket_directories", filepath.Join(dir, "socket")},
		} {
			got := query(t, first.URL(), `SELECT coalesce(current_setting('`+setting.name+`', true),
				(SELECT datcollate FROM pg_database WHERE datname = 'jobledger'))`)
			if got != setting.want {
				t.Errorf("%s is %q, want %q", setting.name, got, setting.want)
			}
		}

		first.Close()
		if got := query(t, second.URL(), `SELECT word FROM kept`); got != "still here" {
			t.Errorf("the data of a shared server: %q", got)
		}
		begin = time.Now()
		if err := errors.Join(second.Close(), second.Close()); err != nil {
			t.Errorf("close, twice: %v", err)
		}
		waitGone(t, dir)
		t.Logf("stop after the last: %s", time.Since(begin))

		begin = time.Now()
		third := acquire(t, o)
		t.Logf("warm start: %s", time.Since(begin))
		if got := query(t, third.URL(), `SELECT word FROM kept`); got != "still here" {
			t.Errorf("the data after a restart: %q", got)
		}
	})

	t.Run("cold_starts_at_once_end_in_one_server", func(t *testing.T) {
		dir := dataDir(t)
		var clients []*client
		for range 4 {
			clients = append(clients, spawn(t, "acquire", dir))
		}
		for _, c := range clients {
			c.ready(t)
			if c.server != clients[0].server {
				t.Errorf("servers %d and %d", clients[0].server, c.server)
			}
		}
		status, err := ReadStatus(testOptions(dir))
		if err != nil || !status.Running || status.PID != clients[0].server {
			t.Errorf("status: %+v, %v", status, err)
		}
		if status.Clients != len(clients) && status.Clients != -1 {
			t.Errorf("status tells of %d clients, there are %d", status.Clients, len(clients))
		}
	})

	t.Run("gives_up_with_its_context", func(t *testing.T) {
		dir := dataDir(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := Acquire(ctx, testOptions(dir))
		if !errors.Is(err, context.Canceled) {
			t.Errorf("acquire: %v", err)
		}
	})
}

func TestDeath(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)

	t.Run("of_the_last_client_by_SIGKILL_stops_the_server", func(t *testing.T) {
		c := spawn(t, "acquire", dir).ready(t)
		c.kill()
		waitGone(t, dir)
		if status, err := ReadStatus(testOptions(dir)); err != nil || status.Running {
			t.Errorf("status: %+v, %v", status, err)
		}
	})

	t.Run("of_the_supervisor_takes_the_server_along", func(t *testing.T) {
		lease := acquire(t, testOptions(dir))
		execute(t, lease.URL(), `CREATE TABLE kept AS SELECT 'still here' AS word`)
		if err := syscall.Kill(lease.state.SupervisorPID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		// The signal is only on its way when kill returns.
		life, err := takeLock(bounded(t), layout{root: dir}.supervisorLock(), unix.LOCK_EX)
		if err != nil {
			t.Fatal(err)
		}
		life.close()
		again := acquire(t, testOptions(dir))
		if again.state.ServerPID == lease.state.ServerPID {
			t.Errorf("server %d lives on without a supervisor", lease.state.ServerPID)
		}
		if got := query(t, again.URL(), `SELECT word FROM kept`); got != "still here" {
			t.Errorf("the data: %q", got)
		}
	})

	t.Run("of_the_server_while_a_client_holds_it_is_recovered", func(t *testing.T) {
		lease := acquire(t, testOptions(dir))
		execute(t, lease.URL(), `CREATE TABLE recovered AS SELECT 'still here' AS word`)
		if err := syscall.Kill(lease.state.ServerPID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		l := layout{root: dir}
		err := poll(bounded(t), lockPoll, func() (bool, error) {
			state, err := l.readState()
			return state.ServerPID != lease.state.ServerPID, err
		})
		if err != nil {
			t.Fatalf("wait for the next server: %v", err)
		}
		if got := query(t, lease.URL(), `SELECT word FROM recovered`); got != "still here" {
			t.Errorf("the data: %q", got)
		}
		log, err := os.ReadFile(l.supervisorLog())
		if err != nil || !strings.Contains(string(log), "signal: killed") {
			t.Errorf("the supervisor's log doesn't say why: %v\n%s", err, log)
		}
	})

	t.Run("of_a_caller_in_a_pipe_ends_the_pipe", func(t *testing.T) {
		inherited, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer inherited.Close()
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		// Descriptor 5 of the client, not closed on exec: as a shell's own files are.
		first := spawn(t, "acquire", dir, null, null, write).ready(t)
		write.Close()
		second := spawn(t, "acquire", dir).ready(t)
		first.stdin.Close()
		if _, err := io.ReadAll(first.stdout); err != nil {
			t.Errorf("read the caller's output to its end: %v", err)
		}
		if err := inherited.SetReadDeadline(time.Now().Add(testTimeout)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(inherited); err != nil {
			t.Errorf("read the inherited pipe to its end: %v", err)
		}
		if second.server != first.server {
			t.Errorf("the server that the first has started is gone")
		}
	})
}

func TestStop(t *testing.T) {
	t.Parallel()
	ctx := bounded(t)
	if was, err := Stop(ctx, testOptions("/tmp/jobledger-none")); was || err != nil {
		t.Errorf("stop where there is no data directory: %t, %v", was, err)
	}
	dir := dataDir(t)
	lease := acquire(t, testOptions(dir))
	if was, err := Stop(ctx, testOptions(dir)); !was || err != nil {
		t.Errorf("stop while a client holds it: %t, %v", was, err)
	}
	if was, err := Stop(ctx, testOptions(dir)); was || err != nil {
		t.Errorf("stop again: %t, %v", was, err)
	}
	again := acquire(t, testOptions(dir))
	if again.state.ServerPID == lease.state.ServerPID {
		t.Error("the server was not stopped")
	}
}

func TestRestartBudget(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var budget restartBudget
	for i := range maxRestarts {
		if pause, ok := budget.next(now); !ok || pause <= 0 || pause > time.Minute {
			t.Fatalf("restart %d: %s, %t", i+1, pause, ok)
		}
	}
	if _, ok := budget.next(now.Add(stableAfter)); ok {
		t.Error("one restart too many")
	}
	if _, ok := budget.next(now.Add(2*stableAfter + time.Second)); !ok {
		t.Error("a server that ran for long is given up")
	}
}
