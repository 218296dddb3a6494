package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/jobledger/jobledger/adapters/postgres/embedded"
)

// The environment variables that replace the shared server, its binaries or the folder of its data.
const (
	urlVariable  = "JOBLEDGER_TEST_DATABASE_URL"
	binVariable  = "JOBLEDGER_TEST_PG_BIN"
	dataVariable = "JOBLEDGER_TEST_DATA_DIR"
)

// memoryDir is a file system in memory on Linux. A database has 300 files; creating and dropping one took 40 ms there,
// and 60 to 340 ms on a disk whose file system was slow to find free inodes.
const memoryDir = "/dev/shm"

// minMemory is what must be free there, in bytes: many times what the server needs, as containers have little of it.
const minMemory = 4 << 30

// databasePrefix begins the name of every database of this package: jl_<keepers>_<owner>_<number> and
// jl_<keepers>_template_<hash>, where keepers is a hash of the database that the keepers connect to.
const databasePrefix = "jl_"

// The first keys of our advisory locks; the second is an owner, or the hash of a template's name.
const (
	ownerLocks    = 0x6a6c0001 // held by each process for its life: its databases are in use
	templateLocks = 0x6a6c0002 // held shared by each process that uses the template, exclusively by who drops it
	buildLocks    = 0x6a6c0003 // held by the one who builds the template, or sweeps
)

// maxSwept bounds how many left-over databases one process drops, so that its first test needn't wait for all of them.
const maxSwept = 32

// server is the Postgres of this process, acquired once and given back by the end of the process.
type server struct {
	base   *url.URL        // of the database that all keepers connect to, since advisory locks are each database's own
	prefix string          // of the names of its databases: jl_<keepers>_
	lease  *embedded.Lease // nil for another's server
	owner  uint32          // names this process in names of databases
	count  atomic.Int64    // of databases that it has named

	// keeper is the session whose advisory locks say that this process lives. Nothing else runs on it once it is set up,
	// but for what template needs.
	mu           sync.Mutex
	keeper       *pgx.Conn
	templateName string // set once the template is ready
}

// connected is what sharedServer returns, to all tests of the process.
var connected = sync.OnceValues(func() (*server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*stepTimeout)
	defer cancel()
	return connect(ctx)
})

func sharedServer(t testing.TB) *server {
	t.Helper()
	s, err := connected()
	if err != nil {
		fatal(t, err)
	}
	return s
}

// fatal ends the test with the error, and with its hint if it has one.
func fatal(t testing.TB, err error) {
	t.Helper()
	t.Fatalf("pgtest: %v", withHint(err))
}

// withHint writes behind the error how to get a server, where its cause knows.
func withHint(err error) error {
	if e, ok := errors.AsType[*embedded.Error](err); ok && e.Hint != "" {
		return fmt.Errorf("%w\nhint: %s", err, e.Hint)
	}
	return err
}

// connect finds or starts the server of this user, or the one in the environment, and makes this process known to it.
func connect(ctx context.Context) (*server, error) {
	if address := os.Getenv(urlVariable); address != "" {
		s, err := enter(ctx, address)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", urlVariable, err)
		}
		return s, nil
	}
	lease, err := acquire(ctx)
	if err != nil {
		return nil, err
	}
	s, err := enter(ctx, lease.URL())
	if err != nil {
		return nil, errors.Join(err, lease.Close())
	}
	s.lease = lease
	return s, nil
}

// enter makes this process known to the server at address and drops what killed processes left. Locks are each
// database's own: the names of ours tell in which one their keepers meet, or who meets in another would take living
// ones for left over.
func enter(ctx context.Context, address string) (*server, error) {
	base, err := url.Parse(address)
	if err != nil || !strings.HasPrefix(base.Scheme, "postgres") {
		return nil, errors.New("it is no URL such as postgres://user@host/database")
	}
	s := &server{base: base, prefix: fmt.Sprintf("%s%04x_", databasePrefix, crc32.ChecksumIEEE([]byte(base.Path))>>16)}
	var id [4]byte
	rand.Read(id[:])
	s.owner = binary.BigEndian.Uint32(id[:])
	if s.keeper, err = pgx.Connect(ctx, address); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	// Another's server may cut off sessions that do nothing, which is all that this one is for.
	if _, err := s.keeper.Exec(ctx, `SET idle_session_timeout = 0`); err != nil {
		return nil, fmt.Errorf("keep a session: %w", err)
	}
	if _, err := s.keeper.Exec(ctx, `SELECT pg_advisory_lock($1, $2)`, int32(ownerLocks), int32(s.owner)); err != nil {
		return nil, fmt.Errorf("lock the name of this process: %w", err)
	}
	if err := s.sweep(ctx); err != nil {
		return nil, fmt.Errorf("drop what killed tests left behind: %w", err)
	}
	return s, nil
}

