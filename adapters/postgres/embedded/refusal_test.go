package embedded

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestMismatch(t *testing.T) {
	t.Parallel()

	t.Run("without_binaries_of_the_clusters_version", func(t *testing.T) {
		dir := dataDir(t)
		cluster := layout{root: dir}.cluster(99)
		if err := os.Mkdir(cluster, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(cluster, "PG_VERSION"), []byte("99\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if account, err := chooseAccount(0); err != nil || account.own(cluster) != nil {
			t.Fatal(err)
		}
		installed, err := FindBinaries(bounded(t), Options{DataDir: filepath.Join(dir, "none"), Fetch: FetchNever})
		if err != nil {
			t.Skip("no Postgres is installed")
		}
		_, err = Acquire(bounded(t), testOptions(dir))
		refused(t, err, "Postgres 99", "--pg-bin")
		refused(t, err, fmt.Sprintf("only Postgres %d in", installed.Major), "pg_dump")
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if name := entry.Name(); name != "pg99" && name != "run" {
				t.Errorf("%s was made beside the old cluster", name)
			}
		}
		if _, err := os.Stat(filepath.Join(cluster, "PG_VERSION")); err != nil {
			t.Errorf("the old cluster was touched: %v", err)
		}
	})

	t.Run("of_named_binaries", func(t *testing.T) {
		dir := dataDir(t)
		acquire(t, testOptions(dir)).Close()
		waitGone(t, dir)
		o := testOptions(dir)
		o.BinDir = fakeBinaries(t, "postgres (PostgreSQL) 98.1 (Fake)")
		_, err := Acquire(bounded(t), o)
		refused(t, err, "98 in "+o.BinDir, "--pg-bin")
		acquire(t, testOptions(dir))
	})
}

