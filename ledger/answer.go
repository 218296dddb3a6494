package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/projections"
)

// Answer is what a verb did to one job, or why it did nothing.
type Answer struct {
	JobID uuid.UUID
	// Event is what was appended; "" when the call was refused.
	Event domain.EventType
	// Err is why nothing was appended: a *domain.RefusedError; nil otherwise. Cancel of a job that
	// is marked already is no error: Event is empty and CancelRequested true.
	Err error
	// Repeated: an earlier sending of the same call, or another call of the same operation, had appended Event.
	Repeated   bool
	Version    int
	Generation int
	Attempt    int
	At         time.Time
	// LeaseUntil is the end of the lease by the database's clock; zero where there is none.
	LeaseUntil time.Time
	// ScheduledFor is when a job that went back to the queue is due.
	ScheduledFor time.Time
	// CancelRequested: somebody has asked the running job to stop.
	CancelRequested bool
	// Outcome is how the job ended, if it has.
	Outcome domain.Outcome
}

// Held names one lease: the job and the generation under which a worker runs it.
type Held struct {
	JobID      uuid.UUID
	Generation int
}

// call runs one statement that answers with rows of the SQL type answer and returns them in the
// order of the input, n in number.
func (l *Ledger) call(ctx context.Context, q querier, verb domain.Verb, held []Held, n int, args ...any) ([]Answer, error) {
	r := &request{verb: verb, name: string(verb), args: args}
	for _, h := range held {
		r.jobs = append(r.jobs, h.JobID)
	}
	return l.answers(ctx, q, r, held, n)
}

// answers makes a call whose rows are of the SQL type answer.
func (l *Ledger) answers(ctx context.Context, q querier, r *request, held []Held, n int) ([]Answer, error) {
	var out []Answer
	var order []int
	r.read = func(rows rows) error {
		out, order = make([]Answer, 0, n), make([]int, 0, n)
		for rows.Next() {
			a, ord, err := scanAnswer(rows, r.verb, held)
			if err != nil {
				return err
			}
			out, order = append(out, a), append(order, ord)
		}
		return nil
	}
	if err := l.do(ctx, q, r); err != nil {
		return nil, err
	}
	return inOrder(out, order), nil
}

// inOrder puts answers back into the order of the input: ord counts from 1.
func inOrder(answers []Answer, order []int) []Answer {
	sorted := make([]Answer, len(answers))
	for i, ord := range order {
		if ord < 1 || ord > len(answers) {
			return answers
		}
		sorted[ord-1] = answers[i]
	}
	return sorted
}

func scanAnswer(r rows, verb domain.Verb, held []Held) (Answer, int, error) {
	var a Answer
	var ord int
	var event, refusal, outcome *string
	var version, generation, attempt *int
	var at, lease, due pgtype.Timestamptz
	err := r.Scan(&ord, &a.JobID, &event, &refusal, &a.Repeated, &version, &generation, &attempt, &at, &lease, &due, &a.CancelRequested, &outcome)
	if err != nil {
		return a, ord, err
	}
	a.Event, a.Outcome = domain.EventType(deref(event)), domain.Outcome(deref(outcome))
	a.Version, a.Generation, a.Attempt = deref(version), deref(generation), deref(attempt)
	a.At, a.LeaseUntil, a.ScheduledFor = projections.Instant(at), projections.Instant(lease), projections.Instant(due)
	if why := domain.Refusal(deref(refusal)); why.Err() != nil {
		e := &domain.RefusedError{Verb: verb, JobID: a.JobID, Refusal: why}
		if ord >= 1 && ord <= len(held) {
			e.Generation = held[ord-1].Generation
		}
		if why == domain.RefusedEnded {
			e.Outcome = a.Outcome
		}
		if verb == domain.VerbEnqueue {
			e.Index = ord - 1
		}
		a.Err = e
	}
	return a, ord, nil
}

// one unwraps the answer of a call for a single job.
func one(answers []Answer, err error) (Answer, error) {
	if err != nil {
		return Answer{}, err
	}
	if len(answers) != 1 {
		return Answer{}, fmt.Errorf("got %d answers for one job", len(answers))
	}
	return answers[0], answers[0].Err
}

// split turns leases into the two arrays that the SQL functions take.
func split(held []Held) (ids, []int) {
	jobs, generations := make(ids, len(held)), make([]int, len(held))
	for i, h := range held {
		jobs[i], generations[i] = h.JobID, h.Generation
	}
	return jobs, generations
}

// fromPostgres turns the refusals of the SQL functions, and a schema of another release, into the errors of package
// domain, and tells what it means when a prepared statement is not there, or there already.
func fromPostgres(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	var f struct {
		Index              int
		Field, Value, Want string
	}
	if pg.Code == "JL400" && json.Unmarshal([]byte(pg.Detail), &f) == nil {
		return &domain.FieldError{Index: f.Index, Field: f.Field, Value: f.Value, Want: f.Want}
	}
	if pg.Code == pgerrcode.InvalidSQLStatementName || pg.Code == pgerrcode.DuplicatePreparedStatement {
		return fmt.Errorf("a pooler gives prepared statements to others: open the pool with QueryExecModeCacheDescribe: %w", err)
	}
	return projections.Misfit(err)
}

// noneAsNil leaves flags out where none is set.
func noneAsNil(flags []bool) []bool {
	if slices.Contains(flags, true) {
		return flags
	}
	return nil
}

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// nullable turns the zero value into NULL.
func nullable[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}
