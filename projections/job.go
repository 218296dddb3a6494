package projections

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

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
	rows, err := r.db.Query(ctx, r.sql(`SELECT version, body FROM {schema}.job_payload WHERE job_id = $1 AND version = ANY ($2::int[])`),
		j.ID, []int{1, j.ResultVersion, j.ErrorVersion, j.ProgressVersion})
	if err != nil {
		return err
	}
	var version int
	var text string
	_, err = pgx.ForEachRow(rows, []any{&version, &text}, func() error {
		switch version {
		case 1:
			j.Args = json.RawMessage(text)
		case j.ResultVersion:
			j.Result = json.RawMessage(text)
		case j.ErrorVersion:
			j.Error = text
		case j.ProgressVersion:
			j.Progress = json.RawMessage(text)
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
	var started, pinged, progress, lease, timeout, ended *time.Time
	p := &j.Policy
	err := row.Scan(&j.ID, &j.State, &j.Version, &j.Generation, &j.Attempt, &j.Restarts, &j.Kind, &j.Tag, &j.Priority, &j.ScheduledFor, &j.PolicyID,
		&j.Facts, &j.EnqueuedAt, &j.ChangedAt, &j.ProgressVersion, &j.ErrorVersion, &j.ResultVersion,
		&j.Worker, &started, &pinged, &progress, &lease, &timeout,
		&j.CanceledBy, &j.CancelReason, &j.Outcome, &j.Class, &j.Reason, &ended,
		&p.MaxAttempts, &p.Timeout, &p.RestartLimit, &p.OnLostLease, &p.BackoffBase, &p.BackoffFactor, &p.BackoffCap, &p.BackoffJitter, &p.StallAfter)
	j.ScheduledFor, j.EnqueuedAt, j.ChangedAt = j.ScheduledFor.UTC(), j.EnqueuedAt.UTC(), j.ChangedAt.UTC()
	j.StartedAt, j.PingedAt, j.ProgressAt = instant(started), instant(pinged), instant(progress)
	j.LeaseUntil, j.TimeoutAt, j.EndedAt = instant(lease), instant(timeout), instant(ended)
	return j, err
}

// instant turns NULL into the zero time and the rest into UTC.
func instant(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}
