package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/projections"
)

// ledgerTables are relations of the first migration without which there is no ledger. One that is missing although
// the migration is recorded was dropped, or left out of a restore.
var ledgerTables = []string{
	"function_version", "idempotency_key", "job", "job_completed", "job_event", "job_event_default", "job_event_seq",
	"job_payload", "job_queue", "job_runtime", "policy", "tag_state", "worker",
}

// Status says how far the schema of a ledger is, and how far this binary would take it.
type Status struct {
	Schema           string `json:"schema"`
	Migration        int64  `json:"migration"`         // the last one that has run, 0 on an empty database
	LatestMigration  int64  `json:"latest_migration"`  // the last one that this binary has
	Functions        int    `json:"functions"`         // version of the transition functions in place, 0 if none
	LatestFunctions  int    `json:"latest_functions"`  // version that this binary has
	FunctionsDigest  string `json:"functions_digest"`  // SHA-256 of what is in place
	FunctionsChanged bool   `json:"functions_changed"` // same version, other text: a development build
	FunctionsMissing int    `json:"functions_missing"` // how many functions of this binary are not there
	Damage           string `json:"damage,omitempty"`  // what is wrong and no migration can mend
}

// UpToDate reports whether MigrateUp has nothing to do.
func (s Status) UpToDate() bool {
	return s.Damage == "" && s.FunctionsMissing == 0 && s.Migration >= s.LatestMigration && s.Functions >= s.LatestFunctions
}

// Empty reports whether there is no ledger in the schema.
func (s Status) Empty() bool { return s.Damage == "" && s.Migration == 0 && s.Functions == 0 }

// Fit returns nil if this binary can work with the ledger as it is: it has the functions of this release or of the next.
// Else it returns a *domain.SchemaError that says what is the matter.
func (s Status) Fit() error {
	if err := s.refusal(); err != nil {
		return err
	}
	misfit := &domain.SchemaError{Schema: s.Schema, Err: domain.ErrLedgerOlder, Detail: s.compared()}
	switch {
	case s.Empty():
		misfit.Err, misfit.Detail = domain.ErrNoLedger, ""
	case !s.UpToDate() && s.Migration >= s.LatestMigration && s.Functions >= s.LatestFunctions:
		misfit.Err, misfit.Detail = domain.ErrLedgerMisfit, fmt.Sprintf("functions missing: %d", s.FunctionsMissing)
	case s.UpToDate():
		return nil
	}
	return misfit
}

// refusal is what neither this binary nor its migrations can work with.
func (s Status) refusal() error {
	switch {
	case s.Damage != "":
		return &domain.SchemaError{Schema: s.Schema, Err: domain.ErrLedgerDamaged, Detail: s.Damage}
	case s.Functions > s.LatestFunctions+ledger.FunctionsAhead:
		return &domain.SchemaError{Schema: s.Schema, Err: domain.ErrLedgerNewer, Detail: s.compared()}
	}
	return nil
}

// compared puts what is there beside what this binary has.
func (s Status) compared() string {
	return fmt.Sprintf("migration %d and functions %d, this binary has %d and %d", s.Migration, s.Functions, s.LatestMigration, s.LatestFunctions)
}

// MigrateStatus reads how far the schema is; it changes nothing.
func MigrateStatus(ctx context.Context, databaseURL, schema string) (Status, error) {
	s := Status{Schema: schema}
	if err := projections.CheckSchema(schema); err != nil {
		return s, fmt.Errorf("migration status: %w", err)
	}
	conn, err := openDirect(ctx, databaseURL)
	if err != nil {
		return s, fmt.Errorf("migration status: %w", err)
	}
	defer closeNow(conn)
	if s, err = readStatus(ctx, conn, schema, migrationFiles()); err != nil {
		return s, fmt.Errorf("migration status: %w", err)
	}
	return s, nil
}

// readStatus reads all of it in one snapshot: a migrator may be at work.
func readStatus(ctx context.Context, conn *pgx.Conn, schema string, files []migrationFile) (Status, error) {
	s := Status{Schema: schema, LatestFunctions: ledger.FunctionsVersion, LatestMigration: files[len(files)-1].number}
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, conn, snapshot, func(tx pgx.Tx) error {
		// The limits of a role are for its own statements.
		if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = 0`); err != nil {
			return err
		}
		var relations, functions []string
		err := tx.QueryRow(ctx, `
SELECT ARRAY(SELECT relname::text FROM pg_class WHERE relnamespace = n.oid), ARRAY(SELECT proname::text FROM pg_proc WHERE pronamespace = n.oid)
FROM pg_namespace n
WHERE nspname = $1`, schema).Scan(&relations, &functions)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		var recorded []int64
		if slices.Contains(relations, migrationTable) {
			if recorded, err = readRecorded(ctx, tx, schema); err != nil {
				return err
			}
		}
		if slices.Contains(relations, "function_version") {
			err := tx.QueryRow(ctx, "SELECT version, digest FROM "+quote(schema)+".function_version").Scan(&s.Functions, &s.FunctionsDigest)
			if err != nil && !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
		}
		s.compare(recorded, relations, functions, files)
		return nil
	})
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == pgerrcode.UndefinedColumn {
		s.Damage, err = "its table "+migrationTable+" or function_version is another's: "+pg.Message, nil
	}
	return s, err
}

// readRecorded reads which migrations are recorded as applied, ascending. As in goose, the last word about one counts.
func readRecorded(ctx context.Context, tx pgx.Tx, schema string) ([]int64, error) {
	rows, err := tx.Query(ctx, `
SELECT version_id
FROM (SELECT DISTINCT ON (version_id) version_id, is_applied FROM `+quote(schema)+"."+migrationTable+` ORDER BY version_id, id DESC) last
WHERE is_applied AND version_id > 0
ORDER BY version_id`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

// compare fills in what follows from what is recorded and what is there.
func (s *Status) compare(recorded []int64, relations, functions []string, files []migrationFile) {
	if len(recorded) > 0 {
		s.Migration = recorded[len(recorded)-1]
	}
	s.FunctionsChanged = s.Functions == s.LatestFunctions && s.FunctionsDigest != ledger.FunctionsDigest()
	if s.Functions == s.LatestFunctions {
		s.FunctionsMissing = len(without(functionNames(), functions))
	}
	for _, file := range files {
		if file.number < s.Migration && !slices.Contains(recorded, file.number) {
			s.Damage = fmt.Sprintf("%s records migration %d, but not %d", migrationTable, s.Migration, file.number)
			return
		}
	}
	missing := without(ledgerTables, relations)
	switch {
	case s.Migration == 0 && slices.Contains(relations, "job_event"):
		s.Damage = fmt.Sprintf("there is a table job_event, but %s records no migration", migrationTable)
	case s.Migration > 0 && s.Migration <= s.LatestMigration && len(missing) > 0:
		s.Damage = fmt.Sprintf("migration %d is recorded, but missing: %s", s.Migration, strings.Join(missing, ", "))
	}
}

// without is what of all is not among some.
func without(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(some, name) })
}
