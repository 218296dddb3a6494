package embedded

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStale starts a cluster in which a killed server has left its files.
func TestStale(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	lease := acquire(t, testOptions(dir))
	l, cluster := layout{root: dir}, layout{root: dir}.cluster(lease.Major())
	lease.Close()
	waitGone(t, dir)
	owner, err := l.owner(lease.Major())
	if err != nil {
		t.Fatal(err)
	}
	account, err := chooseAccount(owner)
	if err != nil {
		t.Fatal(err)
	}

	body := func(pid int) string {
		return fmt.Sprintf("%d\n%s\n1\n%d\n%s\n\n", pid, cluster, socketPort, lease.state.SocketDir)
	}
	for _, c := range []struct{ name, body string }{
		{"a_process_id_that_nobody_has", body(1 << 22)},
		{"a_process_id_that_another_program_has", body(os.Getpid())},
		{"no_process_id", ""}, // the disk was full
		{"garbage_as_process_id", "what?\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			leave := func(path, body string) {
				if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := account.own(path); err != nil {
					t.Fatal(err)
				}
			}
			leave(filepath.Join(cluster, "postmaster.pid"), c.body)
			socket := socketFile(lease.state.SocketDir, socketPort)
			leave(socket, "")
			leave(socket+".lock", c.body)
			again := acquire(t, testOptions(dir))
			again.Close()
			waitGone(t, dir)
		})
	}

	t.Run("a_half_made_cluster", func(t *testing.T) {
		dir := dataDir(t)
		half := layout{root: dir}.cluster(lease.Major()) + ".init-123"
		if err := os.MkdirAll(filepath.Join(half, "base"), 0o700); err != nil {
			t.Fatal(err)
		}
		acquire(t, testOptions(dir))
		if _, err := os.Stat(half); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", half, err)
		}
	})
}

func TestLongPath(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(dataDir(t), strings.Repeat("long", 20), strings.Repeat("path", 20))
	lease := acquire(t, testOptions(dir))
	short := lease.state.SocketDir
	if len(socketFile(short, 65535)) > maxSocketPath || strings.HasPrefix(short, dir) {
		t.Fatalf("the socket is in %s", short)
	}
	if got := query(t, lease.URL(), `SELECT 'reached'`); got != "reached" {
		t.Error(got)
	}
	info, err := os.Stat(short)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the socket's folder: %v, %v", info, err)
	}
	lease.Close()
	waitGone(t, dir)
	if _, err := os.Stat(short); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", short, err)
	}

	// Somebody else was there first.
	if err := os.Mkdir(short, 0o777); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(short)
	if err := os.Chmod(short, 0o777); err != nil {
		t.Fatal(err)
	}
	_, err = Acquire(bounded(t), testOptions(dir))
	refused(t, err, "with mode 0700", "remove it")
}

func TestLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "server.log")
	log, err := layout{root: filepath.Dir(path)}.openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if got := logReason(path, 0); got != "it logged nothing" {
		t.Errorf("reason in an empty log: %q", got)
	}
	if _, err := log.WriteString("x FATAL:  old\n" + strings.Repeat("y", maxLog) + "\n"); err != nil {
		t.Fatal(err)
	}
	begin := logSize(log)
	if err := trimLog(path); err != nil {
		t.Fatal(err)
	}
	if size := logSize(log); size != 0 {
		t.Errorf("%d bytes are left", size)
	}
	if info, err := os.Stat(path + ".1"); err != nil || info.Size() != begin {
		t.Errorf("the copy: %v, %v", info, err)
	}
	if _, err := log.WriteString("LOG:  a\nFATAL:  no room\nHINT:  make some\nLOG:  b\n"); err != nil {
		t.Fatal(err)
	}
	if got := logReason(path, 0); got != "no room; make some" {
		t.Errorf("reason: %q", got)
	}
}
