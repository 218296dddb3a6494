package projections

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Status is what an operator looks at first: what is stuck, not how many processes there are. It is read in one
// snapshot. It counts all jobs that have ended, which takes about a second for each ten million of them.
type Status struct {
	Now time.Time

	LongestRunning *StatusJob // the running job that was started first
	LongestWaiting *StatusJob // the job that could run since the longest time: due, not held, its tag not paused
	LeasesOver     int64      // running jobs past their lease or time-out that nobody has taken back yet
	Unserved       int64      // jobs that could run but for a worker: no live one serves their tag, which is not paused

	RetriesDue   int64 // jobs that wait for a further attempt and are due
	RetriesLater int64 // jobs that wait for a further attempt and are due later
	Restarts     int64 // leases lost by jobs in their present life
	LateReports  int64 // reports of earlier generations that were refused
	KeyReplays   int64 // enqueues that were answered with the first job of their key

	Workers  int64 // that were seen lately
	Silent   int64 // workers that were not, and have not said goodbye
	Slots    int64 // handlers that the live workers could run
	Occupied int64 // handlers that they do run

	Tags        []TagStatus
	DeadLetters []DeadLetters
}

// StatusJob is a job that stands out.
type StatusJob struct {
	ID         uuid.UUID
	Kind       string
	Tag        string
	Since      time.Time
	Worker     string    // of a running one
	ProgressAt time.Time // of a running one; zero if it never reported any
}

// TagStatus counts the jobs of a tag.
type TagStatus struct {
	Tag                        string
	Paused                     bool
	Due, Later, Held, Running  int64
	Success, Failure, Canceled int64
}

// DeadLetters counts the dead letters of a reason and kind.
type DeadLetters struct {
	Reason string
	Kind   string
	Jobs   int64
}

// SuccessRate is the share of success among all jobs that have ended, dead letters and canceled ones included; ok is
// false if none has.
func (s Status) SuccessRate() (rate float64, ok bool) {
	var success, all int64
	for _, t := range s.Tags {
		success += t.Success
		all += t.Success + t.Failure + t.Canceled
	}
	if all == 0 {
		return 0, false
	}
	return float64(success) / float64(all), true
}

// Status reads the state of the ledger as a whole.
func (r *Reader) Status(ctx context.Context, db Begin) (Status, error) {
	var s Status
	err := pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		return r.In(tx).readStatus(ctx, &s)
	})
	if err != nil {
		return s, fmt.Errorf("read status: %w", err)
	}
	return s, nil
}

func (r *Reader) readStatus(ctx context.Context, s *Status) error {
	rows, err := r.db.Query(ctx, r.sql(`
SELECT {schema}.clock(),
       (SELECT count(*) FROM {schema}.job_runtime WHERE lease_until <= {schema}.clock() OR timeout_at <= {schema}.clock()),
       (SELECT count(*) FROM {schema}.job_queue q WHERE scheduled_for <= {schema}.clock() AND held IS NULL
           AND NOT EXISTS (SELECT FROM {schema}.tag_state s WHERE s.tag = q.tag AND s.paused_at IS NOT NULL)
           AND NOT EXISTS (SELECT FROM {schema}.worker w WHERE q.tag = ANY (w.tags) AND w.seen_at > {schema}.clock() - $1::interval)),
       (SELECT count(*) FROM {schema}.job_queue WHERE (attempt > 0 OR restarts > 0) AND scheduled_for <= {schema}.clock()),
       (SELECT count(*) FROM {schema}.job_queue WHERE (attempt > 0 OR restarts > 0) AND scheduled_for > {schema}.clock()),
       (SELECT coalesce(sum(restarts), 0) FROM {schema}.job_queue) + (SELECT coalesce(sum(restarts), 0) FROM {schema}.job_runtime)
           + (SELECT coalesce(sum(restarts), 0) FROM {schema}.job_completed),
       (SELECT count(*) FROM {schema}.job_event WHERE type = 'rejected'),
       (SELECT coalesce(sum(replays), 0)::bigint FROM {schema}.idempotency_key),
       count(*) FILTER (WHERE w.live), count(*) FILTER (WHERE NOT w.live),
       coalesce(sum(w.slots) FILTER (WHERE w.live), 0), coalesce(sum(w.running) FILTER (WHERE w.live), 0)
FROM (SELECT slots, running, seen_at > {schema}.clock() - $1::interval AS live FROM {schema}.worker) w`), SilentAfter)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, []any{&s.Now, &s.LeasesOver, &s.Unserved, &s.RetriesDue, &s.RetriesLater, &s.Restarts, &s.LateReports, &s.KeyReplays,
		&s.Workers, &s.Silent, &s.Slots, &s.Occupied}, func() error { return nil })
	if err != nil {
		return err
	}
	s.Now = s.Now.UTC()
	if s.LongestRunning, err = r.statusJob(ctx, `
SELECT job_id, kind, tag, started_at, worker, progress_at FROM {schema}.job_runtime ORDER BY started_at, job_id LIMIT 1`); err != nil {
		return err
	}
	if s.LongestWaiting, err = r.statusJob(ctx, `
SELECT job_id, kind, tag, scheduled_for, '', NULL::timestamptz FROM {schema}.job_queue q
WHERE scheduled_for <= {schema}.clock() AND held IS NULL
  AND NOT EXISTS (SELECT FROM {schema}.tag_state s WHERE s.tag = q.tag AND s.paused_at IS NOT NULL)
ORDER BY scheduled_for, job_id LIMIT 1`); err != nil {
		return err
	}
	return r.readTags(ctx, s)
}

