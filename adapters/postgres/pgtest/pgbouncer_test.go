package pgtest

import (
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestPgBouncer: what stands in front of the database is a transaction pooler with two connections, shared by all.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	db := New(t)
	address := db.PgBouncer(t)
	processes := map[uint32]bool{}
	var mu sync.Mutex
	var clients sync.WaitGroup
	for range 10 {
		clients.Go(func() {
			conn, err := pgx.Connect(t.Context(), address)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close(t.Context())
			for range 10 {
				var pid uint32
				if err := conn.QueryRow(t.Context(), `SELECT pg_backend_pid()`, pgx.QueryExecModeExec).Scan(&pid); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				processes[pid] = true
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	if n := len(processes); n < 1 || n > 2 {
		t.Errorf("ten clients were served by %d processes, want at most 2", n)
	}
}
