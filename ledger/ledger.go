// Package ledger is the write path of jobledger: one verb per file, each beside the SQL function
// that does it (claim.go, claim.sql). A function appends the event in the same statement as the
// guard that allowed it and moves the job to its new home; nothing else writes.
//
// Situation and error:
//
//	no such job                                     domain.ErrNotFound
//	another worker or a newer generation has it     domain.ErrFenced
//	the caller's own lease has ended                domain.ErrLeaseOver
//	the attempt ran longer than its policy allows   domain.ErrTimedOut
//	the job has its outcome already                 domain.ErrEnded
//	a generation that was never given               domain.ErrUnknownGeneration
//	ping: the row is locked right now               domain.ErrBusy (the lease stands; ping again)
//	redrive of a job that waits or runs             domain.ErrNotEnded
//	redrive of a job that ended with success        domain.ErrSucceeded
//	the job moved ten times while it was looked for domain.ErrContended (try again)
//	enqueue under an id that a job has already      domain.ErrExists
//	idempotency key used for another payload        domain.ErrKeyConflict
//	idempotency key held by an open transaction     domain.ErrKeyBusy (try again)
//	bad input                                       *domain.FieldError (nothing was stored)
//	whether it was carried out cannot be told       domain.ErrUnknownOutcome, an *domain.UnknownOutcomeError
//	anything else that others or the server spoilt  the driver's error (nothing was stored; see Retryable)
//	the same in a caller's transaction              domain.ErrRunAgain with it (run the whole transaction again)
//
// Refusals of one job come as *domain.RefusedError, which wraps the error above.
//
// What happens to a call, outside a caller's transaction, when the database does not answer it:
//
//	deadlock, lock time-out                          nothing was stored: it is sent again
//	serialization failure                            the same; the pool's sessions default to another isolation, so
//	                                                 that from then on each call says READ COMMITTED for itself,
//	                                                 at the price of two round trips more
//	read-only server, no connection or memory left   nothing was stored: it is sent again, on another connection
//	                                                 if the pool gives it up (postgres.EvictReadOnly)
//	the connection breaks, the session is ended      it may be stored: it is sent again; the verb finds what the
//	                                                 first sending did, and waits for one that still runs
//	the statement is canceled (57014), other errors  nothing was stored: told at once
//	ctx ends while a connection is waited for        nothing was stored: told at once
//	ctx ends while the statement runs                ErrUnknownOutcome
//
// A verb is sent at most seven times, with jittered pauses of 20 ms to 1 s, 2.3 s together, within ctx;
// what has not passed by then is told. A verb that is sent twice acts once: enqueue knows its ids again,
// complete, fail, release and snooze the worker and generation, cancel and redrive the operation. A ping
// that is sent twice may be recorded twice. A reap tells only of what its last sending took back. A claim
// that may have been carried out is not sent again (see Claim). In a caller's transaction nothing is sent again.
package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/projections"
)

// DefaultSchema is the Postgres schema of a ledger whose Config names none.
const DefaultSchema = "jobledger"

// Config is what a Ledger needs to know beyond its pool.
type Config struct {
	// Schema is the Postgres schema of this ledger. One database may hold several ledgers
	// (tenants, environments), each in its own schema. Default "jobledger".
	Schema string
	// Actor is written into the events of enqueue, cancel and redrive as who asked for it,
	// beside the database's own session user. Default: the session user.
	Actor string
}

// Ledger is a handle on one ledger in one database. It is safe for concurrent use and holds no
// connection of its own.
type Ledger struct {
	pool  *pgxpool.Pool
	cfg   Config
	read  *projections.Reader
	stmts map[string]string

	// explicit: the pool's sessions default to another isolation than READ COMMITTED, so that each
	// statement says it for itself. See do.
	explicit atomic.Bool

	mu       sync.Mutex
	policies map[domain.Policy]int
}

// New returns a Ledger on pool. It asks the database nothing: migrate first (jobledger migrate up).
func New(pool *pgxpool.Pool, cfg Config) (*Ledger, error) {
	if cfg.Schema == "" {
		cfg.Schema = DefaultSchema
	}
	if cfg.Actor != "" {
		if err := domain.CheckText("actor", cfg.Actor, domain.MaxActorBytes); err != nil {
			return nil, fmt.Errorf("new ledger: %w", err)
		}
	}
	read, err := projections.New(pool, cfg.Schema)
	if err != nil {
		return nil, fmt.Errorf("new ledger: %w", err)
	}
	l := &Ledger{pool: pool, cfg: cfg, read: read, stmts: map[string]string{},
		policies: map[domain.Policy]int{domain.DefaultPolicy: defaultPolicyID}}
	schema := pgx.Identifier{cfg.Schema}.Sanitize()
	for name, text := range statements {
		l.stmts[name] = strings.ReplaceAll(text, "{schema}", schema)
	}
	return l, nil
}