func (r *Reader) statusJob(ctx context.Context, sql string) (*StatusJob, error) {
	rows, err := r.db.Query(ctx, r.sql(sql))
	if err != nil {
		return nil, err
	}
	jobs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*StatusJob, error) {
		var j StatusJob
		var since, progress pgtype.Timestamptz
		err := row.Scan(&j.ID, &j.Kind, &j.Tag, &since, &j.Worker, &progress)
		j.Since, j.ProgressAt = Instant(since), Instant(progress)
		return &j, err
	})
	if err != nil || len(jobs) == 0 {
		return nil, err
	}
	return jobs[0], nil
}

// readTags counts jobs by tag, and dead letters by reason and kind.
func (r *Reader) readTags(ctx context.Context, s *Status) error {
	rows, err := r.db.Query(ctx, r.sql(`
SELECT tag, EXISTS (SELECT FROM {schema}.tag_state p WHERE p.tag = j.tag AND p.paused_at IS NOT NULL),
       sum(due)::bigint, sum(later)::bigint, sum(held)::bigint, sum(running)::bigint, sum(success)::bigint, sum(failure)::bigint, sum(canceled)::bigint
FROM (
    SELECT tag, count(*) FILTER (WHERE held IS NULL AND scheduled_for <= {schema}.clock()) AS due,
           count(*) FILTER (WHERE held IS NULL AND scheduled_for > {schema}.clock()) AS later, count(held) AS held,
           0 AS running, 0 AS success, 0 AS failure, 0 AS canceled
    FROM {schema}.job_queue GROUP BY tag
    UNION ALL
    SELECT tag, 0, 0, 0, count(*), 0, 0, 0 FROM {schema}.job_runtime GROUP BY tag
    UNION ALL
    SELECT tag, 0, 0, 0, 0, count(*) FILTER (WHERE outcome = 'success'), count(*) FILTER (WHERE outcome = 'failure'),
           count(*) FILTER (WHERE outcome = 'canceled')
    FROM {schema}.job_completed GROUP BY tag
    UNION ALL
    SELECT tag, 0, 0, 0, 0, 0, 0, 0 FROM {schema}.tag_state WHERE paused_at IS NOT NULL
) j
GROUP BY tag
ORDER BY tag`))
	if err != nil {
		return err
	}
	if s.Tags, err = pgx.CollectRows(rows, pgx.RowToStructByPos[TagStatus]); err != nil {
		return err
	}
	rows, err = r.db.Query(ctx, r.sql(`
SELECT coalesce(reason, ''), kind, count(*) FROM {schema}.job_completed WHERE outcome = 'failure' GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT 20`))
	if err != nil {
		return err
	}
	s.DeadLetters, err = pgx.CollectRows(rows, pgx.RowToStructByPos[DeadLetters])
	return err
}
