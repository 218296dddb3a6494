package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/projections"
)

// ClaimParams says who claims what.
type ClaimParams struct {
	// Worker names the claimer; every later call for the lease must show the same name. 1 to 255 bytes.
	Worker string
	// Tags are what it serves, at most 1,000; jobs of paused tags are not given. Default: the tag "default".
	Tags []string
	// Max is how many jobs it takes at most. 1 to domain.MaxBatch, default 1.
	Max int
	// Lease is how long the claim lasts without a ping. Too short doubles work, too long delays
	// recovery. 1 s to 24 h, default 60 s.
	Lease time.Duration
}

// Claimed is a job that the claimer now holds, with what it needs to run it.
type Claimed struct {
	Held
	Kind, Tag    string
	Priority     int
	Args         json.RawMessage // as enqueued; nil if none
	Facts        Facts
	Attempt      int
	Restarts     int
	Version      int
	Progress     json.RawMessage // what the last attempt reported; nil if nothing
	LastError    string          // of the last failed attempt
	PolicyID     int
	EnqueuedAt   time.Time
	ScheduledFor time.Time
	StartedAt    time.Time // the database's now at the claim
	// Lease and Timeout count from StartedAt; zero where on_lost_lease is reconcile. Durations and
	// not instants: the worker measures them with its own monotonic clock.
	Lease, Timeout time.Duration
}

// Claims is the answer to a claim.
type Claims struct {
	Jobs []Claimed
	// Contended: due jobs are left that others had locked just then. The queue is not empty; ask
	// again at once instead of sleeping.
	Contended bool
}

// Claim takes up to p.Max due jobs, highest priority first, then the earliest due, then the smallest
// id. None is no error. If the answer is lost on its way (ErrUnknownOutcome), it is not sent again, or
// there would be more than p.Max: jobs that were claimed without anybody knowing stay so until their
// lease ends and are then taken back. A worker (package worker) gives them back at once.
func (l *Ledger) Claim(ctx context.Context, p ClaimParams) (Claims, error) {
	if len(p.Tags) == 0 {
		p.Tags = []string{domain.DefaultTag}
	}
	if p.Max == 0 {
		p.Max = 1
	}
	if p.Lease == 0 {
		p.Lease = domain.DefaultLease
	}
	if err := p.check(); err != nil {
		return Claims{}, fmt.Errorf("claim: %w", err)
	}
	var out Claims
	r := &request{verb: domain.VerbClaim, name: "claim", once: true, args: []any{p.Worker, p.Tags, p.Max, p.Lease}}
	r.read = func(rows rows) error {
		out = Claims{}
		for rows.Next() {
			c, marker, err := scanClaimed(rows)
			if err != nil {
				return err
			}
			if marker {
				out.Contended = true
				continue
			}
			out.Jobs = append(out.Jobs, c)
		}
		return nil
	}
	if err := l.do(ctx, poolQuerier{l.pool}, r); err != nil {
		return Claims{}, err
	}
	return out, nil
}

func (p ClaimParams) check() error {
	if err := domain.CheckText("worker", p.Worker, domain.MaxActorBytes); err != nil {
		return err
	}
	if err := domain.CheckNames("tags", p.Tags, 1); err != nil {
		return err
	}
	if err := domain.CheckMaxJobs(p.Max); err != nil {
		return err
	}
	return domain.CheckLease(p.Lease)
}

// scanClaimed reads one row; marker says that it is the row without a job that means contended.
func scanClaimed(r rows) (c Claimed, marker bool, err error) {
	var id *uuid.UUID
	var generation, attempt, restarts, version, priority, policy *int
	var kind, tag, args, facts, progress, lastError *string
	var enqueued, scheduled, started, lease, timeout pgtype.Timestamptz
	err = r.Scan(&id, &generation, &attempt, &restarts, &version, &kind, &tag, &priority, &args, &facts, &progress, &lastError, &policy,
		&enqueued, &scheduled, &started, &lease, &timeout, &marker)
	if err != nil || marker {
		return c, marker, err
	}
	c = Claimed{
		Held: Held{JobID: *id, Generation: *generation}, Kind: *kind, Tag: *tag, Priority: *priority,
		Attempt: *attempt, Restarts: *restarts, Version: *version, LastError: deref(lastError), PolicyID: *policy,
		EnqueuedAt: projections.Instant(enqueued), ScheduledFor: projections.Instant(scheduled), StartedAt: projections.Instant(started),
	}
	if args != nil {
		c.Args = json.RawMessage(*args)
	}
	if progress != nil {
		c.Progress = json.RawMessage(*progress)
	}
	if facts != nil && json.Unmarshal([]byte(*facts), &c.Facts) != nil {
		// A caller of the SQL function may have put anything there. The jobs are claimed already: one
		// with odd facts must not cost the others their runs.
		c.Facts = Facts{}
	}
	if lease.Valid {
		c.Lease = projections.Instant(lease).Sub(c.StartedAt)
	}
	if timeout.Valid {
		c.Timeout = projections.Instant(timeout).Sub(c.StartedAt)
	}
	return c, false, nil
}
