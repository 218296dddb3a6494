package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// TestDamage: a ledger that was restored in part, or whose record of migrations was changed, is named as such, and no
// migration touches it.
func TestDamage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ damage, want string }{
		"no_record":          {`DROP TABLE schema_migration`, "there is a table job_event, but schema_migration records no migration"},
		"emptied_record":     {`TRUNCATE schema_migration`, "there is a table job_event, but schema_migration records no migration"},
		"recorded_as_undone": {`INSERT INTO schema_migration (version_id, is_applied) SELECT DISTINCT version_id, false FROM schema_migration`, "records no migration"},
		"hole":               {`UPDATE schema_migration SET version_id = 9999 WHERE version_id = 1`, "schema_migration records migration 9999, but not 1"},
		"another's_record":   {`DROP TABLE schema_migration; CREATE TABLE schema_migration (version text)`, "its table schema_migration or function_version is another's"},
		"no_payloads":        {`DROP TABLE job_payload CASCADE`, "is recorded, but missing: job_payload"},
		"no_default":         {`DROP TABLE job_event_default`, "missing: job_event_default"},
		"no_homes":           {`DROP TABLE job_queue, job_runtime CASCADE`, "missing: job, job_queue, job_runtime"},
		"no_versions":        {`DROP TABLE function_version`, "missing: function_version"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			if _, err := db.Pool.Exec(t.Context(), "BEGIN; SET LOCAL search_path = jobledger; "+c.damage+"; COMMIT"); err != nil {
				t.Fatal(err)
			}
			before, lines := status(t, db, "jobledger"), catalogue(t, db, "jobledger")
			if !strings.Contains(before.Damage, c.want) || before.UpToDate() || before.Empty() {
				t.Errorf("status is %+v, want the damage %q", before, c.want)
			}
			for what, err := range map[string]error{
				"the status says": before.Fit(), "the migration says": postgres.MigrateUp(t.Context(), db.URL, "jobledger"),
			} {
				if !errors.Is(err, domain.ErrLedgerDamaged) || !strings.Contains(err.Error(), "the ledger in schema jobledger is not whole: ") {
					t.Errorf("%s %v", what, err)
				}
			}
			if d := cmp.Diff(lines, catalogue(t, db, "jobledger")); d != "" {
				t.Errorf("it was changed:\n%s", d)
			}
		})
	}
}

// TestFunctionsAreMended: functions hold no data, so that what a restore left out is put back.
func TestFunctionsAreMended(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	l, err := ledger.New(db.Pool, ledger.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Pool.Exec(t.Context(), `DROP FUNCTION jobledger.claim, jobledger.reap`); err != nil {
		t.Fatal(err)
	}
	if s := status(t, db, "jobledger"); s.FunctionsMissing != 2 || s.UpToDate() || !errors.Is(s.Fit(), domain.ErrLedgerMisfit) {
		t.Errorf("status is %+v, %v", s, s.Fit())
	}
	var misfit *domain.SchemaError
	if _, err := l.Claim(t.Context(), ledger.ClaimParams{Worker: "w"}); !errors.As(err, &misfit) ||
		!strings.HasPrefix(err.Error(), "claim: the ledger is not as this binary expects it: function jobledger.claim(") {
		t.Errorf("claim: %v", err)
	}
	migrateUp(t, db, "jobledger")
	lives(t, db, "jobledger")
	if d := cmp.Diff(catalogue(t, pgtest.New(t), "jobledger"), catalogue(t, db, "jobledger")); d != "" {
		t.Errorf("mended, it is another:\n%s", d)
	}
}

// TestFit: a binary works with the ledger of its own release and of the next one, and refuses any other by its name; the
// library as the command does.
func TestFit(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	l, err := ledger.New(db.Pool, ledger.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		sql      string
		want     error
		migrates bool
	}{
		{"this_release", `SELECT`, nil, true},
		{"one_ahead", `UPDATE jobledger.function_version SET version = version + 1`, nil, true},
		{"one_ahead_with_migrations", `INSERT INTO jobledger.schema_migration (version_id, is_applied) VALUES (9999, true)`, nil, true},
		{"two_ahead", `UPDATE jobledger.function_version SET version = version + 1`, domain.ErrLedgerNewer, false},
		{"one_behind", `UPDATE jobledger.function_version SET version = version - 3`, domain.ErrLedgerOlder, true},
		{"no_functions", `DELETE FROM jobledger.function_version`, domain.ErrLedgerOlder, true},
		{"no_ledger", `DROP SCHEMA jobledger CASCADE`, domain.ErrNoLedger, true},
		{"empty_schema", `DROP SCHEMA jobledger CASCADE; CREATE SCHEMA jobledger`, domain.ErrNoLedger, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := db.Connect(t).PgConn().Exec(t.Context(), c.sql).ReadAll(); err != nil {
				t.Fatal(err)
			}
			if err := status(t, db, "jobledger").Fit(); !errors.Is(err, c.want) {
				t.Errorf("the status says %v, want %v", err, c.want)
			}
			if err := l.CheckSchema(t.Context()); !errors.Is(err, c.want) {
				t.Errorf("the library says %v, want %v", err, c.want)
			}
			err := postgres.MigrateUp(t.Context(), db.URL, "jobledger")
			if c.migrates && err != nil || !c.migrates && !errors.Is(err, c.want) {
				t.Errorf("the migration says %v", err)
			}
			if c.migrates {
				lives(t, db, "jobledger")
			}
		})
	}
}

// TestReadMisfit: reading, too, says what is the matter, whether the driver knows the statement from before or not.
func TestReadMisfit(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, pgtest.MaxConns(1))
	l, err := ledger.New(db.Pool, ledger.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Read().Counts(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Pool.Exec(t.Context(), `DROP VIEW jobledger.job CASCADE`); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"with the statement in the driver's cache", "without it"} {
		if _, err := l.Read().Counts(t.Context()); !errors.Is(err, domain.ErrLedgerMisfit) ||
			!strings.HasPrefix(err.Error(), `count jobs: the ledger is not as this binary expects it: relation "jobledger.job" does not exist`) {
			t.Errorf("%s: %v", when, err)
		}
	}
	if _, err := db.Pool.Exec(t.Context(), `DROP SCHEMA jobledger CASCADE`); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Enqueue(t.Context(), ledger.EnqueueParams{Kind: "k"}); !errors.Is(err, domain.ErrNoLedger) ||
		err.Error() != `enqueue: there is no ledger in this database: schema "jobledger" does not exist` {
		t.Errorf("enqueue: %v", err)
	}
}

// TestMigrateInAnothersSchema: where the names are taken the error names one, and the rest is left alone.
func TestMigrateInAnothersSchema(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	if _, err := db.Pool.Exec(t.Context(), `CREATE TABLE public.worker (name text)`); err != nil {
		t.Fatal(err)
	}
	var pg *pgconn.PgError
	err := postgres.MigrateUp(t.Context(), db.URL, "public")
	if !errors.As(err, &pg) || pg.Code != pgerrcode.DuplicateTable || !strings.HasPrefix(err.Error(), `migrate: 00001_ledger.sql: ERROR: relation "worker" already exists`) {
		t.Errorf("the migration says %v", err)
	}
	if s := status(t, db, "public"); !s.Empty() {
		t.Errorf("status is %+v", s)
	}
}
