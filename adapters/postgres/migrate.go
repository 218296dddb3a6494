package postgres

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"

	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/migrations"
)

// migrationTable records which numbered migrations have run; it lies in the ledger's schema.
const migrationTable = "schema_migration"

// Status says how far the schema of a ledger is, and how far this binary would take it.
type Status struct {
	Schema           string `json:"schema"`
	Migration        int64  `json:"migration"`         // the last one that has run, 0 on an empty database
	LatestMigration  int64  `json:"latest_migration"`  // the last one that this binary has
	Functions        int    `json:"functions"`         // version of the transition functions in place, 0 if none
	LatestFunctions  int    `json:"latest_functions"`  // version that this binary has
	FunctionsDigest  string `json:"functions_digest"`  // SHA-256 of what is in place
	FunctionsChanged bool   `json:"functions_changed"` // same version, other text: a development build
}

// UpToDate reports whether this binary can work with the schema as it is.
func (s Status) UpToDate() bool {
	return s.Migration >= s.LatestMigration && s.Functions >= s.LatestFunctions
}

// Empty reports whether there is no ledger in the schema.
func (s Status) Empty() bool { return s.Migration == 0 && s.Functions == 0 }

// MigrateUp brings the schema to the state that this binary needs: the schema itself, the
// numbered migrations, then the transition functions if theirs is a higher version, then
// event partitions ahead. It is safe to run twice and by several processes at once; databaseURL
// must be a direct one, since the migrations hold a session lock.
func MigrateUp(ctx context.Context, databaseURL, schema string) error {
	db, err := openIn(databaseURL, schema)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	defer db.Close()
	// IF NOT EXISTS alone is no protection: two sessions that create the same schema at once
	// collide in the catalogue, hence the lock.
	err = inTx(ctx, db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('jobledger migrate ' || $1, 0))`, schema); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "CREATE SCHEMA IF NOT EXISTS "+quote(schema))
		return err
	})
	if err != nil {
		return fmt.Errorf("migrate: create schema %s: %w", schema, err)
	}
	provider, err := newProvider(db, true)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if err := applyFunctions(ctx, db, schema); err != nil {
		return fmt.Errorf("migrate: apply functions: %w", err)
	}
	return nil
}

// applyFunctions replaces the transition functions under a lock, and only by a higher version
// (or by another text of the same version, which only a development build has).
func applyFunctions(ctx context.Context, db *sql.DB, schema string) error {
	return inTx(ctx, db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('jobledger migrate ' || $1, 0))`, schema); err != nil {
			return err
		}
		var version int
		var digest string
		err := tx.QueryRowContext(ctx, `SELECT version, digest FROM function_version`).Scan(&version, &digest)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		inPlace := version > ledger.FunctionsVersion || version == ledger.FunctionsVersion && digest == ledger.FunctionsDigest()
		if !inPlace {
			// The simple protocol: many statements in one text.
			if _, err := tx.ExecContext(ctx, ledger.Functions()); err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, `INSERT INTO function_version (version, digest) VALUES ($1, $2)
				ON CONFLICT (singleton) DO UPDATE SET version = excluded.version, digest = excluded.digest, applied_at = clock_timestamp()`,
				ledger.FunctionsVersion, ledger.FunctionsDigest())
			if err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(ctx, `SELECT extend_events()`)
		return err
	})
}

// MigrateStatus reads how far the schema is; it changes nothing.
func MigrateStatus(ctx context.Context, databaseURL, schema string) (Status, error) {
	s := Status{Schema: schema, LatestFunctions: ledger.FunctionsVersion, LatestMigration: latestMigration()}
	db, err := openIn(databaseURL, schema)
	if err != nil {
		return s, fmt.Errorf("migration status: %w", err)
	}
	defer db.Close()
	var migrated, functions bool
	err = db.QueryRowContext(ctx, `SELECT to_regclass($1) IS NOT NULL, to_regclass($2) IS NOT NULL`,
		quote(schema)+"."+migrationTable, quote(schema)+".function_version").Scan(&migrated, &functions)
	if err != nil {
		return s, fmt.Errorf("migration status: %w", err)
	}
	if migrated {
		if err := db.QueryRowContext(ctx, "SELECT coalesce(max(version_id), 0) FROM "+migrationTable+" WHERE is_applied").Scan(&s.Migration); err != nil {
			return s, fmt.Errorf("migration status: %w", err)
		}
	}
	if functions {
		err := db.QueryRowContext(ctx, "SELECT version, digest FROM function_version").Scan(&s.Functions, &s.FunctionsDigest)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return s, fmt.Errorf("migration status: %w", err)
		}
		s.FunctionsChanged = s.Functions == s.LatestFunctions && s.FunctionsDigest != ledger.FunctionsDigest()
	}
	return s, nil
}