// acquire takes a share in the user's test server of the newest major version that is installed.
func acquire(ctx context.Context) (*embedded.Lease, error) {
	base := serverDir()
	options := embedded.Options{
		BinDir:        os.Getenv(binVariable),
		Notice:        func(line string) { fmt.Fprintln(os.Stderr, line) },
		UnsafeNoFsync: true,
		// Several packages at once, each with parallel tests and their pools.
		Settings: map[string]string{
			"max_connections": "400", "log_checkpoints": "off", "max_wal_size": "256MB", "min_wal_size": "80MB",
		},
	}
	// A folder that doesn't exist has no cluster that would decide the version.
	options.DataDir = filepath.Join(base, "none")
	binaries, err := embedded.FindBinaries(ctx, options)
	if err != nil {
		return nil, err
	}
	options.DataDir = filepath.Join(base, strconv.Itoa(binaries.Major))
	return embedded.Acquire(ctx, options)
}

// serverDir returns where the test server's data live. They stay between runs, which saves creating the cluster; the
// folder may be removed at any time when no test runs.
func serverDir() string {
	if dir := os.Getenv(dataVariable); dir != "" {
		return dir
	}
	var memory unix.Statfs_t
	if err := unix.Statfs(memoryDir, &memory); err == nil && uint64(memory.Bavail)*uint64(memory.Bsize) >= minMemory {
		return filepath.Join(memoryDir, "jobledger-pgtest-"+strconv.Itoa(os.Geteuid()))
	}
	if os.Geteuid() == 0 {
		return "/var/lib/jobledger-pgtest" // the user that runs the server cannot enter root's home
	}
	if cache, err := os.UserCacheDir(); err == nil {
		dir := filepath.Join(cache, "jobledger-pgtest")
		if os.MkdirAll(dir, 0o700) == nil {
			return dir
		}
	}
	return filepath.Join(os.TempDir(), "jobledger-pgtest-"+strconv.Itoa(os.Geteuid()))
}

// nextName returns a name for a database of this process.
func (s *server) nextName() string {
	return fmt.Sprintf("%s%08x_%d", s.prefix, s.owner, s.count.Add(1))
}

// urlOf returns the connection URL of another database of this server.
func (s *server) urlOf(database string) string {
	address := *s.base
	address.Path = "/" + database
	return address.String()
}

func (s *server) createDatabase(ctx context.Context, name, template string) error {
	return s.exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" TEMPLATE "+pgx.Identifier{template}.Sanitize())
}

// dropDatabase drops a database with all connections to it. It is no error if it is gone already.
func (s *server) dropDatabase(ctx context.Context, name string) error {
	return s.exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
}

// exec runs one statement on a connection of its own, so that parallel tests don't wait for each other.
func (s *server) exec(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, s.base.String())
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}

// sweep drops databases whose owner is gone: one whose lock is free. At most one process does it at a time.
func (s *server) sweep(ctx context.Context) error {
	return s.tryLocked(ctx, buildLocks, 0, func() error {
		rows, err := s.keeper.Query(ctx, `SELECT datname FROM pg_database WHERE datname ~ ('^' || $1 || '[0-9a-f]{8}_') ORDER BY oid`, s.prefix)
		if err != nil {
			return err
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		for _, name := range names[:min(len(names), maxSwept)] {
			owner, err := strconv.ParseUint(name[len(s.prefix):len(s.prefix)+8], 16, 32)
			if err != nil || uint32(owner) == s.owner {
				continue
			}
			err = s.tryLocked(ctx, ownerLocks, uint32(owner), func() error { return s.dropDatabase(ctx, name) })
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// tryLocked runs f under an advisory lock of the keeper, or not at all if somebody has it.
func (s *server) tryLocked(ctx context.Context, class int32, key uint32, f func() error) error {
	var free bool
	err := s.keeper.QueryRow(ctx, `SELECT pg_try_advisory_lock($1, $2)`, class, int32(key)).Scan(&free)
	if err != nil || !free {
		return err
	}
	err = f()
	_, unlockErr := s.keeper.Exec(ctx, `SELECT pg_advisory_unlock($1, $2)`, class, int32(key))
	return errors.Join(err, unlockErr)
}
