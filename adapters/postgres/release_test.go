package postgres_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/migrations"
)

// binary is a binary of release 1, as far as the database can tell: the statements that its Go code sends, on one
// connection that has prepared and cached them before the ledger was migrated under it.
type binary struct {
	conn       *pgx.Conn
	statements map[string]string
}

// release1 returns a database as `migrate up` of release 1 left it, and a binary of that release at work on it.
// testdata/release1.* are what that release printed and sent: never change them.
func release1(t *testing.T) (*pgtest.DB, *binary) {
	t.Helper()
	db := pgtest.Empty(t)
	schema, err := os.ReadFile("testdata/release1.sql")
	if err != nil {
		t.Fatal(err)
	}
	applySQL(t, db, string(schema))
	text, err := os.ReadFile("testdata/release1.json")
	if err != nil {
		t.Fatal(err)
	}
	b := &binary{conn: db.Connect(t)}
	if err := json.Unmarshal(text, &b.statements); err != nil {
		t.Fatal(err)
	}
	return db, b
}

// rows sends a statement and returns the rows.
func (b *binary) rows(t *testing.T, name string, args ...any) []map[string]any {
	t.Helper()
	text, ok := b.statements[name]
	if !ok {
		t.Fatalf("release 1 has no statement %s", name)
	}
	rows, err := b.conn.Query(t.Context(), text, args...)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToMap)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return out
}

// answers sends a verb about one job and tests what became of it.
func (b *binary) answers(t *testing.T, want domain.EventType, name string, args ...any) map[string]any {
	t.Helper()
	rows := b.rows(t, name, args...)
	if len(rows) != 1 || rows[0]["event"] != string(want) || rows[0]["refusal"] != nil {
		t.Fatalf("%s answered %v, want %s", name, rows, want)
	}
	return rows[0]
}

// enqueue enqueues one job, key "" for none.
func (b *binary) enqueue(t *testing.T, tag, key string) uuid.UUID {
	t.Helper()
	keys := []*string{nil}
	if key != "" {
		keys[0] = &key
	}
	id := uuid.Must(uuid.NewV7())
	a := b.answers(t, domain.Enqueued, "enqueue", []string{"old"}, []string{`{"n":1}`}, []string{tag}, []int{0}, nil, nil, []int{1}, keys, nil, nil,
		[]string{"api"}, nil, nil, nil, nil, []uuid.UUID{id}, []uuid.UUID{uuid.New()}, "release 1", true)
	return uuid.UUID(a["job_id"].([16]byte))
}

// claim claims the one job of a tag.
func (b *binary) claim(t *testing.T, tag string) (jobs []uuid.UUID, generations []int) {
	t.Helper()
	rows := b.rows(t, "claim", "old", []string{tag}, 1, "1 hour")
	if len(rows) != 1 {
		t.Fatalf("claimed %d jobs of tag %s, want 1", len(rows), tag)
	}
	return []uuid.UUID{rows[0]["job_id"].([16]byte)}, []int{int(rows[0]["generation"].(int32))}
}

// shapes are the columns that the statements give, by name and type: what the code of that release reads.
func (b *binary) shapes(t *testing.T, db *pgtest.DB) map[string][]string {
	t.Helper()
	conn, out := db.Connect(t), map[string][]string{}
	for name, text := range b.statements {
		statement, err := conn.Prepare(t.Context(), name, text)
		if err != nil {
			t.Errorf("release 1 can't send %s: %v", name, err)
			continue
		}
		for _, f := range statement.Fields {
			out[name] = append(out[name], fmt.Sprint(f.Name, " ", f.DataTypeOID))
		}
	}
	return out
}

