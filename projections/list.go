package projections

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/jobledger/jobledger/domain"
)

// Filter chooses jobs; a zero field does not narrow.
type Filter struct {
	State   domain.State
	Outcome domain.Outcome
	Kind    string
	Tag     string
	Worker  string
	// Label is "name=value".
	Label string
	// Before pages on: the id of the last job of the page before.
	Before uuid.UUID
	// Limit is the length of a page. 1 to 10000, default 100.
	Limit int
}

// List reads jobs, newest first (by id: UUIDv7 carries the time of enqueue), without their bodies.
func (r *Reader) List(ctx context.Context, f Filter) ([]Job, error) {
	if f.Limit == 0 {
		f.Limit = 100
	}
	if f.Limit < 1 || f.Limit > 10000 {
		return nil, fmt.Errorf("list jobs: %w", &domain.FieldError{Field: "limit", Value: f.Limit, Want: "1 to 10000"})
	}
	rows, err := r.db.Query(ctx, r.sql(selectJob+`
WHERE ($1 = '' OR j.state = $1) AND ($2 = '' OR j.outcome = $2) AND ($3 = '' OR j.kind = $3) AND ($4 = '' OR j.tag = $4)
  AND ($5 = '' OR j.worker = $5)
  AND ($6 = '' OR {schema}.label_of(j.facts, split_part($6, '=', 1)) = substr($6, strpos($6, '=') + 1))
  AND ($7::uuid IS NULL OR j.job_id < $7)
ORDER BY j.job_id DESC
LIMIT $8`), string(f.State), string(f.Outcome), f.Kind, f.Tag, f.Worker, f.Label, nullID(f.Before), f.Limit)
	if err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	jobs, err := pgx.CollectRows(rows, scanJob)
	if err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	return jobs, nil
}

func nullID(id uuid.UUID) *uuid.UUID {
	if id == uuid.Nil {
		return nil
	}
	return &id
}

// Count is how many jobs are in one state (and, where ended, with one outcome).
type Count struct {
	State   domain.State
	Outcome domain.Outcome
	Jobs    int64
}

// Counts counts jobs by state and outcome.
func (r *Reader) Counts(ctx context.Context) ([]Count, error) {
	rows, err := r.db.Query(ctx, r.sql(`SELECT state, coalesce(outcome, ''), count(*) FROM {schema}.job GROUP BY 1, 2 ORDER BY 1 DESC, 2`))
	if err != nil {
		return nil, fmt.Errorf("count jobs: %w", err)
	}
	counts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Count])
	if err != nil {
		return nil, fmt.Errorf("count jobs: %w", err)
	}
	return counts, nil
}

// Worker is a worker as it was last seen.
type Worker struct {
	Worker    string
	Tags      []string
	Kinds     []string
	Host      string
	PID       int
	Slots     int
	Running   int
	State     string
	StartedAt time.Time
	SeenAt    time.Time
	SeenAgo   time.Duration // by the database's clock, ten years at most
	Leases    int64         // jobs that it holds now
}

// Workers reads who is alive, or was within the last day, by name. State is what a worker last said of
// itself, corrected by what is known better: who holds jobs works, and who waits to be woken sleeps.
func (r *Reader) Workers(ctx context.Context) ([]Worker, error) {
	rows, err := r.db.Query(ctx, r.sql(`
SELECT w.worker, w.tags, w.kinds, w.host, w.pid, w.slots, w.running,
       CASE WHEN w.state = 'stopping' THEN w.state WHEN l.leases > 0 OR s.watching THEN 'working' WHEN NOT s.watching THEN 'sleeping' ELSE w.state END,
       w.started_at, w.seen_at,
       CASE WHEN isfinite(w.seen_at) THEN least(greatest({schema}.clock() - w.seen_at, '-87600 hours'), '87600 hours') ELSE '87600 hours' END,
       l.leases
FROM {schema}.worker w
CROSS JOIN LATERAL (SELECT count(*) AS leases FROM {schema}.job_runtime r WHERE r.worker = w.worker) l
LEFT JOIN {schema}.sleeper s ON s.worker = w.worker AND s.until > clock_timestamp()
ORDER BY w.worker`))
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	workers, err := pgx.CollectRows(rows, scanWorker)
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	return workers, nil
}

func scanWorker(row pgx.CollectableRow) (Worker, error) {
	var w Worker
	var started, seen pgtype.Timestamptz
	err := row.Scan(&w.Worker, &w.Tags, &w.Kinds, &w.Host, &w.PID, &w.Slots, &w.Running, &w.State, &started, &seen, &w.SeenAgo, &w.Leases)
	w.StartedAt, w.SeenAt = Instant(started), Instant(seen)
	return w, err
}
