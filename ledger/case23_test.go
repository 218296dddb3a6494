package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// TestCase23_PriorityAtTheEdges: a priority out of range is refused and nothing stored; what is accepted is
// claimed, the highest first.
func TestCase23_PriorityAtTheEdges(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	for _, p := range []int{math.MinInt32, -32769, 32768, math.MaxInt32, math.MaxInt32 + 1, math.MaxInt64, math.MinInt64} {
		_, err := l.Enqueue(ctx, ledger.EnqueueParams{Kind: "k", Priority: p})
		if f, ok := errors.AsType[*domain.FieldError](err); !ok || f.Field != "priority" {
			t.Errorf("%d: Go says %v, want a FieldError of priority", p, err)
		}
		_, err = db.Pool.Exec(ctx, fmt.Sprintf(`SELECT jobledger.enqueue('k', priority => %d)`, p))
		// Beyond 32 bits there is no such function.
		if code := sqlState(err); code != "JL400" && (p >= math.MinInt32 && p <= math.MaxInt32 || code != "42883") {
			t.Errorf("%d: SQL says %v, want JL400", p, err)
		}
	}
	for _, p := range []string{`1.5`, `'1.5'`, `'x'`, `'NaN'::float8`} {
		if _, err := db.Pool.Exec(ctx, `SELECT jobledger.enqueue('k', priority => `+p+`)`); err == nil {
			t.Errorf("%s was taken as a priority", p)
		}
	}
	if n := jobsStored(t, db); n != 0 {
		t.Errorf("%d rows are stored, want none", n)
	}
	for _, p := range []string{`'5'`, `NULL`} { // a literal of SQL; none is the default, 0
		must(db.Pool.Exec(ctx, `SELECT jobledger.enqueue('k', priority => `+p+`)`))(t)
	}
	for _, p := range []int{0, -1, 32767, -32768, 1} {
		must(l.Enqueue(ctx, ledger.EnqueueParams{Kind: "k", Priority: p}))(t)
	}
	var got []int
	for _, c := range must(l.Claim(ctx, ledger.ClaimParams{Worker: "w", Max: 100}))(t).Jobs {
		got = append(got, c.Priority)
	}
	if want := []int{32767, 5, 1, 0, 0, -1, -32768}; !slices.Equal(got, want) {
		t.Errorf("claimed in the order %v, want %v", got, want)
	}
	verified(t, l, db)
}

// TestCase23_OrderUnderManyClaimers: eight claimers empty a queue. Each job is claimed once, each claimer sees
// falling priorities, and of equal ones the older first.
func TestCase23_OrderUnderManyClaimers(t *testing.T) {
	t.Parallel()
	const claimers, n = 8, 1200
	db := pgtest.New(t, pgtest.MaxConns(claimers))
	l := must(ledger.New(db.Pool, ledger.Config{}))(t)
	jobs := make([]ledger.EnqueueParams, n)
	for i := range jobs {
		jobs[i] = ledger.EnqueueParams{Kind: "k", Priority: []int{32767, 1, 0, 0, 0, -1, -32768}[rand.IntN(7)]}
	}
	must(l.EnqueueMany(t.Context(), jobs))(t)
	type taken struct {
		jobs []ledger.Claimed
		err  error
	}
	done := make(chan taken)
	for i := range claimers {
		go func() {
			var mine taken
			for {
				c, err := l.Claim(context.Background(), ledger.ClaimParams{Worker: fmt.Sprint("w", i), Max: 1 + i%4*3})
				mine.jobs, mine.err = append(mine.jobs, c.Jobs...), err
				if err != nil || len(c.Jobs) == 0 && !c.Contended {
					done <- mine
					return
				}
			}
		}()
	}
	seen := map[uuid.UUID]bool{}
	for range claimers {
		mine := <-done
		must(0, mine.err)(t)
		for i, c := range mine.jobs {
			if seen[c.JobID] {
				t.Errorf("job %s was claimed twice", c.JobID)
			}
			seen[c.JobID] = true
			if i > 0 && ordered(c).Before(ordered(mine.jobs[i-1])) {
				t.Errorf("a claimer got %s (priority %d) behind %s (priority %d)", c.JobID, c.Priority, mine.jobs[i-1].JobID, mine.jobs[i-1].Priority)
			}
		}
	}
	if len(seen) != n {
		t.Errorf("%d of %d jobs were claimed", len(seen), n)
	}
	verified(t, l, db)
}

func ordered(c ledger.Claimed) domain.Job {
	return domain.Job{ID: c.JobID, Priority: c.Priority, ScheduledFor: c.ScheduledFor}
}

// TestCase23_ManyFailures: forty failures under the steepest back-off: the delay stops at its cap, nothing
// overflows, and the lowest priority is still claimed.
func TestCase23_ManyFailures(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	db.SetClock(t, zeroHour)
	policy := domain.Policy{MaxAttempts: 41, BackoffBase: 24 * time.Hour, BackoffFactor: 10000, BackoffCap: 720 * time.Hour, BackoffJitter: domain.None}
	must(l.Enqueue(t.Context(), ledger.EnqueueParams{Kind: "k", Priority: domain.MinPriority, Policy: policy}))(t)
	for attempt := 1; attempt <= 40; attempt++ {
		a := must(l.Fail(t.Context(), "w", ledger.Failure{Held: claimOne(t, l, "w", domain.DefaultTag, 0)}))(t)
		if delay := a.ScheduledFor.Sub(a.At); a.Event != domain.Retried || delay > policy.BackoffCap || attempt > 1 && delay != policy.BackoffCap {
			t.Fatalf("attempt %d: %+v, due after %s", attempt, a, delay)
		}
		db.Advance(t, policy.BackoffCap)
	}
	if a := must(l.Fail(t.Context(), "w", ledger.Failure{Held: claimOne(t, l, "w", domain.DefaultTag, 0)}))(t); a.Event != domain.Failed {
		t.Errorf("the last attempt was answered with %+v, want failed", a)
	}
	verified(t, l, db)
}
