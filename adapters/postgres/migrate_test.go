package postgres_test

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// nastySchema is a name that works only if it is quoted everywhere.
const nastySchema = `Ten ant-"x"`

func migrateUp(t *testing.T, db *pgtest.DB, schema string) {
	t.Helper()
	if err := postgres.MigrateUp(t.Context(), db.URL, schema); err != nil {
		t.Fatal(err)
	}
}

func status(t *testing.T, db *pgtest.DB, schema string) postgres.Status {
	t.Helper()
	s, err := postgres.MigrateStatus(t.Context(), db.URL, schema)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// catalogue lists everything in a schema, one line each: columns, constraints, indexes, views, functions,
// types, sequences and partitions with their bounds. The schema's own name is left out.
func catalogue(t *testing.T, db *pgtest.DB, schema string) []string {
	t.Helper()
	const query = `
WITH class AS (SELECT c.* FROM pg_class c WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1))
SELECT concat_ws(' ', 'column', c.relname, c.relkind, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'not null' END,
       a.attidentity, pg_get_expr(d.adbin, d.adrelid), array_to_string(c.reloptions, ','), pg_get_expr(c.relpartbound, c.oid)) AS line
FROM class c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relkind <> 'i'
UNION ALL SELECT concat_ws(' ', 'constraint', c.relname, k.conname, pg_get_constraintdef(k.oid)) FROM class c JOIN pg_constraint k ON k.conrelid = c.oid
UNION ALL SELECT concat_ws(' ', 'index', c.relname, pg_get_indexdef(c.oid)) FROM class c WHERE c.relkind IN ('i', 'I')
UNION ALL SELECT concat_ws(' ', 'view', c.relname, pg_get_viewdef(c.oid)) FROM class c WHERE c.relkind = 'v'
UNION ALL SELECT concat_ws(' ', 'sequence', c.relname, s.seqtypid::regtype, s.seqcache, s.seqincrement) FROM class c JOIN pg_sequence s ON s.seqrelid = c.oid
UNION ALL SELECT concat_ws(' ', 'parent of', c.relname, i.inhparent::regclass) FROM class c JOIN pg_inherits i ON i.inhrelid = c.oid
UNION ALL SELECT concat_ws(' ', 'function', pg_get_functiondef(p.oid)) FROM pg_proc p WHERE p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)`
	rows, err := db.Pool.Query(t.Context(), query, schema)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) < 150 && len(lines) > 0 {
		t.Fatalf("the catalogue of %s has %d lines: the query is broken", schema, len(lines))
	}
	without := strings.NewReplacer(pgx.Identifier{schema}.Sanitize(), "<schema>", schema+".", "<schema>.", "'"+schema+"'", "<schema>")
	for i := range lines {
		lines[i] = without.Replace(lines[i])
	}
	slices.Sort(lines)
	return lines
}

