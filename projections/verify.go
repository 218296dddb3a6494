package projections

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/domain"
)

// Finding is one difference between the events and what is stored beside them.
type Finding struct {
	JobID   uuid.UUID
	Version int    // the event it is about, 0 if it is about the home row
	Problem string // what was found and what was expected
}

// Verified is the outcome of Verify.
type Verified struct {
	Jobs     int64
	Events   int64
	Bodies   int64     // whose digest was computed again
	Findings []Finding // at most MaxFindings; empty means that the ledger is whole
	More     bool      // there were more findings than that
}

// MaxFindings bounds what Verify lists.
const MaxFindings = 1000

// Begin is what Verify needs of a pool or a connection.
type Begin interface {
	BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error)
}

// Verify folds all events with domain.Fold and compares, job by job, with the home rows; it also
// computes the digest of every body again. All in one snapshot, so that it is safe and true on a
// ledger at work. progress, if not nil, is told now and then how many events have been read.
func (r *Reader) Verify(ctx context.Context, db Begin, progress func(events int64)) (Verified, error) {
	var v Verified
	err := pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		return (&verifier{r: r.In(tx), tx: tx, out: &v, progress: progress}).run(ctx)
	})
	if err != nil {
		return v, fmt.Errorf("verify: %w", err)
	}
	return v, nil
}

type verifier struct {
	r        *Reader
	tx       pgx.Tx
	out      *Verified
	progress func(int64)
}

// page is how many rows a cursor gives at once.
const page = 5000

// run merges two cursors in the order of job ids: the events and the home rows.
func (v *verifier) run(ctx context.Context) error {
	// An index order over all partitions would read the table at random; a sort reads it once.
	if _, err := v.tx.Exec(ctx, `SET LOCAL enable_indexscan = off`); err != nil {
		return err
	}
	if _, err := v.tx.Exec(ctx, v.r.sql(`DECLARE events NO SCROLL CURSOR FOR `+selectEvents(`false`)+` ORDER BY e.job_id, e.version, e.seq`)); err != nil {
		return err
	}
	if _, err := v.tx.Exec(ctx, v.r.sql(`DECLARE homes NO SCROLL CURSOR FOR `+selectJob+` ORDER BY j.job_id`)); err != nil {
		return err
	}
	events := &cursor[domain.Event]{tx: v.tx, name: "events", scan: scanEvent}
	homes := &cursor[Job]{tx: v.tx, name: "homes", scan: scanJob}
	for {
		e, err := events.peek(ctx)
		if err != nil {
			return err
		}
		h, err := homes.peek(ctx)
		if err != nil {
			return err
		}
		if e == nil && h == nil {
			break
		}
		id := firstID(e, h)
		past, err := events.takeWhile(ctx, func(e domain.Event) bool { return e.JobID == id })
		if err != nil {
			return err
		}
		rows, err := homes.takeWhile(ctx, func(j Job) bool { return j.ID == id })
		if err != nil {
			return err
		}
		v.out.Jobs++
		v.out.Events += int64(len(past))
		v.job(id, past, rows)
		if v.progress != nil {
			v.progress(v.out.Events)
		}
	}
	if err := v.policies(ctx); err != nil {
		return err
	}
	return v.bodies(ctx)
}

func firstID(e *domain.Event, h *Job) uuid.UUID {
	switch {
	case e == nil:
		return h.ID
	case h == nil:
		return e.JobID
	case string(h.ID[:]) < string(e.JobID[:]):
		return h.ID
	}
	return e.JobID
}

// job compares one job's fold with its home.
func (v *verifier) job(id uuid.UUID, past []domain.Event, homes []Job) {
	if len(past) == 0 {
		v.find(id, 0, fmt.Sprintf("is %s, but has no event", homes[0].State))
		return
	}
	want, err := domain.Fold(past)
	if err != nil {
		fold := err.(*domain.FoldError) // Fold returns no other
		v.find(id, fold.Event.Version, fold.Problem)
		return
	}
	switch len(homes) {
	case 0:
		v.find(id, 0, fmt.Sprintf("is in no projection, want %s", want.State))
		return
	case 1:
	default:
		v.find(id, 0, fmt.Sprintf("is in %d projections: %s and %s, want %s", len(homes), homes[0].State, homes[1].State, want.State))
		return
	}
	want.Origin = domain.Origin{}
	for _, d := range difference(homes[0].Job, want) {
		v.find(id, 0, d)
	}
}

