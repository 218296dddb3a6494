package pgtest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/embedded"
)

// Exclusive returns a server of this test alone, with the current schema in its database, to be killed and restarted
// by the test. It takes a second or two, where New takes a fraction; it is gone with its data at the end of the test.
// Its fsync is off, which SIGKILL doesn't mind: what the system has in its cache outlives the server.
func Exclusive(t testing.TB) *embedded.Server {
	t.Helper()
	// Not t.TempDir: root's server couldn't enter it, and the path of its socket would be too long.
	parent := filepath.Dir(serverDir())
	if err := os.MkdirAll(parent, 0o755); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	dir, err := os.MkdirTemp(parent, "jobledger-exclusive-")
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	if os.Geteuid() == 0 {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatalf("pgtest: %v", err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*stepTimeout)
	defer cancel()
	server, err := embedded.StartExclusive(ctx, embedded.Options{
		DataDir:       dir,
		BinDir:        os.Getenv(binVariable),
		UnsafeNoFsync: true,
		Settings: map[string]string{
			"max_wal_size": "256MB", "min_wal_size": "80MB",
			// Shared memory in files of the data directory goes with it, even if the last server was killed.
			"dynamic_shared_memory_type": "mmap",
		},
	})
	if err != nil {
		fatal(t, err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Errorf("pgtest: close the exclusive server: %v", err)
		}
	})
	if err := postgres.MigrateUp(ctx, server.URL(), Schema); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return server
}