// lives runs one job through a ledger and verifies it.
func lives(t *testing.T, db *pgtest.DB, schema string) {
	t.Helper()
	l, err := ledger.New(db.Pool, ledger.Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Enqueue(t.Context(), ledger.EnqueueParams{Kind: "test", Args: `1`, Policy: domain.Policy{MaxAttempts: 2}}); err != nil {
		t.Fatal(err)
	}
	c, err := l.Claim(t.Context(), ledger.ClaimParams{Worker: "w"})
	if err != nil || len(c.Jobs) != 1 {
		t.Fatalf("claimed %+v, %v", c, err)
	}
	if _, err := l.Complete(t.Context(), "w", ledger.Completion{Held: c.Jobs[0].Held, Result: `2`}); err != nil {
		t.Fatal(err)
	}
	v, err := l.Read().Verify(t.Context(), db.Pool, nil)
	if err != nil || len(v.Findings) > 0 || v.Jobs == 0 {
		t.Fatalf("verified %+v, %v", v, err)
	}
}

func TestMigrateUp(t *testing.T) {
	t.Parallel()
	t.Run("empty_then_again", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		if s := status(t, db, "ledger"); !s.Empty() || s.UpToDate() || s.LatestMigration == 0 || s.LatestFunctions != ledger.FunctionsVersion {
			t.Errorf("before: %+v, want empty", s)
		}
		if lines := catalogue(t, db, "ledger"); len(lines) > 0 {
			t.Errorf("asking for the status made %v", lines)
		}
		migrateUp(t, db, "ledger")
		want := postgres.Status{Schema: "ledger", Migration: status(t, db, "ledger").LatestMigration, LatestMigration: status(t, db, "ledger").LatestMigration,
			Functions: ledger.FunctionsVersion, LatestFunctions: ledger.FunctionsVersion, FunctionsDigest: ledger.FunctionsDigest()}
		if s := status(t, db, "ledger"); s != want || s.Empty() || !s.UpToDate() {
			t.Errorf("after: %+v, want %+v", s, want)
		}
		lives(t, db, "ledger")
		before := catalogue(t, db, "ledger")
		for _, line := range before {
			if strings.HasPrefix(line, "column") && strings.Contains(line, "timestamp without time zone") {
				t.Errorf("times without a zone are read as any zone: %s", line)
			}
		}
		migrateUp(t, db, "ledger")
		if d := cmp.Diff(before, catalogue(t, db, "ledger")); d != "" {
			t.Errorf("the second time changed something:\n%s", d)
		}
		lives(t, db, "ledger")
	})
	t.Run("newer_schema_is_kept", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		if _, err := db.Pool.Exec(t.Context(), `INSERT INTO jobledger.schema_migration (version_id, is_applied) VALUES (9999, true)`); err != nil {
			t.Fatal(err)
		}
		migrateUp(t, db, "jobledger")
		if s := status(t, db, "jobledger"); s.Migration != 9999 || !s.UpToDate() {
			t.Errorf("status is %+v", s)
		}
		lives(t, db, "jobledger")
	})
	t.Run("four_at_once", func(t *testing.T) {
		t.Parallel()
		db, alone := pgtest.Empty(t), pgtest.Empty(t)
		errs := make(chan error)
		for range 4 {
			go func() { errs <- postgres.MigrateUp(t.Context(), db.URL, "ledger") }()
		}
		for range 4 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		migrateUp(t, alone, "ledger")
		if d := cmp.Diff(catalogue(t, alone, "ledger"), catalogue(t, db, "ledger")); d != "" {
			t.Errorf("four at once made something else than one:\n%s", d)
		}
		lives(t, db, "ledger")
	})
	t.Run("two_schemas", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		migrateUp(t, db, nastySchema)
		if s := status(t, db, "second"); !s.Empty() {
			t.Errorf("the other schema is %+v before its own migration", s)
		}
		migrateUp(t, db, "second")
		if d := cmp.Diff(catalogue(t, db, "second"), catalogue(t, db, nastySchema)); d != "" {
			t.Errorf("the schemas differ:\n%s", d)
		}
		lives(t, db, nastySchema)
		lives(t, db, nastySchema)
		lives(t, db, "second")
		var mine, others int
		err := db.Pool.QueryRow(t.Context(), fmt.Sprintf(`SELECT (SELECT count(*) FROM %s.job_event), (SELECT count(*) FROM second.job_event)`,
			pgx.Identifier{nastySchema}.Sanitize())).Scan(&mine, &others)
		if err != nil || mine != 6 || others != 3 {
			t.Errorf("%d and %d events, %v; want 6 and 3", mine, others, err)
		}
		if s := status(t, db, nastySchema); !s.UpToDate() || s.Schema != nastySchema {
			t.Errorf("status is %+v", s)
		}
	})
}

// TestMigrationSQL: what `migrate print` gives a DBA makes the same ledger as `migrate up`, which then
// finds it in place.
func TestMigrationSQL(t *testing.T) {
	t.Parallel()
	for name, schema := range map[string]string{"plain": "ledger", "nasty": nastySchema} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			printed, up := pgtest.Empty(t), pgtest.Empty(t)
			text, err := postgres.MigrationSQL(schema)
			if err != nil {
				t.Fatal(err)
			}
			applySQL(t, printed, text)
			migrateUp(t, up, schema)
			if d := cmp.Diff(catalogue(t, up, schema), catalogue(t, printed, schema)); d != "" {
				t.Errorf("print makes something else than up:\n%s", d)
			}
			if d := cmp.Diff(status(t, up, schema), status(t, printed, schema)); d != "" {
				t.Errorf("print leaves another status than up:\n%s", d)
			}
			before := catalogue(t, printed, schema)
			migrateUp(t, printed, schema)
			if d := cmp.Diff(before, catalogue(t, printed, schema)); d != "" {
				t.Errorf("up after print changed something:\n%s", d)
			}
			lives(t, printed, schema)
		})
	}
}

