package embedded

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The edges of a private server, and the test that holds each. At all of them there is a clean start, or one error with a
// hint; what was committed is there afterwards, and never an empty cluster in place of one with data.
//
//	cluster of another major version, also by --pg-bin       TestMismatch
//	no binaries, too old ones, downloads                     TestBinaries, TestFetch
//	pid file of a dead, a foreign, or no process             TestStale
//	a server that was started by hand                        TestRefusals
//	cluster half made, gone, empty, damaged in any part      TestStale, TestDamagedCluster
//	cluster or data directory behind a symbolic link         TestDamagedCluster, TestLinks
//	disk full at initdb, at start, at work                   TestFullDisk
//	read-only file system                                    TestReadOnlyDisk
//	socket path too long, its folder taken                   TestLongPath
//	TCP port taken, out of memory, settings refused          TestPortTaken, TestDamagedCluster, TestRefusals
//	root without an unprivileged user                        TestNoServiceUser
//	a folder that the server's user cannot enter             TestRefusals
//	folder or cluster of another user                        TestSomebodyElsesFolder, TestDamagedCluster
//	many cold starts at once                                 TestAcquire, TestColdStartsAtOnce
//	SIGKILL of client, supervisor, server at each stage      TestDeath, TestKilledAtEachStage, TestServerKilledWhileItStarts, TestChaos
//
// TestAsNobody runs those that need no root again as a user without rights.

// stopped returns a data directory with a stopped server that has data in it.
func stopped(t *testing.T, dir string) (layout, Binaries) {
	t.Helper()
	lease := acquire(t, testOptions(dir))
	execute(t, lease.URL(), `CREATE TABLE kept AS SELECT 'still here' AS word`)
	lease.Close()
	waitGone(t, dir)
	return layout{root: dir}, Binaries{Dir: lease.state.BinDir, Major: lease.Major()}
}

// kept asserts that the server starts and has its data.
func kept(t *testing.T, dir string) {
	t.Helper()
	lease := acquire(t, testOptions(dir))
	if got := query(t, lease.URL(), `SELECT word FROM kept`); got != "still here" {
		t.Errorf("the data: %q", got)
	}
	lease.Close()
	waitGone(t, dir)
}

// names lists a folder.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return strings.Join(all, " ")
}