// lives takes jobs through every verb of release 1.
func (b *binary) lives(t *testing.T) {
	t.Helper()
	tag := "t" + uuid.NewString()
	b.rows(t, "worker_seen", "old", []string{tag}, []string{"old"}, "host", 1, 10, 0, "working")
	policy := b.rows(t, "ensure_policy", 3, "1 hour", 2, "restart", "1 second", 200, "10 minutes", 20, nil)[0]["ensure_policy"]
	if again := b.rows(t, "ensure_policy", 3, "1 hour", 2, "restart", "1 second", 200, "10 minutes", 20, nil)[0]["ensure_policy"]; again != policy {
		t.Errorf("the same policy is %v and then %v", policy, again)
	}
	id := b.enqueue(t, tag, "key of "+tag)
	if again := b.enqueue(t, tag, "key of "+tag); again != id {
		t.Errorf("the key gave job %s, then %s", id, again)
	}
	jobs, gens := b.claim(t, tag)
	b.answers(t, domain.Released, "release", "old", jobs, gens)
	jobs, gens = b.claim(t, tag)
	b.answers(t, domain.Snoozed, "snooze", "old", jobs, gens, []string{"0"}, []string{"later"})
	jobs, gens = b.claim(t, tag)
	b.answers(t, domain.Pinged, "ping", "old", jobs, gens, "1 hour", []string{`{"done":1}`}, []uuid.UUID{uuid.New()})
	b.answers(t, domain.Retried, "fail", "old", jobs, gens, []string{"transient"}, []string{"oh"}, []uuid.UUID{uuid.New()}, []string{"0"}, []bool{false})
	jobs, gens = b.claim(t, tag)
	b.answers(t, domain.Failed, "fail", "old", jobs, gens, []string{"invalid_input"}, []string{"no"}, []uuid.UUID{uuid.New()}, nil, []bool{true})
	b.answers(t, domain.Redriven, "redrive", jobs, "release 1", nil, nil)
	jobs, gens = b.claim(t, tag)
	salt := []uuid.UUID{uuid.New()}
	b.answers(t, domain.Completed, "complete", "old", jobs, gens, []string{`2`}, salt)
	if a := b.answers(t, domain.Completed, "complete", "old", jobs, gens, []string{`2`}, salt); a["repeated"] != true {
		t.Errorf("the same completion once more was answered with %v", a)
	}
	b.answers(t, domain.CanceledEvent, "cancel", []uuid.UUID{b.enqueue(t, tag, "")}, "release 1", "enough", nil)
	b.rows(t, "reap", "old", 10, []string{tag})
	b.rows(t, "extend_events")
	b.rows(t, "worker_gone", "old")
	for _, name := range []string{"read_job", "read_history"} {
		if len(b.rows(t, name, id)) == 0 {
			t.Errorf("%s finds nothing", name)
		}
	}
	b.rows(t, "read_bodies", id, []int{1, 2})
	b.rows(t, "read_list", "", "", "", tag, "", "", nil, 10)
	for _, name := range []string{"read_counts", "read_workers", "clock"} {
		b.rows(t, name)
	}
	for _, name := range []string{"verify_bodies", "verify_policies"} {
		if rows := b.rows(t, name, 10); len(rows) > 0 {
			t.Errorf("%s finds %v", name, rows)
		}
	}
}

