package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
)

// pooledSessions are those of TestScript that use most commands. JOBLEDGER_ALL_SESSIONS plays all of them.
var pooledSessions = []string{"enqueue.txtar", "jobs.txtar", "up.txtar", "wait_verify_reap.txtar"}

// TestCase31_SessionsThroughAPooler plays sessions of TestScript through a PgBouncer in transaction mode with two server
// connections.
func TestCase31_SessionsThroughAPooler(t *testing.T) {
	t.Parallel()
	eachScript(t, "testdata/script", func(t *testing.T, file string) {
		if os.Getenv("JOBLEDGER_ALL_SESSIONS") == "" && !slices.Contains(pooledSessions, filepath.Base(file)) {
			t.Skip("played in make soak")
		}
		db := pgtest.New(t)
		runScript(t, file, map[string]string{"DATABASE_URL": db.PgBouncer(t), "JOBLEDGER_DATA_DIR": "/nowhere"}, databaseCommands(t, db))
	})
}

// TestCase32_MigrationsAndAPooler plays what happens with and without the database's own address, which $DIRECT names.
func TestCase32_MigrationsAndAPooler(t *testing.T) {
	t.Parallel()
	eachScript(t, "testdata/pooler", func(t *testing.T, file string) {
		db := pgtest.Empty(t)
		runScript(t, file, map[string]string{"DATABASE_URL": db.PgBouncer(t), "UNUSED_POOLER": db.PgBouncer(t), "DIRECT": db.URL,
			"DATABASE": db.Name, "JOBLEDGER_DATA_DIR": "/nowhere"}, databaseCommands(t, db))
	})
}
