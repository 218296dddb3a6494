package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func ExampleAcquire() {
	ctx := context.Background()
	lease, err := Acquire(ctx, Options{
		Notice: func(line string) { fmt.Fprintln(os.Stderr, line) },
	})
	if failure, ok := errors.AsType[*Error](err); ok {
		fmt.Fprintf(os.Stderr, "error: %v\nhint: %s\n", failure, failure.Hint)
		os.Exit(1)
	}
	defer lease.Close()
	conn, err := pgx.Connect(ctx, lease.URL())
	if err != nil {
		panic(err)
	}
	defer conn.Close(ctx)
}

func TestDefaultDataDir(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Setenv("XDG_DATA_HOME", "/data")
		if dir, err := DefaultDataDir(); dir != "/var/lib/jobledger" || err != nil {
			t.Errorf("root's: %q, %v", dir, err)
		}
		return
	}
	for _, c := range []struct{ home, xdg, want string }{
		{"/home/u", "/data", "/data/jobledger"},
		{"/home/u", "", "/home/u/.local/share/jobledger"},
		{"/home/u", "relative", "/home/u/.local/share/jobledger"},
	} {
		t.Setenv("HOME", c.home)
		t.Setenv("XDG_DATA_HOME", c.xdg)
		if dir, err := DefaultDataDir(); dir != c.want || err != nil {
			t.Errorf("%+v: %q, %v", c, dir, err)
		}
	}
	t.Setenv("HOME", "")
	_, err := DefaultDataDir()
	refused(t, err, "find the data directory", "--data-dir")
}

func TestStatus(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	none := filepath.Join(dir, "none")
	status, err := ReadStatus(testOptions(none))
	if err != nil || status != (Status{DataDir: none, Clients: -1}) {
		t.Errorf("where there is nothing: %+v, %v", status, err)
	}
	if _, err := os.Stat(none); !os.IsNotExist(err) {
		t.Errorf("asking made %s: %v", none, err)
	}

	lease := acquire(t, testOptions(dir))
	status, err = ReadStatus(testOptions(dir))
	if err != nil || !status.Running || status.URL != lease.URL() || status.Major != lease.Major() || !status.NoFsync {
		t.Errorf("while it runs: %+v, %v", status, err)
	}
	if got := query(t, lease.URL(), `SELECT current_setting('data_directory')`); got != status.ClusterDir {
		t.Errorf("the cluster is in %s, status says %s", got, status.ClusterDir)
	}
	for _, path := range []string{status.ServerLog, status.SupervisorLog, status.SocketDir} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	psql, err := Psql(bounded(t), testOptions(dir))
	if failure, ok := errors.AsType[*Error](err); ok && failure.Hint != "" {
		t.Logf("psql: %v", err)
	} else if err != nil || !strings.HasSuffix(psql, "psql") {
		t.Errorf("psql: %q, %v", psql, err)
	}

	lease.Close()
	waitGone(t, dir)
	status, err = ReadStatus(testOptions(dir))
	if err != nil || status.Running || status.URL != "" || status.ClusterDir == "" {
		t.Errorf("after its stop: %+v, %v", status, err)
	}
}
