package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/projections"
)

// DefaultMigrateWait is how long MigrateUp tries again for locks that others hold.
const DefaultMigrateWait = 2 * time.Minute

// MigrateOption changes how MigrateUp goes about it.
type MigrateOption func(*migrator)

// MigrateWait bounds how long MigrateUp waits, in all its steps together, for others that hold what it must
// lock; then it returns a *LockedError. Default DefaultMigrateWait; 0 tries each step once.
func MigrateWait(d time.Duration) MigrateOption { return func(m *migrator) { m.patience = d } }

// MigrateNotice gets one line, without line break, for each who keeps MigrateUp waiting.
func MigrateNotice(notice func(line string)) MigrateOption {
	return func(m *migrator) { m.notice = notice }
}

// MigrateUp brings the schema to the state that this binary needs: the schema itself, the numbered
// migrations, then the transition functions if theirs is a higher version, then event partitions ahead.
//
// It may run while workers are at work, twice, and by several processes at once, of whom one at a time gets on. Each
// step is one transaction with all its locks: it is done and recorded, or nothing of it is, also after SIGKILL. A lock
// on a table is waited for 200 ms at most, for everybody who comes later queues behind whoever waits; then the step is
// undone and, after a pause, tried again (MigrateWait). It needs nothing of a session, and so works through a pooler.
//
// Errors: *LockedError; a *domain.SchemaError with domain.ErrLedgerNewer, if the ledger is more than one release ahead
// (of one release it does nothing), or domain.ErrLedgerDamaged; any other of the database. What was done stays done.
func MigrateUp(ctx context.Context, databaseURL, schema string, options ...MigrateOption) error {
	m := &migrator{schema: schema, files: migrationFiles(), patience: DefaultMigrateWait, notice: func(string) {}}
	for _, option := range options {
		option(m)
	}
	if err := projections.CheckSchema(schema); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	conn, err := openDirect(ctx, databaseURL)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	defer closeNow(conn)
	m.conn, m.watch.config = conn, conn.Config()
	defer m.watch.close()
	if err := m.up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// migrator is one call of MigrateUp.
type migrator struct {
	conn     *pgx.Conn
	schema   string
	files    []migrationFile
	patience time.Duration // what is left of the time for waiting
	notice   func(string)
	backend  int32 // of the step under way
	watch    watcher
}

func (m *migrator) up(ctx context.Context) error {
	status, err := readStatus(ctx, m.conn, m.schema, m.files)
	if err != nil {
		return err
	}
	if err := status.refusal(); err != nil {
		return err
	}
	if err := m.step(ctx, "create schema "+m.schema, m.createSchema); err != nil {
		return err
	}
	for _, file := range m.files {
		if file.number <= status.Migration {
			continue
		}
		if err := m.step(ctx, file.name, func(ctx context.Context, tx pgx.Tx) error { return m.apply(ctx, tx, file) }); err != nil {
			return err
		}
	}
	if err := m.step(ctx, "apply functions", applyFunctions); err != nil {
		return err
	}
	return m.extendEvents(ctx)
}

// createSchema makes the schema and the record of migrations. It does not ask for what is there: CREATE SCHEMA IF NOT
// EXISTS needs the right to create one even then.
func (m *migrator) createSchema(ctx context.Context, tx pgx.Tx) error {
	var exists bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, m.schema).Scan(&exists); err != nil {
		return err
	}
	if !exists {
		if _, err := tx.Exec(ctx, "CREATE SCHEMA "+quote(m.schema)); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, createMigrationTable)
	return err
}

// apply runs one numbered migration and records it, unless another migrator has done so in the meantime.
func (m *migrator) apply(ctx context.Context, tx pgx.Tx, file migrationFile) error {
	var done bool
	err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+migrationTable+" WHERE version_id = $1 AND is_applied)", file.number).Scan(&done)
	if err != nil || done {
		return err
	}
	if _, err := tx.Exec(ctx, file.up); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "INSERT INTO "+migrationTable+" (version_id, is_applied) VALUES ($1, true)", file.number)
	return err
}

// applyFunctions replaces the transition functions by a higher version only; or by another text of the same
// version, which only a development build has; or where some are missing, as after a restore of a part.
func applyFunctions(ctx context.Context, tx pgx.Tx) error {
	var version, missing int
	var digest string
	err := tx.QueryRow(ctx, `SELECT version, digest FROM function_version`).Scan(&version, &digest)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	err = tx.QueryRow(ctx, `SELECT count(*) FROM unnest($1::text[]) AS name
		WHERE NOT EXISTS (SELECT FROM pg_proc WHERE proname = name AND pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()))`, functionNames()).Scan(&missing)
	if err != nil {
		return err
	}
	if version > ledger.FunctionsVersion || version == ledger.FunctionsVersion && digest == ledger.FunctionsDigest() && missing == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, ledger.Functions()); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO function_version (version, digest) VALUES ($1, $2)
		ON CONFLICT (singleton) DO UPDATE SET version = excluded.version, digest = excluded.digest, applied_at = clock_timestamp()`,
		ledger.FunctionsVersion, ledger.FunctionsDigest())
	return err
}

// extendPatience bounds the wait for the partitions ahead. They are not needed today, and every reaper makes them, too.
const extendPatience = 5 * time.Second

// extendEvents makes event partitions ahead. A long reader of the events, such as pg_dump, keeps it from that.
func (m *migrator) extendEvents(ctx context.Context) error {
	m.patience = min(m.patience, extendPatience)
	err := m.step(ctx, "make event partitions ahead", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT extend_events()`)
		return err
	})
	if locked := (*LockedError)(nil); errors.As(err, &locked) {
		m.notice(fmt.Sprintf("event partitions ahead are left to the reaper: %s", locked.holders()))
		return nil
	}
	return err
}

// step runs f in one transaction in the ledger's schema, under the lock that lets one migrator at a time get on. The
// lock is the transaction's: the server frees it whatever becomes of this process, and no pooler can keep it.
func (m *migrator) step(ctx context.Context, what string, f func(context.Context, pgx.Tx) error) error {
	err := pgx.BeginTxFunc(ctx, m.conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		// What a database or role sets for its users must not cut off a migration. An open transaction that nobody
		// works in is one whose process can't be reached any more: it must not keep the lock.
		_, err := tx.Exec(ctx, "SET LOCAL search_path = "+quote(m.schema)+", pg_temp; SET LOCAL statement_timeout = 0; "+
			"SET LOCAL idle_in_transaction_session_timeout = '1min'")
		if err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&m.backend); err != nil {
			return err
		}
		err = m.insist(ctx, tx, "wait for another migrator", turnTimeout, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('jobledger migrate ' || $1, 0))`, m.schema)
			return err
		})
		if err != nil {
			return err
		}
		return m.insist(ctx, tx, what, lockTimeout, f)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// openDirect opens a connection for schema changes, with the simple protocol: everything runs once, and a pooler in
// between keeps no prepared statements. It sets nothing of the session for later: see migrator.step.
func openDirect(ctx context.Context, databaseURL string) (*pgx.Conn, error) {
	pool, err := pgxpool.ParseConfig(databaseURL) // the URL may have settings of a pool in it, too
	if err != nil {
		return nil, err
	}
	cfg := pool.ConnConfig
	cfg.RuntimeParams["application_name"] = "jobledger migrate"
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	cfg.ConnectTimeout = 10 * time.Second
	return pgx.ConnectConfig(ctx, cfg)
}

func quote(identifier string) string { return pgx.Identifier{identifier}.Sanitize() }
