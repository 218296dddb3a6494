package projections

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/jobledger/jobledger/domain"
)

// Explanation says why a job does not run now, or runs on, or ended as it did. Causes are in the order of their weight:
// the first one alone would do. All is true at Now, by the database's clock, in one snapshot.
type Explanation struct {
	Job    Job
	Now    time.Time
	Causes []Because
}

// Because is one cause: what it is, since when (or when it happened, or when it will), and a sentence for people.
type Because struct {
	Cause Cause
	At    time.Time // zero where no instant belongs to it
	Text  string
}

// SilentAfter is how long after its last sign a worker is no longer believed to be alive: three of the longest
// intervals at which workers show themselves.
const SilentAfter = 90 * time.Second

// maxAhead bounds how many jobs in front of one are counted.
const maxAhead = 10000

// Explain reads what decides about a job and says what it means. domain.ErrNotFound if there is none.
func (r *Reader) Explain(ctx context.Context, db Begin, id uuid.UUID) (Explanation, error) {
	var e Explanation
	err := pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		s, err := r.In(tx).situation(ctx, id)
		if err != nil {
			return err
		}
		e = Explanation{Job: s.job, Now: s.now, Causes: s.causes()}
		return nil
	})
	if err != nil {
		return e, fmt.Errorf("explain job %s: %w", id, err)
	}
	return e, nil
}

// situation is all that decides about a job.
type situation struct {
	now     time.Time
	job     Job
	moved   domain.Event // the last event that changed its home or its due time
	asked   domain.Event // the cancel request of this run, if there is one
	late    int          // reports that were refused
	lastly  time.Time    // the last of them
	held    string       // nodes, foreign or ""
	paused  time.Time    // since when its tag is
	workers []Worker     // that serve its tag, or hold it
	ahead   int          // due jobs of its tag that come first, at most maxAhead + 1
}

func (r *Reader) situation(ctx context.Context, id uuid.UUID) (situation, error) {
	var s situation
	var err error
	if s.job, err = r.Job(ctx, id); err != nil {
		return s, err
	}
	events, err := r.History(ctx, id)
	if err != nil {
		return s, err
	}
	s.read(events)
	if s.workers, err = r.workersOf(ctx, s.job); err != nil {
		return s, err
	}
	rows, err := r.db.Query(ctx, r.sql(`
SELECT {schema}.clock(), coalesce(q.held, ''), t.paused_at,
       (SELECT count(*) FROM (
           SELECT FROM {schema}.job_queue w
           WHERE w.tag = q.tag AND w.held IS NULL AND w.scheduled_for <= {schema}.clock() AND w.job_id <> q.job_id
             AND (w.priority > q.priority OR w.priority = q.priority AND (w.scheduled_for, w.job_id) < (q.scheduled_for, q.job_id))
           LIMIT $3) before)
FROM (VALUES ($1::uuid)) AS j (job_id)
LEFT JOIN {schema}.job_queue q ON q.job_id = j.job_id
LEFT JOIN {schema}.tag_state t ON t.tag = $2`), id, s.job.Tag, maxAhead+1)
	if err != nil {
		return s, err
	}
	var paused pgtype.Timestamptz
	_, err = pgx.ForEachRow(rows, []any{&s.now, &s.held, &paused, &s.ahead}, func() error { return nil })
	s.now, s.paused = s.now.UTC(), Instant(paused)
	return s, err
}

// read takes from the history what its home does not say.
func (s *situation) read(events []domain.Event) {
	for _, e := range events {
		switch e.Type {
		case domain.Rejected:
			s.late, s.lastly = s.late+1, e.At
		case domain.CancelRequested:
			s.asked = e
		case domain.Pinged:
		default:
			s.moved = e
		}
	}
}

// workersOf reads the workers that serve the job's tag, and the one that holds it.
func (r *Reader) workersOf(ctx context.Context, j Job) ([]Worker, error) {
	all, err := r.Workers(ctx)
	if err != nil {
		return nil, err
	}
	var some []Worker
	for _, w := range all {
		if w.Worker == j.Worker || w.serves(j.Tag) {
			some = append(some, w)
		}
	}
	return some, nil
}

func (w Worker) serves(tag string) bool { return slices.Contains(w.Tags, tag) }

func (w Worker) handles(kind string) bool { return slices.Contains(w.Kinds, kind) }

// Silent reports whether it has not shown itself for SilentAfter: what it said of itself need not be true any more.
func (w Worker) Silent() bool { return w.SeenAgo > SilentAfter }
