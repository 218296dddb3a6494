package ledgertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger/worker"
	"github.com/jobledger/jobledger/projections"
)

// runTimeout is how long a handler may take until it is told to stop and the test fails.
const runTimeout = time.Minute

// Run is one run of a job, and what became of the job.
type Run struct {
	// Ran has the job's ID, Kind, Attempt and the like as the handler saw them, and in Result and Err what the handler
	// returned, as it was: errors.Is works.
	worker.Ran
	// Event is how the run ended: completed, retried, failed, canceled, snoozed, released or reaped. It is "" where the
	// handler was stopped by the clock of its worker, and the ledger's stands still before that.
	Event domain.EventType
	// Job is the job after the run.
	Job projections.Job
}

// String is the run in one line.
func (r Run) String() string {
	s := fmt.Sprintf("kind %q, attempt %d, args %s: %s", r.Kind, r.Attempt, shorten(string(r.Args), "none"), cmp.Or(r.Event, "still running"))
	if r.Err != nil {
		s += fmt.Sprintf(", returned %q", shorten(r.Err.Error(), ""))
	}
	return s
}

// RunOne runs the next due job of the worker's tags, while the test waits: the one that it would claim first, with
// everything that a run has in production. Nothing due fails the test, and so does a kind that the worker has no handler
// for; what the handler returns does not.
//
// The worker is the application's own, made with worker.New and not run. It may be given again and again.
func (l *Ledger) RunOne(t testing.TB, w *worker.Worker) Run {
	t.Helper()
	run, ok := l.runNext(t, w)
	if !ok {
		t.Fatalf("ledgertest: nothing is due for the worker, which serves the tags %s, at %s\n%s",
			strings.Join(w.Tags(), ", "), l.Now(t).Format(time.RFC3339Nano), list("have", l.Jobs(t)))
	}
	return run
}

// RunDue runs what is due, one job after the other, until nothing is; jobs that were enqueued meanwhile are run too.
// The clock stands where it stands: a retry that is due later waits. With more than one worker, what is due for an
// earlier one goes first.
func (l *Ledger) RunDue(t testing.TB, workers ...*worker.Worker) []Run {
	t.Helper()
	return l.runDue(t, workers, nil)
}

// RunAll runs jobs until the workers have none left: when nothing is due, it moves the clock to the next job that waits,
// be it scheduled, retried or snoozed. The clock stands still from then on.
func (l *Ledger) RunAll(t testing.TB, workers ...*worker.Worker) []Run {
	t.Helper()
	return l.runUntil(t, workers, time.Time{})
}

// RunFor is RunAll for what becomes due within d from now, and leaves the clock there. It serves for jobs that enqueue
// their own next run, which RunAll would run for ever.
func (l *Ledger) RunFor(t testing.TB, d time.Duration, workers ...*worker.Worker) []Run {
	t.Helper()
	end := l.stopClock(t).Add(d)
	runs := l.runUntil(t, workers, end)
	l.SetClock(t, end)
	return runs
}

// runUntil runs what becomes due by end; the zero time is no end.
func (l *Ledger) runUntil(t testing.TB, workers []*worker.Worker, end time.Time) []Run {
	t.Helper()
	l.stopClock(t)
	var runs []Run
	for {
		runs = l.runDue(t, workers, runs)
		next := l.nextDue(t, workers)
		if next.IsZero() || !end.IsZero() && next.After(end) {
			return runs
		}
		l.SetClock(t, next)
	}
}

// runDue appends to runs what it has run.
func (l *Ledger) runDue(t testing.TB, workers []*worker.Worker, runs []Run) []Run {
	t.Helper()
	for i := 0; i < len(workers); {
		run, ok := l.runNext(t, workers[i])
		if !ok {
			i++
			continue
		}
		if runs = append(runs, run); len(runs) == l.maxRuns {
			t.Fatalf("ledgertest: %d runs and no end: does a handler of kind %q enqueue its next run? RunFor ends at a time", l.maxRuns, run.Kind)
		}
		i = 0 // it may have enqueued something for an earlier one
	}
	return runs
}

func (l *Ledger) runNext(t testing.TB, w *worker.Worker) (Run, bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	ran, err := w.RunOne(ctx)
	switch {
	case err != nil && ran != nil:
		t.Fatalf("ledgertest: job %s of kind %q: %v", ran.ID, ran.Kind, err)
	case err != nil:
		t.Fatalf("ledgertest: %v", err)
	case ran == nil:
		return Run{}, false
	case errors.Is(ran.Err, worker.ErrNoHandler):
		t.Fatalf("ledgertest: the worker has no handler for kind %q, of which a job was due (%s)", ran.Kind, ran.ID)
	}
	run := Run{Ran: *ran, Job: l.JobOf(t, ran.ID)}
	for _, e := range l.HistoryOf(t, ran.ID) {
		if info, ok := domain.Lookup(e.Type); ok && e.Generation == ran.Generation && (info.To == domain.Waiting || info.To == domain.Ended) {
			run.Event = e.Type
		}
	}
	return run, true
}

// nextDue is when the next job that the workers wait for is due, or when a lease or time-out ends that one of them has
// left; the zero time if there is none. Jobs of other tags, and held ones, never become due for them.
func (l *Ledger) nextDue(t testing.TB, workers []*worker.Worker) time.Time {
	t.Helper()
	const query = `
SELECT min(at) FROM (
    SELECT q.scheduled_for AS at FROM {schema}.job_queue q
    LEFT JOIN {schema}.tag_state s ON s.tag = q.tag
    WHERE q.held IS NULL AND s.paused_at IS NULL AND q.tag = ANY ($1)
    UNION ALL
    SELECT least(r.lease_until, r.timeout_at) FROM {schema}.job_runtime r WHERE r.worker = ANY ($2)) x
WHERE at > {schema}.clock()`
	var tags, names []string
	for _, w := range workers {
		tags, names = append(tags, w.Tags()...), append(names, w.Name())
	}
	ctx, cancel := step()
	defer cancel()
	var next *time.Time
	text := strings.ReplaceAll(query, "{schema}", pgx.Identifier{l.Schema()}.Sanitize())
	if err := l.Pool.QueryRow(ctx, text, tags, names).Scan(&next); err != nil {
		t.Fatalf("ledgertest: look for the next due job: %v", err)
	}
	if next == nil {
		return time.Time{}
	}
	return next.UTC()
}

// JobOf reads a job with its args, result, error and progress.
func (l *Ledger) JobOf(t testing.TB, id uuid.UUID) projections.Job {
	t.Helper()
	ctx, cancel := step()
	defer cancel()
	job, err := l.Job(ctx, id)
	if err != nil {
		t.Fatalf("ledgertest: %v", err)
	}
	return job
}

// HistoryOf reads the events of a job, in order.
func (l *Ledger) HistoryOf(t testing.TB, id uuid.UUID) []domain.Event {
	t.Helper()
	ctx, cancel := step()
	defer cancel()
	events, err := l.History(ctx, id)
	if err != nil {
		t.Fatalf("ledgertest: %v", err)
	}
	return events
}

// EventsOf reads the types of a job's events, in order.
func (l *Ledger) EventsOf(t testing.TB, id uuid.UUID) []domain.EventType {
	t.Helper()
	var types []domain.EventType
	for _, e := range l.HistoryOf(t, id) {
		types = append(types, e.Type)
	}
	return types
}