// TestRelease1: a ledger of release 1 with jobs in all states is migrated under a binary of that release. It goes on with
// its cached statements, side by side with this one, each with what the other has begun.
func TestRelease1(t *testing.T) {
	t.Parallel()
	db, old := release1(t)
	l, err := ledger.New(db.Pool, ledger.Config{})
	if err != nil {
		t.Fatal(err)
	}
	old.lives(t) // ended in each way, and every statement is cached
	waiting := old.enqueue(t, "waiting", "first key")
	old.enqueue(t, "running", "")
	running, runningGens := old.claim(t, "running")
	before := old.shapes(t, db)
	if len(before) < 20 {
		t.Fatalf("release 1 has the statements %v", before)
	}
	if err := status(t, db, "jobledger").Fit(); !errors.Is(err, domain.ErrLedgerOlder) {
		t.Errorf("before the migration this binary says %v", err)
	}
	if err := l.CheckSchema(t.Context()); !errors.Is(err, domain.ErrLedgerOlder) {
		t.Errorf("before the migration the library says %v", err)
	}

	migrateUp(t, db, "jobledger")

	if d := cmp.Diff(before, old.shapes(t, db)); d != "" {
		t.Errorf("what release 1 reads has changed:\n%s", d)
	}
	old.answers(t, domain.Pinged, "ping", "old", running, runningGens, "1 hour", nil, nil)
	if again := old.enqueue(t, "waiting", "first key"); again != waiting {
		t.Errorf("the key of job %s gave %s after the migration", waiting, again)
	}
	old.lives(t)
	lives(t, db, "jobledger")

	// Each ends what the other has begun.
	c, err := l.Claim(t.Context(), ledger.ClaimParams{Worker: "old", Tags: []string{"waiting"}})
	if err != nil || len(c.Jobs) != 1 || c.Jobs[0].JobID != waiting {
		t.Fatalf("this binary claimed %+v, %v; want the job that release 1 enqueued", c, err)
	}
	old.answers(t, domain.Completed, "complete", "old", []uuid.UUID{waiting}, []int{c.Jobs[0].Generation}, []string{`3`}, []uuid.UUID{uuid.New()})
	a, err := l.Complete(t.Context(), "old", ledger.Completion{Held: ledger.Held{JobID: running[0], Generation: runningGens[0]}})
	if err != nil || a.Event != domain.Completed {
		t.Errorf("this binary ended the job of release 1 with %+v, %v", a, err)
	}
	if err := l.CheckSchema(t.Context()); err != nil {
		t.Error(err)
	}
	lives(t, db, "jobledger") // verifies all of it
}

// TestRelease1BetweenSteps: a migrator that fails after any of the numbered migrations leaves a ledger that release 1 works
// with, and the next one goes on from there.
func TestRelease1BetweenSteps(t *testing.T) {
	t.Parallel()
	db, old := release1(t)
	old.lives(t)
	names := migrationNames(t)
	for i, name := range names {
		files := overlay(t, "bad", "CREATE TABLE half_done (); SELECT 1/0;")
		for _, later := range names[i+1:] {
			delete(files, later)
		}
		var pg *pgconn.PgError
		err := postgres.MigrateUp(t.Context(), db.URL, "jobledger", postgres.MigrateFiles(files))
		if !errors.As(err, &pg) || pg.Code != pgerrcode.DivisionByZero || !strings.Contains(err.Error(), "_bad.sql") {
			t.Fatalf("after %s: %v, want the error of the bad migration by its name", name, err)
		}
		if s := status(t, db, "jobledger"); !strings.HasPrefix(name, fmt.Sprintf("%05d_", s.Migration)) || s.UpToDate() || s.Damage != "" || s.Functions != 1 {
			t.Errorf("after %s the status is %+v", name, s)
		}
		old.lives(t)
	}
	migrateUp(t, db, "jobledger")
	if d := cmp.Diff(catalogue(t, pgtest.New(t), "jobledger"), catalogue(t, db, "jobledger")); d != "" {
		t.Errorf("the ledger of release 1 became another than a new one:\n%s", d)
	}
	old.lives(t)
	lives(t, db, "jobledger")
}

// migrationNames are the files of the numbered migrations, in their order.
func migrationNames(t *testing.T) []string {
	t.Helper()
	names, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil || len(names) == 0 {
		t.Fatalf("migrations %v, %v", names, err)
	}
	return names
}

// overlay is the numbered migrations with one more after them.
func overlay(t *testing.T, name, up string) fstest.MapFS {
	t.Helper()
	files := fstest.MapFS{"90001_" + name + ".sql": {Data: []byte("-- +goose Up\n" + up)}}
	for _, name := range migrationNames(t) {
		text, err := fs.ReadFile(migrations.FS, name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = &fstest.MapFile{Data: text}
	}
	return files
}