// TestDamagedCluster takes one part after the other away from a cluster, or puts another in its place. It is refused with the
// reason, nothing is made beside it, and with the part put back it starts and has its data.
func TestDamagedCluster(t *testing.T) {
	t.Parallel()
	dir, aside := dataDir(t), filepath.Join(dataDir(t), "part")
	l, b := stopped(t, dir)
	cluster := l.cluster(b.Major)
	owner, err := ownerOf(cluster)
	if err != nil {
		t.Fatal(err)
	}
	own := func(path string) error { return os.Chown(path, owner, -1) }
	file := func(body string) func(string) error {
		return func(path string) error { return errors.Join(os.WriteFile(path, []byte(body), 0o600), own(path)) }
	}
	folder := func(path string) error { return errors.Join(os.Mkdir(path, 0o700), own(path)) }
	nothing := func(string) error { return nil }
	for _, c := range []struct {
		name, part    string // the part is taken away; "." is the cluster itself, "" nothing
		put           func(path string) error
		message, hint string
	}{
		{"gone", ".", nothing, "its cluster " + filepath.Base(cluster) + " is gone", "put " + cluster + " back"},
		{"empty", ".", folder, "is damaged: the folder is empty", "restore that folder from a backup"},
		{"a_file", ".", file(""), "is damaged: it is not a folder", "restore"},
		{"a_link_to_nowhere", ".", func(path string) error { return os.Symlink("/nowhere/cluster", path) },
			"is damaged: it is a link to /nowhere/cluster, which is not there", "disk is mounted"},
		{"without_version", "PG_VERSION", nothing, "is damaged: it has no file PG_VERSION", "restore"},
		{"garbage_as_version", "PG_VERSION", file("abc\n"), `is damaged: its file PG_VERSION holds "abc"`, "restore"},
		{"without_control_file", "global/pg_control", nothing, `could not open file "` + cluster + "/global/pg_control", "never run initdb"},
		{"zeros_as_control_file", "global/pg_control", file(string(make([]byte, 8192))), "incompatible with server", "never run initdb"},
		{"without_log_of_changes", "pg_wal", nothing, `required WAL directory "pg_wal" does not exist`, "restore"},
		{"with_an_empty_log_of_changes", "pg_wal", folder, "could not locate a valid checkpoint record", "never run initdb or pg_resetwal"},
		{"without_databases", "base", nothing, `database "postgres" does not exist`, "restore"},
		{"without_configuration", "postgresql.conf", nothing, "could not access the server configuration file", "read " + l.serverLog(b.Major)},
		{"without_access_rules", "pg_hba.conf", nothing, "could not load pg_hba.conf: could not open ", "read " + l.serverLog(b.Major)},
		{"with_a_bad_setting", "postgresql.auto.conf", file("max_connections = lots\n"),
			`contains errors: invalid value for parameter "max_connections": "lots"`, "mend or remove that line"},
		{"with_more_memory_than_there_is", "postgresql.auto.conf", file("shared_buffers = '8000GB'\n"),
			"could not map anonymous shared memory", "lower shared_buffers"},
		{"open_to_all", "", func(string) error { return os.Chmod(cluster, 0o777) }, "has invalid permissions", "chmod 0700 " + cluster},
		{"with_a_part_that_cannot_be_read", "", func(string) error { return os.Chmod(filepath.Join(cluster, "base"), 0) }, "Permission denied", "chown -R "},
	} {
		t.Run(c.name, func(t *testing.T) {
			if how, err := os.ReadFile("/proc/sys/vm/overcommit_memory"); c.name == "with_more_memory_than_there_is" && (err != nil || string(how) == "1\n") {
				t.Skip("this system would promise it any memory, and keep no promise")
			}
			path := filepath.Join(cluster, c.part)
			if c.part != "" {
				if err := os.Rename(path, aside); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.put(path); err != nil {
				t.Fatal(err)
			}
			before := names(t, dir)
			_, err := Acquire(bounded(t), testOptions(dir))
			refused(t, err, c.message, c.hint)
			if after := names(t, dir); after != before {
				t.Errorf("there was %s, now there is %s", before, after)
			}
			if c.part != "" {
				if err := errors.Join(os.RemoveAll(path), os.Rename(aside, path)); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(os.Chmod(cluster, 0o700), os.Chmod(filepath.Join(cluster, "base"), 0o700)); err != nil {
				t.Fatal(err)
			}
		})
	}
	kept(t, dir)
}

// TestLinks: the data directory, or the cluster in it, may be a link to another disk; then whoever owns what it leads to is
// the user, and not who owns the link.
func TestLinks(t *testing.T) {
	t.Parallel()
	dir, other := dataDir(t), dataDir(t)
	l, b := stopped(t, dir)
	moved := filepath.Join(other, "cluster")
	if err := os.Rename(l.cluster(b.Major), moved); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(moved, l.cluster(b.Major)); err != nil {
		t.Fatal(err)
	}
	password, err := os.ReadFile(l.password(b.Major))
	if err != nil {
		t.Fatal(err)
	}
	kept(t, dir)
	link := filepath.Join(other, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	kept(t, link)
	if again, err := os.ReadFile(l.password(b.Major)); err != nil || string(again) != string(password) {
		t.Errorf("the password has changed: %v", err)
	}

	if os.Geteuid() == 0 {
		if err := os.Chown(dir, 1, 1); err != nil {
			t.Fatal(err)
		}
		if owner, err := (layout{root: link}).owner(0); owner != 1 || err != nil {
			t.Errorf("the owner is %d, %v; want 1, as of what the link leads to", owner, err)
		}
	}
	nowhere := filepath.Join(other, "nowhere")
	if err := os.Symlink("/nowhere/data", nowhere); err != nil {
		t.Fatal(err)
	}
	_, err = Acquire(bounded(t), testOptions(nowhere))
	refused(t, err, nowhere+" is a link to /nowhere/data, which is not there: is its disk mounted?", "--data-dir")
}

func TestPortTaken(t *testing.T) {
	t.Parallel()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	dir := dataDir(t)
	o := testOptions(dir)
	o.TCPPort = other.Addr().(*net.TCPAddr).Port
	_, err = Acquire(bounded(t), o)
	refused(t, err, "could not create any TCP/IP sockets: could not bind IPv4 address \"127.0.0.1\": Address already in use", "another program has that port")
	other.Close()
	acquire(t, o)
}

// TestNoServiceUser is not parallel: it takes the users away from all others.
func TestNoServiceUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root's server runs as another user")
	}
	users := serviceUsers
	defer func() { serviceUsers = users }()
	serviceUsers = []string{"jobledger-test-none"}
	dir := dataDir(t)
	_, err := Acquire(bounded(t), testOptions(dir))
	refused(t, err, "it cannot run as root, and none of the users", "useradd --system")
	if got := names(t, dir); got != "run" {
		t.Errorf("it has made %s", got)
	}
}

func TestSomebodyElsesFolder(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root may use all; TestAsNobody runs this")
	}
	for _, dir := range []string{"/root/jobledger", "/etc"} {
		_, err := Acquire(bounded(t), testOptions(dir))
		refused(t, err, "permission denied", "--data-dir")
		_, err = Acquire(bounded(t), testOptions(filepath.Join(dir, "jobledger")))
		refused(t, err, "permission denied", "--data-dir")
	}
}
