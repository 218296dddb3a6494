package pgtest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// needVariable turns the skipping of tests without a PgBouncer into a failure.
const needVariable = "JOBLEDGER_NEED_PGBOUNCER"

// bouncerSettings are those of every PgBouncer of a test: transaction pooling, and a client that gets no server within
// half a minute is told so. PgBouncer's own defaults hold for all others.
const bouncerSettings = `[databases]
* = %s

[pgbouncer]
pool_mode = transaction
default_pool_size = 2
max_client_conn = 400
query_wait_timeout = 30
auth_type = any
listen_addr =
listen_port = 6432
unix_socket_dir = %s
unix_socket_mode = 0777
log_connections = 0
log_disconnections = 0
stats_period = 3600
`

// bouncerScript runs PgBouncer until its own standard input ends, which it does with the process that holds the other
// end, however that one ends.
const bouncerScript = `"$1" -q "$2" & read line; kill $!; wait`

// PgBouncer starts a real PgBouncer in front of the server, in transaction mode with two server connections, and
// returns the URL of the database through it. settings, such as "default_pool_size = 5", are added to its [pgbouncer]
// section and replace what stands there. It is stopped at the end of the test. Where PgBouncer isn't installed the
// test is skipped, or fails if JOBLEDGER_NEED_PGBOUNCER is set.
func (db *DB) PgBouncer(t testing.TB, settings ...string) string {
	t.Helper()
	program := findBouncer(t)
	direct, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	account := bouncerAccount(t, direct.Host)
	dir, err := os.MkdirTemp("/tmp", "jobledger-pgbouncer-") // not t.TempDir: its user couldn't enter it
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ini := filepath.Join(dir, "pgbouncer.ini")
	body := fmt.Sprintf(bouncerSettings, bouncerServer(direct), dir) + strings.Join(settings, "\n") + "\n"
	if err := os.WriteFile(ini, []byte(body), 0o600); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	if account != nil {
		for _, path := range []string{dir, ini} {
			if err := os.Chown(path, int(account.Uid), int(account.Gid)); err != nil {
				t.Fatalf("pgtest: %v", err)
			}
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatalf("pgtest: %v", err)
		}
	}
	startBouncer(t, program, ini, account)
	return "postgres:///" + db.Name + "?" + url.Values{"host": {dir}, "port": {"6432"}, "user": {direct.User}}.Encode()
}

// findBouncer looks where Debian puts it, too: an ordinary user's path leads past it.
func findBouncer(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	const missing = "PgBouncer is not installed: apt-get install pgbouncer"
	if os.Getenv(needVariable) != "" {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

// bouncerAccount is who PgBouncer runs as: nobody else than the test, but for root, whom it refuses. Then it is who
// runs the server, whom that lets in through its socket.
func bouncerAccount(t testing.TB, host string) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	if info, err := os.Stat(host); err == nil && filepath.IsAbs(host) {
		if owner, ok := info.Sys().(*syscall.Stat_t); ok && owner.Uid != 0 {
			return &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
		}
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatalf("pgtest: a user to run PgBouncer as: %v", err)
	}
	uid, _ := strconv.ParseUint(nobody.Uid, 10, 32)
	gid, _ := strconv.ParseUint(nobody.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// bouncerServer is the server in the words of pgbouncer.ini.
func bouncerServer(direct *pgx.ConnConfig) string {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	server := fmt.Sprintf("host=%s port=%d user=%s", quote(direct.Host), direct.Port, quote(direct.User))
	if direct.Password != "" {
		server += " password=" + quote(direct.Password)
	}
	return server
}

// startBouncer returns once its socket takes connections.
func startBouncer(t testing.TB, program, ini string, account *syscall.Credential) {
	t.Helper()
	cmd := exec.Command("sh", "-c", bouncerScript, "sh", program, ini)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: account} // a terminal's ^C is not for it
	cmd.WaitDelay = closeTimeout
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	life, err := cmd.StdinPipe()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("pgtest: start PgBouncer: %v", err)
	}
	stop := func() { stopBouncer(life, cmd) }
	t.Cleanup(stop)
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	ticker := time.NewTicker(waitPoll)
	defer ticker.Stop()
	for {
		conn, err := net.Dial("unix", filepath.Join(filepath.Dir(ini), ".s.PGSQL.6432"))
		if err == nil {
			conn.Close()
			return
		}
		select {
		case <-ctx.Done():
			stop()
			t.Fatalf("pgtest: PgBouncer does not start: %v\n%s", err, said.String())
		case <-ticker.C:
		}
	}
}

func stopBouncer(life io.Closer, cmd *exec.Cmd) {
	life.Close()
	_ = cmd.Wait() // it was told to end, and so its exit code says nothing
}
