package embedded

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// clientEnv makes the test binary a client process of its own: "acquire" or "exclusive", a space, the data directory.
const clientEnv = "JOBLEDGER_EMBEDDED_TEST_CLIENT"

// testTimeout bounds every wait in these tests.
const testTimeout = time.Minute

func TestMain(m *testing.M) {
	if what := os.Getenv(clientEnv); what != "" {
		how, dir, _ := strings.Cut(what, " ")
		os.Exit(clientMain(how, dir))
	}
	goleak.VerifyTestMain(m)
}

// clientMain takes the server, prints the process ids of server and supervisor, and waits until it is killed or its
// standard input ends, without giving anything back.
func clientMain(how, dir string) int {
	o := testOptions(dir)
	switch how {
	case "acquire":
		lease, err := Acquire(context.Background(), o)
		if err != nil {
			return complain(err)
		}
		fmt.Println(lease.state.ServerPID, lease.state.SupervisorPID)
		io.Copy(io.Discard, os.Stdin)
		runtime.KeepAlive(lease)
		return 0 // without closing it: that is left to the kernel
	case "exclusive":
		server, err := StartExclusive(context.Background(), o)
		if err != nil {
			return complain(err)
		}
		fmt.Println(server.pm.process.Pid, os.Getpid())
		io.Copy(io.Discard, os.Stdin)
		runtime.KeepAlive(server)
		return 0
	}
	return complain(fmt.Errorf("unknown client %q", how))
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// client is a client process.
type client struct {
	cmd        *exec.Cmd
	stdin      io.Closer
	stdout     *bufio.Reader
	server     int // process ids that it has printed
	supervisor int
}

// spawn starts a client process without waiting for its answer. extra are further files that it inherits.
func spawn(t *testing.T, how, dir string, extra ...*os.File) *client {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	if _, err := os.Lstat(cmd.Path); err != nil {
		cmd = exec.Command(os.Args[0])
	}
	cmd.Env = append(os.Environ(), clientEnv+"="+how+" "+dir)
	cmd.ExtraFiles = extra
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &client{cmd: cmd, stdin: stdin, stdout: bufio.NewReader(stdout)}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return c
}

// ready waits until the client has the server.
func (c *client) ready(t *testing.T) *client {
	t.Helper()
	if _, err := fmt.Fscan(c.stdout, &c.server, &c.supervisor); err != nil {
		t.Fatalf("client process: %v", err)
	}
	return c
}

func (c *client) kill() {
	c.cmd.Process.Kill()
	c.cmd.Wait()
}

// dataDir returns a new data directory, with a server that is stopped at the end. It isn't t.TempDir, which root's
// server couldn't enter and whose path is too long for a socket.
func dataDir(t *testing.T) string {
	t.Helper()
	return dataDirIn(t, quickDir())
}

// quickDir returns a file system in memory if there is a large one: half of the time of a cold start goes into
// creating a thousand files.
func quickDir() string {
	var memory unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &memory); err == nil && uint64(memory.Bavail)*uint64(memory.Bsize) >= 4<<30 {
		return "/dev/shm"
	}
	return "/tmp"
}

func dataDirIn(t *testing.T, parent string) string {
	t.Helper()
	dir, err := os.MkdirTemp(parent, "jobledger-test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := Stop(context.Background(), Options{DataDir: dir}); err != nil {
			t.Errorf("stop the server: %v", err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// testOptions are the options of all tests but those of the options themselves.
// Shared memory in files of the data directory goes with it, even if the last server was killed.
func testOptions(dir string) Options {
	return Options{DataDir: dir, UnsafeNoFsync: true, Settings: map[string]string{"dynamic_shared_memory_type": "mmap"}}
}

func acquire(t *testing.T, o Options) *Lease {
	t.Helper()
	lease, err := Acquire(bounded(t), o)
	if err != nil {
		t.Fatalf("acquire: %#v", err)
	}
	t.Cleanup(func() { lease.Close() })
	return lease
}

// bounded returns a context for everything that a test waits for. It outlives t.Context, for use in clean-ups.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// waitGone waits until the supervisor and every process of the server are gone: the kernel says so by their locks.
func waitGone(t *testing.T, dir string) {
	t.Helper()
	l := layout{root: dir}
	for _, path := range []string{l.supervisorLock(), l.serverLock()} {
		lock, err := takeLock(bounded(t), path, unix.LOCK_EX)
		if err != nil {
			t.Fatalf("wait for %s: %v", path, err)
		}
		lock.close()
	}
}

// execute runs a statement on a new connection.
func execute(t *testing.T, url, statement string) {
	t.Helper()
	ctx := bounded(t)
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, statement); err != nil {
		t.Fatal(err)
	}
}

// query returns the answer of a query for one text.
func query(t *testing.T, url, statement string) string {
	t.Helper()
	ctx := bounded(t)
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var answer string
	if err := conn.QueryRow(ctx, statement).Scan(&answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

// TestAsNobody runs the tests of a server's life again as a user without rights, for when all the others run as root.
func TestAsNobody(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can change its user, and these tests don't run as root already")
	}
	if testing.Short() {
		t.Skip("runs tests a second time")
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Skip("there is no user nobody")
	}
	uid, _ := strconv.Atoi(nobody.Uid)
	gid, _ := strconv.Atoi(nobody.Gid)
	home, err := os.MkdirTemp("/tmp", "jobledger-nobody-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(home)
	if err := os.Chown(home, uid, gid); err != nil {
		t.Fatal(err)
	}
	// go test puts the binary where nobody else can reach it.
	body, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Skip("this system doesn't show a process its binary")
	}
	binary := filepath.Join(home, "embedded.test")
	if err := os.WriteFile(binary, body, 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{"-test.run=^(TestAcquire|TestDeath|TestStale|TestTCP|TestDamagedCluster|TestLinks|TestSomebodyElsesFolder)$", "-test.short", "-test.count=1"}
	if testing.Verbose() {
		args = append(args, "-test.v")
	}
	cmd := exec.CommandContext(bounded(t), binary, args...)
	cmd.Dir = home
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, "XDG_") || strings.HasPrefix(entry, "HOME=")
	}), "HOME="+home)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	out, err := cmd.CombinedOutput()
	t.Logf("as %s:\n%s", nobody.Username, out)
	if err != nil {
		t.Fatal(err)
	}
}