// applySQL runs a script as a DBA would, with psql, or as one text where psql is not on the path.
func applySQL(t *testing.T, db *pgtest.DB, text string) {
	t.Helper()
	psql, err := exec.LookPath("psql")
	if err != nil {
		t.Log("psql is not on the path: the script is run through the driver")
		if _, err := db.Connect(t).PgConn().Exec(t.Context(), text).ReadAll(); err != nil {
			t.Fatal(err)
		}
		return
	}
	cmd := exec.CommandContext(t.Context(), psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", db.URL)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("psql: %v\n%s", err, out)
	}
}

// TestFunctionsAreReplacedByAHigherVersionOnly: in a rolling deploy an old binary must not put old
// functions back.
func TestFunctionsAreReplacedByAHigherVersionOnly(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const mark = `CREATE OR REPLACE FUNCTION jobledger.worker_gone(worker text) RETURNS void LANGUAGE sql AS 'SELECT'`
	marked := func() bool {
		t.Helper()
		var source string
		if err := db.Pool.QueryRow(t.Context(), `SELECT prosrc FROM pg_proc WHERE oid = 'jobledger.worker_gone(text)'::regprocedure`).Scan(&source); err != nil {
			t.Fatal(err)
		}
		return source == "SELECT"
	}
	for _, c := range []struct {
		name     string
		version  int
		digest   string
		replaced bool
		upToDate bool
	}{
		{"higher_is_kept", ledger.FunctionsVersion + 1, "of a newer binary", false, true},
		{"equal_is_kept", ledger.FunctionsVersion, ledger.FunctionsDigest(), false, true},
		{"equal_with_another_text_is_replaced", ledger.FunctionsVersion, "of a development build", true, true},
		{"lower_is_replaced", ledger.FunctionsVersion - 1, "of an older binary", true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := db.Pool.Exec(t.Context(), mark); err != nil {
				t.Fatal(err)
			}
			if _, err := db.Pool.Exec(t.Context(), `UPDATE jobledger.function_version SET version = $1, digest = $2`, c.version, c.digest); err != nil {
				t.Fatal(err)
			}
			before := status(t, db, "jobledger")
			if before.UpToDate() != c.upToDate || before.FunctionsChanged != (c.version == ledger.FunctionsVersion && c.replaced) {
				t.Errorf("before: %+v", before)
			}
			migrateUp(t, db, "jobledger")
			if marked() == c.replaced {
				t.Errorf("functions replaced: %t, want %t", !marked(), c.replaced)
			}
			after := status(t, db, "jobledger")
			if !c.replaced && after != before {
				t.Errorf("status became %+v, want %+v as before", after, before)
			}
			if c.replaced && (after.Functions != ledger.FunctionsVersion || after.FunctionsDigest != ledger.FunctionsDigest()) {
				t.Errorf("status became %+v", after)
			}
		})
	}
}

// TestMigrateUpMakesPartitionsAhead: also where the functions are in place already, and also where nobody
// has done so for too long and the newest events lie in the default partition.
func TestMigrateUpMakesPartitionsAhead(t *testing.T) {
	t.Parallel()
	const size = 16777216 // numbers in one partition
	db := pgtest.New(t)
	partitions := func() (names []string) {
		t.Helper()
		rows, err := db.Pool.Query(t.Context(), `SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid
			WHERE inhparent = 'jobledger.job_event'::regclass ORDER BY length(relname), relname`)
		if err != nil {
			t.Fatal(err)
		}
		if names, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			t.Fatal(err)
		}
		return names
	}
	for _, c := range []struct {
		name string
		seq  int64
		want []string
	}{
		{"at_first", 1, []string{"0", "1", "2", "3"}},
		{"in_time", 2 * size, []string{"0", "1", "2", "3", "4", "5"}},
		// Number 10 has events that are in the default partition; it cannot be made any more.
		{"too_late", 10*size + 7, []string{"0", "1", "2", "3", "4", "5", "11", "12", "13"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := db.Pool.Exec(t.Context(), `SELECT setval('jobledger.job_event_seq', $1)`, c.seq); err != nil {
				t.Fatal(err)
			}
			lives(t, db, "jobledger")
			migrateUp(t, db, "jobledger")
			migrateUp(t, db, "jobledger")
			want := make([]string, 0, 10)
			for _, name := range append(c.want, "default") {
				want = append(want, "job_event_"+name)
			}
			if d := cmp.Diff(want, partitions()); d != "" {
				t.Errorf("partitions:\n%s", d)
			}
			lives(t, db, "jobledger")
		})
	}
}