// MigrationSQL is all that MigrateUp does on an empty database as plain SQL, for people who
// apply schema changes by hand; `migrate status` then finds it in place.
func MigrationSQL(schema string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "BEGIN;\nCREATE SCHEMA IF NOT EXISTS %s;\nSET LOCAL search_path = %s, pg_temp;\n", quote(schema), quote(schema))
	fmt.Fprintf(&b, "CREATE TABLE %s (id integer PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY, version_id bigint NOT NULL,\n"+
		"    is_applied boolean NOT NULL, tstamp timestamp NOT NULL DEFAULT now());\nINSERT INTO %s (version_id, is_applied) VALUES (0, true);\n",
		migrationTable, migrationTable)
	names, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil {
		return "", fmt.Errorf("print migrations: %w", err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(migrations.FS, name)
		if err != nil {
			return "", fmt.Errorf("print migrations: %w", err)
		}
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		fmt.Fprintf(&b, "\n-- %s\n%s\nINSERT INTO %s (version_id, is_applied) VALUES (%d, true);\n",
			name, strings.TrimPrefix(up, "-- +goose Up\n"), migrationTable, migrationNumber(name))
	}
	fmt.Fprintf(&b, "\n-- transition functions, version %d\n%s\nINSERT INTO function_version (version, digest) VALUES (%d, '%s');\nSELECT extend_events();\nCOMMIT;\n",
		ledger.FunctionsVersion, ledger.Functions(), ledger.FunctionsVersion, ledger.FunctionsDigest())
	return b.String(), nil
}

// SchemaHash is a digest of everything that MigrateUp would apply, in hex; equal hashes mean
// equal schemas.
func SchemaHash() string {
	h := sha256.New()
	names, _ := fs.Glob(migrations.FS, "*.sql") // the pattern is well-formed
	for _, name := range names {
		text, err := fs.ReadFile(migrations.FS, name)
		if err != nil {
			panic(fmt.Sprintf("postgres: %v", err)) // embedded at build time
		}
		h.Write(text)
	}
	h.Write([]byte(ledger.Functions()))
	return hex.EncodeToString(h.Sum(nil))
}

func newProvider(db *sql.DB, locked bool) (*goose.Provider, error) {
	store, err := database.NewStore(goose.DialectPostgres, migrationTable)
	if err != nil {
		return nil, err
	}
	opts := []goose.ProviderOption{goose.WithStore(store), goose.WithDisableGlobalRegistry(true)}
	if locked {
		locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 60))
		if err != nil {
			return nil, err
		}
		opts = append(opts, goose.WithSessionLocker(locker))
	}
	return goose.NewProvider("", db, migrations.FS, opts...)
}

// openIn opens databaseURL with search_path set to the schema, through the simple protocol:
// it runs once, and a pooler in between keeps no prepared statements.
func openIn(databaseURL, schema string) (*sql.DB, error) {
	cfg, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams["search_path"] = quote(schema) + ", pg_temp"
	cfg.RuntimeParams["application_name"] = "jobledger migrate"
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	cfg.ConnectTimeout = 10 * time.Second
	db := stdlib.OpenDB(*cfg)
	db.SetMaxOpenConns(2) // one holds the session lock, one works
	return db, nil
}

func inTx(ctx context.Context, db *sql.DB, f func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func latestMigration() int64 {
	names, _ := fs.Glob(migrations.FS, "*.sql") // the pattern is well-formed
	return migrationNumber(names[len(names)-1])
}

// migrationNumber reads the number in front of NNNNN_name.sql.
func migrationNumber(name string) int64 {
	n, err := goose.NumericComponent(name)
	if err != nil {
		panic(fmt.Sprintf("postgres: %v", err)) // embedded at build time
	}
	return n
}

func quote(identifier string) string { return pgx.Identifier{identifier}.Sanitize() }
