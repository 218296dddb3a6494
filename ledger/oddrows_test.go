package ledger_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/projections"
)

// oddTimes are what Postgres has room for and Go, or JSON, has not.
var oddTimes = []string{"infinity", "-infinity", "294276-12-31 23:59:59.999999+00"}

// timeColumns are where a ledger keeps times.
var timeColumns = map[string][]string{
	"job_queue":     {"scheduled_for", "enqueued_at", "changed_at"},
	"job_runtime":   {"scheduled_for", "enqueued_at", "changed_at", "started_at", "lease_until", "timeout_at", "pinged_at", "progress_at"},
	"job_completed": {"scheduled_for", "enqueued_at", "changed_at", "started_at"},
	"job_event":     {"at", "scheduled_for", "lease_until"},
	"worker":        {"started_at", "seen_at"},
}

// TestOddTimes: a time that no function would have stored, put into any column by hand, is shown as the nearest
// that can be, and costs neither the other rows nor a run.
func TestOddTimes(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	for table, columns := range timeColumns {
		for _, column := range columns {
			for _, at := range oddTimes {
				name := fmt.Sprint(table, ".", column, " ", at)
				odd := oneInEachHome(t, l)
				of := `true`
				if table != "worker" {
					of = `job_id = ANY ($2)`
				}
				must(db.Pool.Exec(ctx, fmt.Sprintf(`UPDATE jobledger.%s SET %s = $1::text::timestamptz WHERE $2::uuid[] IS NOT NULL AND %s`, table, column, of), at, odd))(t)
				readAll(t, l, db, name, odd)
				c, err := l.Claim(ctx, ledger.ClaimParams{Worker: "w", Tags: []string{"odd", "even"}, Max: 10})
				if err != nil || len(c.Jobs) == 0 { // the even one at least
					t.Errorf("%s: claimed %d jobs: %v", name, len(c.Jobs), err)
				}
				for _, j := range c.Jobs {
					if _, err := l.Complete(ctx, "w", ledger.Completion{Held: j.Held}); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
				must(l.Reap(ctx, ledger.ReapParams{Actor: "r"}))(t)
				must(l.CancelMany(ctx, odd, ledger.ByOperator{}))(t)
				must(l.RedriveMany(ctx, odd, ledger.ByOperator{}))(t)
				must(l.Read().Verify(ctx, db.Pool, nil))(t)
				must(db.Pool.Exec(ctx, `TRUNCATE jobledger.job_queue, jobledger.job_runtime, jobledger.job_completed, jobledger.job_event, jobledger.job_payload, jobledger.worker`))(t)
			}
		}
	}
}

// oneInEachHome returns a job that waits, one that runs and one that has ended. Beside them another one waits.
func oneInEachHome(t *testing.T, l *ledger.Ledger) []uuid.UUID {
	t.Helper()
	must(l.Enqueue(t.Context(), ledger.EnqueueParams{Kind: "k", Tag: "even"}))(t)
	ran, ended := running(t, l, "run", time.Hour, 2*time.Hour), running(t, l, "end", time.Hour, 2*time.Hour)
	must(l.Fail(t.Context(), "w", ledger.Failure{Held: ended, Permanent: true}))(t)
	waiting := must(l.Enqueue(t.Context(), ledger.EnqueueParams{Kind: "k", Tag: "odd"}))(t).JobID
	must(0, l.WorkerSeen(t.Context(), ledger.WorkerSeen{Worker: "w", Tags: []string{"odd"}, Host: "h", State: ledger.Working}))(t)
	return []uuid.UUID{waiting, ran.JobID, ended.JobID}
}

// readAll reads everything that there is to read about a ledger, and makes JSON of it.
func readAll(t *testing.T, l *ledger.Ledger, db *pgtest.DB, name string, ids []uuid.UUID) {
	t.Helper()
	ctx, r := t.Context(), l.Read()
	read := func(what string, v any, err error) {
		t.Helper()
		if err == nil {
			_, err = json.Marshal(v)
		}
		if err != nil {
			t.Errorf("%s: %s: %v", name, what, err)
		}
	}
	jobs, err := r.List(ctx, projections.Filter{})
	read("list", jobs, err)
	if len(jobs) != 4 {
		t.Errorf("%s: %d jobs are listed, want 4", name, len(jobs))
	}
	counts, err := r.Counts(ctx)
	read("counts", counts, err)
	workers, err := r.Workers(ctx)
	read("workers", workers, err)
	status, err := r.Status(ctx, db.Pool)
	read("status", status, err)
	for _, id := range ids {
		job, err := r.Job(ctx, id)
		read("job", job, err)
		history, err := r.History(ctx, id)
		read("history", history, err)
		explained, err := r.Explain(ctx, db.Pool, id)
		read("explain", explained, err)
	}
}
