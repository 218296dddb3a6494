package ledgertest

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// Scope asks which jobs there are, as one transaction or connection sees them.
type Scope struct {
	schema string
	query  func(ctx context.Context, text string) (rows, error)
}

// rows is what the result sets of pgx and database/sql have in common.
type rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
}

// Querier is a transaction or connection of pgx: pgx.Tx, *pgx.Conn, *pgxpool.Pool.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// SQLQuerier is a transaction or connection of database/sql: *sql.Tx, *sql.Conn, *sql.DB.
type SQLQuerier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// In returns what tx sees: also the jobs that it has enqueued and not committed.
func (l *Ledger) In(tx Querier) Scope { return scopeOf(l.Ledger, tx) }

// InSQL is In for database/sql.
func (l *Ledger) InSQL(tx SQLQuerier) Scope {
	return Scope{schema: l.Schema(), query: func(ctx context.Context, text string) (rows, error) {
		return tx.QueryContext(ctx, text)
	}}
}

func scopeOf(l *ledger.Ledger, tx Querier) Scope {
	return Scope{schema: l.Schema(), query: func(ctx context.Context, text string) (rows, error) { return tx.Query(ctx, text) }}
}

// Job is a job as tests look at it.
type Job struct {
	ID           uuid.UUID
	Kind, Tag    string
	Args         json.RawMessage // as enqueued; nil if none
	Priority     int
	ScheduledFor time.Time // when it is due
	EnqueuedAt   time.Time
	Key          string // its idempotency key, "" if none or free again
	Facts        ledger.Facts
	State        domain.State
	Outcome      domain.Outcome // "" until it has ended
	Attempt      int
}

// Jobs returns all jobs, whatever their state, in the order in which they were enqueued. Those of one call to
// EnqueueMany or EnqueueTx have no order.
func (s Scope) Jobs(t testing.TB) []Job {
	t.Helper()
	ctx, cancel := step()
	defer cancel()
	jobs, err := s.read(ctx)
	if err != nil {
		t.Fatalf("ledgertest: read jobs: %v", err)
	}
	return jobs
}

// selectJobs reads the jobs in the order of Scope.scan.
const selectJobs = `
SELECT j.job_id::text, j.kind, j.tag, b.body, j.priority, j.scheduled_for, j.enqueued_at, coalesce(k.key, ''), coalesce(j.facts, ''),
       j.state, coalesce(j.outcome, ''), j.attempt
FROM {schema}.job j
LEFT JOIN {schema}.job_event e ON e.job_id = j.job_id AND e.version = 1
LEFT JOIN {schema}.job_payload b ON b.job_id = j.job_id AND b.version = 1
LEFT JOIN {schema}.idempotency_key k ON k.job_id = j.job_id
ORDER BY e.seq`

func (s Scope) read(ctx context.Context) (jobs []Job, err error) {
	found, err := s.query(ctx, strings.ReplaceAll(selectJobs, "{schema}", pgx.Identifier{s.schema}.Sanitize()))
	if err != nil {
		return nil, err
	}
	defer closeRows(found)
	for found.Next() {
		var j Job
		var id, facts string
		var args *string
		err := found.Scan(&id, &j.Kind, &j.Tag, &args, &j.Priority, &j.ScheduledFor, &j.EnqueuedAt, &j.Key, &facts, &j.State, &j.Outcome, &j.Attempt)
		if err != nil {
			return nil, err
		}
		if j.ID, err = uuid.Parse(id); err != nil {
			return nil, fmt.Errorf("id %q: %w", id, err)
		}
		if args != nil {
			j.Args = json.RawMessage(*args)
		}
		if facts != "" && json.Unmarshal([]byte(facts), &j.Facts) != nil {
			j.Facts = ledger.Facts{} // a caller of the SQL function may have put anything there
		}
		j.ScheduledFor, j.EnqueuedAt = j.ScheduledFor.UTC(), j.EnqueuedAt.UTC()
		jobs = append(jobs, j)
	}
	return jobs, found.Err()
}

// closeRows ends a result set, so that the transaction that it belongs to can be used on.
func closeRows(r rows) {
	switch r := r.(type) {
	case pgx.Rows:
		r.Close()
	case *sql.Rows:
		_ = r.Close() // what matters is in Err
	}
}
