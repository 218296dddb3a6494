package postgres_test

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/migrations"
	"github.com/jobledger/jobledger/projections"
)

// TestSpineSchema: the views of the flag form come and go with their ledger, whatever its name is.
func TestSpineSchema(t *testing.T) {
	t.Parallel()
	quote := func(schema string) string { return pgx.Identifier{schema + projections.SpineSuffix}.Sanitize() }
	jobs := func(t *testing.T, db *pgtest.DB, schema string) (n int) {
		t.Helper()
		if err := db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM "+quote(schema)+".job_completed WHERE status = 'success'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Run("is_of_its_ledger_alone", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		longest := strings.Repeat("y", projections.MaxSchemaBytes)
		for _, schema := range []string{nastySchema, longest} {
			migrateUp(t, db, schema)
		}
		lives(t, db, nastySchema)
		got := map[string]int{nastySchema: jobs(t, db, nastySchema), longest: jobs(t, db, longest)}
		if d := cmp.Diff(map[string]int{nastySchema: 1, longest: 0}, got); d != "" {
			t.Errorf("the views show:\n%s", d)
		}
	})
	t.Run("refuses_names_without_room", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		for _, schema := range []string{strings.Repeat("y", projections.MaxSchemaBytes+1), "jobledger_spine"} {
			if err := postgres.MigrateUp(t.Context(), db.URL, schema); err == nil || !strings.Contains(err.Error(), schema) {
				t.Errorf("schema %s: %v", schema, err)
			}
		}
		// Printed SQL meets no door but its own.
		text, err := postgres.MigrationSQL(strings.Repeat("y", projections.MaxSchemaBytes+1))
		if err != nil {
			return
		}
		if _, err := db.Connect(t).PgConn().Exec(t.Context(), text).ReadAll(); err == nil || !strings.Contains(err.Error(), "63 bytes") {
			t.Errorf("printed for a schema with a name too long: %v", err)
		}
	})
	t.Run("returns_with_a_ledger_made_anew", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		lives(t, db, "jobledger")
		if _, err := db.Pool.Exec(t.Context(), `DROP SCHEMA jobledger CASCADE`); err != nil {
			t.Fatal(err)
		}
		migrateUp(t, db, "jobledger")
		if n := jobs(t, db, "jobledger"); n != 0 {
			t.Errorf("%d jobs in an empty ledger", n)
		}
	})
	t.Run("keeps_its_grants", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		lives(t, db, "jobledger")
		do := func(text string) error {
			_, err := db.Pool.Exec(t.Context(), text, pgx.QueryExecModeSimpleProtocol)
			return err
		}
		role := pgx.Identifier{db.Name + "_reader"}.Sanitize()
		defer func() { // while the database is there, whose grants it has
			if err := do("DROP OWNED BY " + role + "; DROP ROLE " + role); err != nil {
				t.Error(err)
			}
		}()
		read := func() error {
			return do("SET ROLE " + role + "; SELECT * FROM jobledger_spine.job_queue; SELECT * FROM jobledger_spine.job; RESET ROLE")
		}
		if err := do("CREATE ROLE " + role + "; GRANT USAGE ON SCHEMA jobledger_spine TO " + role); err != nil {
			t.Fatal(err)
		}
		if err := read(); err == nil {
			t.Error("a role without a grant reads the views")
		}
		if err := do("GRANT SELECT ON ALL TABLES IN SCHEMA jobledger_spine TO " + role); err != nil {
			t.Fatal(err)
		}
		migrateUp(t, db, "jobledger")
		if err := read(); err != nil {
			t.Errorf("a role that was granted the views and nothing else: %v", err)
		}
	})
	t.Run("goes_down_without_a_trace", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		text, err := fs.ReadFile(migrations.FS, "00003_spine.sql")
		if err != nil {
			t.Fatal(err)
		}
		up, down, _ := strings.Cut(string(text), "-- +goose Down")
		for i, step := range []string{down, up} {
			if _, err := db.Connect(t).PgConn().Exec(t.Context(), "SET search_path = jobledger, pg_temp; "+step).ReadAll(); err != nil {
				t.Fatal(err)
			}
			const query = `SELECT count(*) FROM pg_class WHERE relkind = 'v' AND (relname LIKE 'spine%' OR relnamespace::regnamespace::text = 'jobledger_spine')`
			var views int
			if err := db.Pool.QueryRow(t.Context(), query).Scan(&views); err != nil || views != 4*i {
				t.Errorf("after step %d there are %d views, %v", i+1, views, err)
			}
		}
	})
}