func TestBinaries(t *testing.T) {
	t.Run("newest_as_a_number", func(t *testing.T) {
		nine, hundred := fakeBinaries(t, "postgres (PostgreSQL) 9.6.24"), fakeBinaries(t, "postgres (PostgreSQL) 100beta1")
		t.Setenv("PATH", nine+":"+hundred+":"+os.Getenv("PATH"))
		b, err := FindBinaries(bounded(t), Options{DataDir: filepath.Join(dataDir(t), "none")})
		if err != nil || b.Dir != hundred || b.Major != 100 || b.Version != "100beta1" {
			t.Errorf("found %+v, %v", b, err)
		}
	})
	for _, c := range []struct{ name, version, message, hint string }{
		{"too_old", "postgres (PostgreSQL) 14.2", "it is version 14, 15 or later is needed", "--pg-bin"},
		{"unknown_answer", "mysqld 8", "unknown answer", "--pg-bin"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := testOptions(dataDir(t))
			o.BinDir = fakeBinaries(t, c.version)
			_, err := FindBinaries(bounded(t), o)
			refused(t, err, c.message, c.hint)
		})
	}
	t.Run("none", func(t *testing.T) {
		o := testOptions(dataDir(t))
		o.BinDir = filepath.Join(o.DataDir, "nothing")
		_, err := FindBinaries(bounded(t), o)
		refused(t, err, "no such file", "initdb and postgres")
		refused(t, noBinaries(o, 0, nil), "none is installed", "postgres")
		refused(t, noBinaries(o, 0, []string{"9 in /old"}), "found only Postgres 9 in /old", "--pg-bin")
	})
	t.Run("psql", func(t *testing.T) {
		b := Binaries{Dir: t.TempDir()}
		t.Setenv("PATH", "")
		_, err := b.Tool("psql")
		refused(t, err, "find psql", "")
		beside := filepath.Join(b.Dir, "psql")
		if err := os.WriteFile(beside, nil, 0o755); err != nil {
			t.Fatal(err)
		}
		if got, err := b.Tool("psql"); got != beside || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	})
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)

	t.Run("options", func(t *testing.T) {
		_, err := Acquire(bounded(t), Options{Fetch: "sometimes"})
		refused(t, err, `unknown policy "sometimes"`, "auto or never")
		_, err = Acquire(bounded(t), Options{TCPPort: 70000})
		refused(t, err, "out of range", "65535")
	})

	t.Run("a_folder_that_the_servers_user_cannot_enter", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("only root's server runs as another user")
		}
		parent := dataDir(t)
		if err := os.Chmod(parent, 0o700); err != nil {
			t.Fatal(err)
		}
		_, err := Acquire(bounded(t), testOptions(filepath.Join(parent, "data")))
		refused(t, err, "cannot enter folder "+strconv.Quote(parent), "--data-dir")
		refused(t, err, "cannot enter folder", "chmod o+x "+parent)
	})

	t.Run("a_server_with_other_terms", func(t *testing.T) {
		acquire(t, testOptions(dir))
		_, err := Acquire(bounded(t), Options{DataDir: dir})
		refused(t, err, "without fsync", "stop it first")
		_, err = Acquire(bounded(t), Options{DataDir: dir, UnsafeNoFsync: true, TCPPort: 1})
		refused(t, err, "TCP port 1", "stop it first")
	})

	t.Run("a_server_that_somebody_has_started_by_hand", func(t *testing.T) {
		lease := acquire(t, testOptions(dir))
		lease.Close()
		waitGone(t, dir)
		l := layout{root: dir}
		owner, err := l.owner(lease.Major())
		if err != nil {
			t.Fatal(err)
		}
		account, err := chooseAccount(owner)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(filepath.Join(lease.state.BinDir, "postgres"),
			"-D", l.cluster(lease.Major()), "-k", lease.state.SocketDir, "-c", "listen_addresses=")
		cmd.SysProcAttr = processAttributes(account)
		pm := &postmaster{exited: make(chan struct{})}
		if err := pm.run(cmd); err != nil {
			t.Fatal(err)
		}
		defer pm.stop()
		err = poll(bounded(t), readyPoll, func() (bool, error) {
			file, err := readPIDFile(l.cluster(lease.Major()))
			return err == nil && file.ready, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		_, err = Acquire(bounded(t), testOptions(dir))
		refused(t, err, fmt.Sprintf("process %d", pm.process.Pid), "pg_ctl stop -D")
		pm.stop()
		acquire(t, testOptions(dir))
	})

	t.Run("settings_that_the_server_refuses", func(t *testing.T) {
		waitGone(t, dir)
		o := testOptions(dir)
		o.Settings = map[string]string{"shared_buffers": "lots"}
		_, err := Acquire(bounded(t), o)
		refused(t, err, `invalid value for parameter "shared_buffers": "lots"`, "pg")
	})
}

func TestTCP(t *testing.T) {
	t.Parallel()
	probe, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := testOptions(dataDir(t))
	o.TCPPort = probe.Addr().(*net.TCPAddr).Port
	probe.Close()
	lease := acquire(t, o)
	address, err := lease.TCPURL()
	if err != nil {
		t.Fatal(err)
	}
	const here = `SELECT coalesce(host(inet_server_addr()), 'socket')`
	if got := query(t, address, here); got != "127.0.0.1" {
		t.Errorf("through TCP it is reached at %q", got)
	}
	if got := query(t, lease.URL(), here); got != "socket" {
		t.Errorf("through the socket it is reached at %q", got)
	}
	wrong, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	wrong.User = url.UserPassword(UserName, "guess")
	if _, err := answers(bounded(t), wrong.String()); err == nil || !strings.Contains(err.Error(), "password authentication failed") {
		t.Errorf("a wrong password: %v", err)
	}
}

// fakeBinaries returns a folder with a postgres that gives this answer to --version, and an initdb.
func fakeBinaries(t *testing.T, answer string) string {
	t.Helper()
	dir := dataDir(t)
	for _, name := range []string{"postgres", "initdb"} {
		script := "#!/bin/sh\necho '" + answer + "'\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