// difference names the fields in which a home row differs from the fold.
func difference(got, want domain.Job) []string {
	var out []string
	g, w := reflect.ValueOf(got), reflect.ValueOf(want)
	for i := range g.NumField() {
		a, b := g.Field(i).Interface(), w.Field(i).Interface()
		if t, ok := a.(time.Time); ok && t.Equal(b.(time.Time)) || reflect.DeepEqual(a, b) {
			continue
		}
		out = append(out, fmt.Sprintf("%s is %v, want %v", g.Type().Field(i).Name, a, b))
	}
	return out
}

// bodies computes the digest of every stored body again and looks for the body of every digest.
func (v *verifier) bodies(ctx context.Context) error {
	rows, err := v.tx.Query(ctx, v.r.sql(`SELECT count(*) FROM {schema}.job_payload`))
	if err != nil {
		return err
	}
	if v.out.Bodies, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64]); err != nil {
		return err
	}
	return v.findRows(ctx, `
SELECT coalesce(b.job_id, e.job_id), coalesce(b.version, e.version),
       CASE WHEN b.job_id IS NULL THEN 'the body of this event is gone'
            WHEN e.job_id IS NULL THEN 'body without an event'
            WHEN e.digest IS NULL THEN 'body of an event that has no digest'
            ELSE 'body does not match the digest of its event' END
FROM {schema}.job_payload b
FULL JOIN (SELECT job_id, version, digest FROM {schema}.job_event) e ON e.job_id = b.job_id AND e.version = b.version
WHERE (b.job_id IS NOT NULL OR e.digest IS NOT NULL)
  AND e.digest IS DISTINCT FROM {schema}.body_digest(b.salt, b.body)
ORDER BY 1, 2
LIMIT $1`)
}

// policies compares each policy with its digest, and each job's policy with the digest that stands in
// its first event: it decides how often and how long the job may run.
func (v *verifier) policies(ctx context.Context) error {
	return v.findRows(ctx, `
SELECT e.job_id, e.version,
       CASE WHEN p.policy_id IS NULL THEN format('policy %s is missing', e.policy_id)
            WHEN e.policy_digest IS DISTINCT FROM p.digest THEN format('policy %s is not the one that the job was enqueued with', e.policy_id)
            ELSE format('policy %s was changed: its values do not match its digest', e.policy_id) END
FROM {schema}.job_event e
LEFT JOIN {schema}.policy p ON p.policy_id = e.policy_id
WHERE e.type = 'enqueued'
  AND (e.policy_digest IS DISTINCT FROM p.digest
       OR p.digest IS DISTINCT FROM {schema}.policy_digest(p.max_attempts, p.timeout, p.restart_limit, p.on_lost_lease, p.backoff_base,
                                                           p.backoff_factor, p.backoff_cap, p.backoff_jitter, p.stall_after))
ORDER BY e.job_id
LIMIT $1`)
}

// findRows adds the findings of a query: job, version and problem.
func (v *verifier) findRows(ctx context.Context, query string) error {
	rows, err := v.tx.Query(ctx, v.r.sql(query), MaxFindings+1)
	if err != nil {
		return err
	}
	var f Finding
	_, err = pgx.ForEachRow(rows, []any{&f.JobID, &f.Version, &f.Problem}, func() error {
		v.find(f.JobID, f.Version, f.Problem)
		return nil
	})
	return err
}

func (v *verifier) find(id uuid.UUID, version int, problem string) {
	if len(v.out.Findings) >= MaxFindings {
		v.out.More = true
		return
	}
	v.out.Findings = append(v.out.Findings, Finding{JobID: id, Version: version, Problem: problem})
}