// Schema returns the name of the ledger's schema.
func (l *Ledger) Schema() string { return l.cfg.Schema }

// Read returns the read path on the same pool and schema.
func (l *Ledger) Read() *projections.Reader { return l.read }

// statements calls each SQL function by name. {schema} becomes the ledger's schema: the names are
// qualified because a caller's own transaction has a search_path of its own.
var statements = map[string]string{
	"enqueue":       `SELECT * FROM {schema}.enqueue_many($1::text[], $2::text[], $3::text[], $4::int[], $5::timestamptz[], $6::interval[], $7::int[], $8::text[], $9::interval[], $10::text[], $11::text[], $12::text[], $13::uuid[], $14::uuid[], $15::int[], $16::uuid[], $17::uuid[], $18::text, $19::boolean, $20::boolean)`,
	"ensure_policy": `SELECT {schema}.ensure_policy($1::int, $2::interval, $3::int, $4::text, $5::interval, $6::int, $7::interval, $8::int, $9::interval)`,
	"claim":         `SELECT * FROM {schema}.claim($1::text, $2::text[], $3::int, $4::interval)`,
	"ping":          `SELECT * FROM {schema}.ping($1::text, $2::uuid[], $3::int[], $4::interval, $5::text[], $6::uuid[], $7::boolean[])`,
	"complete":      `SELECT * FROM {schema}.complete($1::text, $2::uuid[], $3::int[], $4::text[], $5::uuid[], $6::boolean[])`,
	"fail":          `SELECT * FROM {schema}.fail($1::text, $2::uuid[], $3::int[], $4::text[], $5::text[], $6::uuid[], $7::interval[], $8::boolean[], $9::boolean[])`,
	"release":       `SELECT * FROM {schema}.release($1::text, $2::uuid[], $3::int[])`,
	"snooze":        `SELECT * FROM {schema}.snooze($1::text, $2::uuid[], $3::int[], $4::interval[], $5::text[])`,
	"cancel":        `SELECT * FROM {schema}.cancel($1::uuid[], $2::text, $3::text, $4::uuid)`,
	"reap":          `SELECT * FROM {schema}.reap($1::text, $2::int, $3::text[])`,
	"redrive":       `SELECT * FROM {schema}.redrive($1::uuid[], $2::text, $3::text, $4::uuid)`,
	"sleep":         `SELECT {schema}.sleep($1::text, $2::text[], $3::interval, $4::boolean)`,
	"wake":          `SELECT {schema}.wake($1::text[])`,
	"wake_channel":  `SELECT {schema}.wake_channel()`,
	"notify":        `SELECT pg_notify({schema}.wake_channel(), $1::text)`,
	"worker_seen":   `SELECT {schema}.worker_seen($1::text, $2::text[], $3::text[], $4::text, $5::int, $6::int, $7::int, $8::text)`,
	"worker_gone":   `SELECT {schema}.worker_gone($1::text)`,
	"extend_events": `SELECT {schema}.extend_events()`,
}

// querier is what the verbs need of a pool, a connection or a caller's transaction.
type querier interface {
	query(ctx context.Context, text string, args ...any) (rows, error)
}

// rows is what the result sets of pgx and database/sql have in common.
type rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
}

// poolQuerier is the ledger's own pool: each statement is a transaction of its own.
type poolQuerier struct{ pool *pgxpool.Pool }

func (q poolQuerier) query(ctx context.Context, text string, args ...any) (rows, error) {
	return q.pool.Query(ctx, text, args...)
}

// ownTx is a transaction that a verb has begun for itself.
type ownTx struct{ tx pgx.Tx }

func (q ownTx) query(ctx context.Context, text string, args ...any) (rows, error) {
	return q.tx.Query(ctx, text, args...)
}

// pgxQuerier serves pgx.Tx and a connection of the pool.
type pgxQuerier struct {
	db interface {
		Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	}
}

func (q pgxQuerier) query(ctx context.Context, text string, args ...any) (rows, error) {
	return q.db.Query(ctx, text, args...)
}

// sqlQuerier serves a *sql.Tx opened through pgx's stdlib driver.
type sqlQuerier struct{ tx *sql.Tx }

func (q sqlQuerier) query(ctx context.Context, text string, args ...any) (rows, error) {
	r, err := q.tx.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// close ends a result set that was not read to its end.
func closeRows(r rows) {
	switch r := r.(type) {
	case pgx.Rows:
		r.Close()
	case *sql.Rows:
		_ = r.Close() // what matters is in Err
	}
}
