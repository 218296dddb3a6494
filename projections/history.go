package projections

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/jobledger/jobledger/domain"
)

// History reads all events of a job in the order of their versions. domain.ErrNotFound if there are none.
func (r *Reader) History(ctx context.Context, id uuid.UUID) ([]domain.Event, error) {
	rows, err := r.db.Query(ctx, r.sql(selectEvents(`coalesce((SELECT b.altered FROM {schema}.job_payload b WHERE b.job_id = e.job_id AND b.version = e.version), false)`)+` WHERE e.job_id = $1 ORDER BY e.version`), id)
	if err != nil {
		return nil, fmt.Errorf("history of job %s: %w", id, err)
	}
	events, err := pgx.CollectRows(rows, scanEvent)
	if err != nil {
		return nil, fmt.Errorf("history of job %s: %w", id, err)
	}
	if len(events) == 0 {
		return nil, fmt.Errorf("history of job %s: %w", id, domain.ErrNotFound)
	}
	return events, nil
}

// selectEvents reads events in the order of scanEvent; the policy comes with enqueued events. Whether the
// body of an event was altered costs a look beside it.
func selectEvents(altered string) string {
	return `
SELECT e.seq, e.job_id, e.version, e.type, e.at, e.generation, e.attempt, e.actor, e.db_user, coalesce(e.kind, ''), coalesce(e.tag, ''),
       coalesce(e.priority, 0), e.scheduled_for, e.lease_until, coalesce(e.class, ''), coalesce(e.reason, ''), coalesce(e.verb, ''), e.digest,
       coalesce(e.operation, '00000000-0000-0000-0000-000000000000'), coalesce(e.facts, ''),
       coalesce(e.trigger_kind, ''), coalesce(e.trigger_ref, ''), coalesce(e.parent_id, '00000000-0000-0000-0000-000000000000'),
       coalesce(e.work_id, '00000000-0000-0000-0000-000000000000'), coalesce(e.pin_id, 0),
       coalesce(p.max_attempts, 0), coalesce(p.timeout, '0'), coalesce(p.restart_limit, 0), coalesce(p.on_lost_lease, ''), coalesce(p.backoff_base, '0'),
       coalesce(p.backoff_factor, 0), coalesce(p.backoff_cap, '0'), coalesce(p.backoff_jitter, 0), coalesce(p.stall_after, '0'),
       ` + altered + `
FROM {schema}.job_event e
LEFT JOIN {schema}.policy p ON p.policy_id = e.policy_id`
}

func scanEvent(row pgx.CollectableRow) (domain.Event, error) {
	var e domain.Event
	var at, due, lease pgtype.Timestamptz
	p, o := &e.Policy, &e.Origin
	err := row.Scan(&e.Seq, &e.JobID, &e.Version, &e.Type, &at, &e.Generation, &e.Attempt, &e.Actor, &e.DBUser, &e.Kind, &e.Tag,
		&e.Priority, &due, &lease, &e.Class, &e.Reason, &e.Verb, &e.Digest, &e.Operation, &e.Facts,
		&o.TriggerKind, &o.TriggerRef, &o.ParentID, &o.WorkID, &o.PinID,
		&p.MaxAttempts, &p.Timeout, &p.RestartLimit, &p.OnLostLease, &p.BackoffBase, &p.BackoffFactor, &p.BackoffCap, &p.BackoffJitter, &p.StallAfter, &e.Altered)
	e.At, e.ScheduledFor, e.LeaseUntil = Instant(at), Instant(due), Instant(lease)
	return e, err
}
