package projections

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/jobledger/jobledger/domain"
)

// Job is a job as its home row stores it. Origin is not part of a home: see its first event. Bodies
// are read by Reader.Job only, not by List.
type Job struct {
	domain.Job
	PolicyID int

	Args     json.RawMessage // as enqueued; nil if none or erased
	Result   json.RawMessage // nil if none
	Error    string          // text of the last failure
	Progress json.RawMessage // what was reported last

	// What was reported could not be stored as it was: the body has substitutes, or a part is left out.
	ResultAltered, ErrorAltered, ProgressAltered bool
}

// Job reads one job with its bodies. domain.ErrNotFound if there is none.
func (r *Reader) Job(ctx context.Context, id uuid.UUID) (Job, error) {
	rows, err := r.db.Query(ctx, r.sql(selectJob+` WHERE j.job_id = $1`), id)
	if err != nil {
		return Job{}, fmt.Errorf("read job %s: %w", id, err)
	}
	jobs, err := pgx.CollectRows(rows, scanJob)
	if err != nil {
		return Job{}, fmt.Errorf("read job %s: %w", id, err)
	}
	if len(jobs) == 0 {
		return Job{}, fmt.Errorf("read job %s: %w", id, domain.ErrNotFound)
	}
	j := jobs[0]
	if err := r.readBodies(ctx, &j); err != nil {
		return Job{}, fmt.Errorf("read job %s: %w", id, err)
	}
	return j, nil
}

func (r *Reader) readBodies(ctx context.Context, j *Job) error {
	rows, err := r.db.Query(ctx, r.sql(`SELECT version, altered, body FROM {schema}.job_payload WHERE job_id = $1 AND version = ANY ($2::int[])`),
		j.ID, []int{1, j.ResultVersion, j.ErrorVersion, j.ProgressVersion})
	if err != nil {
		return err
	}
	var version int
	var altered bool
	var text string
	_, err = pgx.ForEachRow(rows, []any{&version, &altered, &text}, func() error {
		switch version {
		case 1:
			j.Args = json.RawMessage(text)
		case j.ResultVersion:
			j.Result, j.ResultAltered = json.RawMessage(text), altered
		case j.ErrorVersion:
			j.Error, j.ErrorAltered = text, altered
		case j.ProgressVersion:
			j.Progress, j.ProgressAltered = json.RawMessage(text), altered
		}
		return nil
	})
	return err
}

// selectJob reads the view job together with the policy, in the order of scanJob.
const selectJob = `
SELECT j.job_id, j.state, j.version, j.generation, j.attempt, j.restarts, j.kind, j.tag, j.priority, j.scheduled_for, j.policy_id,
       coalesce(j.facts, ''), j.enqueued_at, j.changed_at, j.progress_version, j.error_version, j.result_version,
       coalesce(j.worker, ''), j.started_at, j.pinged_at, j.progress_at, j.lease_until, j.timeout_at,
       coalesce(j.canceled_by, ''), coalesce(j.cancel_reason, ''), coalesce(j.outcome, ''), coalesce(j.class, ''), coalesce(j.reason, ''), j.ended_at,
       coalesce(p.max_attempts, 0), coalesce(p.timeout, '0'), coalesce(p.restart_limit, 0), coalesce(p.on_lost_lease, ''), coalesce(p.backoff_base, '0'),
       coalesce(p.backoff_factor, 0), coalesce(p.backoff_cap, '0'), coalesce(p.backoff_jitter, 0), coalesce(p.stall_after, '0')
FROM {schema}.job j
LEFT JOIN {schema}.policy p ON p.policy_id = j.policy_id`

func scanJob(row pgx.CollectableRow) (Job, error) {
	var j Job
	var due, enqueued, changed, started, pinged, progress, lease, timeout, ended pgtype.Timestamptz
	p := &j.Policy
	err := row.Scan(&j.ID, &j.State, &j.Version, &j.Generation, &j.Attempt, &j.Restarts, &j.Kind, &j.Tag, &j.Priority, &due, &j.PolicyID,
		&j.Facts, &enqueued, &changed, &j.ProgressVersion, &j.ErrorVersion, &j.ResultVersion,
		&j.Worker, &started, &pinged, &progress, &lease, &timeout,
		&j.CanceledBy, &j.CancelReason, &j.Outcome, &j.Class, &j.Reason, &ended,
		&p.MaxAttempts, &p.Timeout, &p.RestartLimit, &p.OnLostLease, &p.BackoffBase, &p.BackoffFactor, &p.BackoffCap, &p.BackoffJitter, &p.StallAfter)
	j.ScheduledFor, j.EnqueuedAt, j.ChangedAt = Instant(due), Instant(enqueued), Instant(changed)
	j.StartedAt, j.PingedAt, j.ProgressAt = Instant(started), Instant(pinged), Instant(progress)
	j.LeaseUntil, j.TimeoutAt, j.EndedAt = Instant(lease), Instant(timeout), Instant(ended)
	return j, err
}

// What Instant makes of a time outside the years 1 to 9999, which no function stores, but a hand can.
// Postgres counts microseconds: neither is mistaken for a time from there.
var (
	earliest = time.Date(1, 1, 1, 0, 0, 0, 1, time.UTC)
	latest   = time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC)
)

// Instant turns NULL into the zero time and the rest into UTC. What Go cannot write as JSON, such as
// infinity, becomes the nearest time that it can: one odd row must not hide all the others.
func Instant(t pgtype.Timestamptz) time.Time {
	switch {
	case !t.Valid:
		return time.Time{}
	case t.InfinityModifier == pgtype.Infinity || t.InfinityModifier == pgtype.Finite && t.Time.After(latest):
		return latest
	case t.InfinityModifier == pgtype.NegativeInfinity || t.Time.Before(earliest):
		return earliest
	}
	return t.Time.UTC()
}
