package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// ear listens on a ledger's wake channel.
type ear struct {
	*ledger.Listener
	l *ledger.Ledger
}

func listen(t *testing.T, l *ledger.Ledger) ear {
	t.Helper()
	conn := must(l.Listen(t.Context(), ""))(t)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return ear{conn, l}
}

// heard returns what was notified since the last call. A mark behind it tells where it ends.
func (e ear) heard(t *testing.T) (payloads []string) {
	t.Helper()
	must(0, e.l.Notify(t.Context(), "mark"))(t)
	for {
		payload := must(e.Wait(t.Context()))(t)
		if payload == "mark" {
			return payloads
		}
		payloads = append(payloads, payload)
	}
}

// sleeps says that workers sleep on tags and returns their numbers.
func sleeps(t *testing.T, l *ledger.Ledger, tags []string, workers ...string) (numbers []string) {
	t.Helper()
	for _, w := range workers {
		n := must(l.Sleep(t.Context(), ledger.SleepParams{Worker: w, Tags: tags, Lasting: time.Hour}))(t)
		numbers = append(numbers, strconv.Itoa(n))
	}
	return numbers
}

// TestWake: who is told of what.
func TestWake(t *testing.T) {
	t.Parallel()
	t.Run("what_becomes_due", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		e, ctx := listen(t, l), t.Context()
		enqueue := func(p ledger.EnqueueParams) func() {
			p.Kind = "x"
			return func() { must(l.Enqueue(ctx, p))(t) }
		}
		enqueue(ledger.EnqueueParams{})()
		if got := e.heard(t); got != nil {
			t.Fatalf("nobody sleeps and %q was notified", got)
		}
		number := sleeps(t, l, []string{"default", "mail"}, "w1")
		held := func(n int) []ledger.Held {
			var held []ledger.Held
			for _, c := range must(l.Claim(ctx, ledger.ClaimParams{Worker: "w2", Max: n}))(t).Jobs {
				held = append(held, c.Held)
			}
			return held
		}
		var dead uuid.UUID
		for _, c := range []struct {
			what string
			do   func()
			want []string
		}{
			{"a job that is due now", enqueue(ledger.EnqueueParams{}), number},
			{"on another of its tags", enqueue(ledger.EnqueueParams{Tag: "mail"}), number},
			{"on another tag", enqueue(ledger.EnqueueParams{Tag: "other"}), nil},
			{"a job that was due yesterday", enqueue(ledger.EnqueueParams{ScheduledFor: time.Now().Add(-24 * time.Hour)}), number},
			{"a job for tomorrow", enqueue(ledger.EnqueueParams{ScheduledFor: time.Now().Add(24 * time.Hour)}), nil},
			{"a job for later", enqueue(ledger.EnqueueParams{Delay: time.Hour}), nil},
			{"a job with a key", enqueue(ledger.EnqueueParams{Key: "k"}), number},
			{"its replay", enqueue(ledger.EnqueueParams{Key: "k"}), nil},
			{"a call from SQL", func() { must(db.Pool.Exec(ctx, `SELECT jobledger.enqueue('x')`))(t) }, number},
			{"many, one of them elsewhere", func() {
				must(l.EnqueueMany(ctx, []ledger.EnqueueParams{{Kind: "x"}, {Kind: "x", Tag: "other"}, {Kind: "x", Tag: "mail"}}))(t)
			}, number},
			{"a claim", func() { must(l.Claim(ctx, ledger.ClaimParams{Worker: "w2"}))(t) }, nil},
			{"a release", func() { must(l.Release(ctx, "w2", held(1)...))(t) }, number},
			{"a snooze without a delay", func() { must(l.Snooze(ctx, "w2", ledger.Snooze{Held: held(1)[0]}))(t) }, number},
			{"a snooze", func() { must(l.Snooze(ctx, "w2", ledger.Snooze{Held: held(1)[0], Delay: time.Hour}))(t) }, nil},
			{"a retry without a delay", func() {
				now := time.Duration(0)
				must(l.Fail(ctx, "w2", ledger.Failure{Held: held(1)[0], After: &now}))(t)
			}, number},
			{"a retry", func() { must(l.Fail(ctx, "w2", ledger.Failure{Held: held(1)[0]}))(t) }, nil},
			{"a dead letter", func() {
				h := held(1)[0]
				dead = h.JobID
				must(l.Fail(ctx, "w2", ledger.Failure{Held: h, Permanent: true}))(t)
			}, nil},
			{"its redrive", func() { must(l.Redrive(ctx, dead, ledger.ByOperator{}))(t) }, number},
			{"a completion", func() { must(l.Complete(ctx, "w2", ledger.Completion{Held: held(1)[0]}))(t) }, nil},
			{"a reaper that finds nothing", func() { must(l.Reap(ctx, ledger.ReapParams{Actor: "r"}))(t) }, nil},
			{"one that takes a job back", func() {
				h := held(1)[0]
				must(db.Pool.Exec(ctx, `UPDATE jobledger.job_runtime SET lease_until = now() WHERE job_id = $1`, h.JobID))(t)
				must(l.Reap(ctx, ledger.ReapParams{Actor: "r"}))(t)
			}, number},
			{"a cancel", func() {
				must(l.Cancel(ctx, must(l.Enqueue(ctx, ledger.EnqueueParams{Kind: "x", Tag: "other"}))(t).JobID, ledger.ByOperator{}))(t)
			}, nil},
			{"a transaction that is rolled back", func() {
				tx := must(db.Pool.Begin(ctx))(t)
				must(l.EnqueueTx(ctx, tx, ledger.EnqueueParams{Kind: "x"}))(t)
				must(0, tx.Rollback(ctx))(t)
			}, nil},
			{"a transaction that must not notify", func() {
				tx := must(db.Pool.Begin(ctx))(t)
				must(tx.Exec(ctx, `SET LOCAL jobledger.wake = off`))(t)
				must(l.EnqueueTx(ctx, tx, ledger.EnqueueParams{Kind: "x"}))(t)
				must(0, tx.Commit(ctx))(t)
			}, nil},
			{"everybody", func() { must(0, l.Notify(ctx, ""))(t) }, []string{""}},
			{"a worker that got up", func() {
				must(l.Sleep(ctx, ledger.SleepParams{Worker: "w1", Tags: []string{"default"}}))(t)
				enqueue(ledger.EnqueueParams{})()
			}, nil},
			{"one that left asleep", func() {
				sleeps(t, l, []string{"default"}, "w1")
				must(0, l.WorkerGone(ctx, "w1"))(t)
				enqueue(ledger.EnqueueParams{})()
			}, nil},
			{"one that died asleep", func() {
				sleeps(t, l, []string{"default"}, "w1")
				must(db.Pool.Exec(ctx, `UPDATE jobledger.sleeper SET until = now()`))(t)
				enqueue(ledger.EnqueueParams{})()
			}, nil},
			{"one that watches", func() {
				sleeps(t, l, []string{"default"}, "w1", "w2")
				must(l.Sleep(ctx, ledger.SleepParams{Worker: "w2", Tags: []string{"default"}, Lasting: time.Hour, Watching: true}))(t)
				enqueue(ledger.EnqueueParams{})()
			}, nil},
			{"one that watches another tag", func() {
				must(l.Sleep(ctx, ledger.SleepParams{Worker: "w2", Tags: []string{"other"}, Lasting: time.Hour, Watching: true}))(t)
				enqueue(ledger.EnqueueParams{})()
			}, number},
		} {
			c.do()
			if got := e.heard(t); !slices.Equal(got, c.want) {
				t.Errorf("%s: %q was notified, want %q", c.what, got, c.want)
			}
		}
		if n := must(l.Read().Counts(ctx))(t); len(n) == 0 {
			t.Error("there are no jobs")
		}
	})

	t.Run("few_of_many", func(t *testing.T) {
		t.Parallel()
		l, _ := newLedger(t)
		e, ctx := listen(t, l), t.Context()
		var workers []string
		for i := range 50 {
			workers = append(workers, fmt.Sprintf("w%d", i))
		}
		numbers := sleeps(t, l, []string{"default", "other"}, workers...)
		for _, c := range []struct{ jobs, want int }{{1, 2}, {5, 6}, {31, 32}, {32, 0}, {5000, 0}} {
			jobs := make([]ledger.EnqueueParams, c.jobs)
			for i := range jobs {
				jobs[i].Kind = "x"
			}
			must(l.EnqueueMany(ctx, jobs))(t)
			got := e.heard(t)
			if len(got) != 1 || c.want == 0 && got[0] != "" {
				t.Errorf("%d jobs: %q was notified", c.jobs, got)
			}
			named := strings.Split(got[0], ",")
			if slices.Sort(named); c.want > 0 && len(slices.Compact(named)) != c.want {
				t.Errorf("%d jobs: %d workers were named, want %d", c.jobs, len(named), c.want)
			}
			for _, n := range named {
				if n != "" && !slices.Contains(numbers, n) {
					t.Errorf("%q is nobody's number", n)
				}
			}
		}
	})

	t.Run("waits_for_nobody", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		e, ctx := listen(t, l), t.Context()
		number := sleeps(t, l, []string{"default"}, "w1")
		conn := db.Connect(t)
		must(conn.Exec(ctx, `BEGIN; SELECT FROM jobledger.sleeper FOR UPDATE`))(t)
		must(l.Enqueue(ctx, ledger.EnqueueParams{Kind: "x"}))(t)
		if got := e.heard(t); !slices.Equal(got, number) {
			t.Errorf("%q was notified, want %q", got, number)
		}
	})

	t.Run("the_dead_are_forgotten", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		sleeps(t, l, []string{"default"}, "dead", "w1")
		must(db.Pool.Exec(t.Context(), `UPDATE jobledger.sleeper SET until = now() - interval '2 minutes' WHERE worker = 'dead'`))(t)
		sleeps(t, l, []string{"default"}, "w1")
		var left []string
		must(0, db.Pool.QueryRow(t.Context(), `SELECT array_agg(worker) FROM jobledger.sleeper`).Scan(&left))(t)
		if !slices.Equal(left, []string{"w1"}) {
			t.Errorf("%q are left", left)
		}
	})

	t.Run("refuses", func(t *testing.T) {
		t.Parallel()
		l, _ := newLedger(t)
		for field, p := range map[string]ledger.SleepParams{
			"worker":  {Tags: []string{"default"}},
			"tags":    {Worker: "w", Tags: []string{"no spaces"}},
			"lasting": {Worker: "w", Tags: []string{"default"}, Lasting: time.Hour + time.Microsecond},
		} {
			var f *domain.FieldError
			if _, err := l.Sleep(t.Context(), p); !errors.As(err, &f) || f.Field != field {
				t.Errorf("%s: got %v", field, err)
			}
		}
		var f *domain.FieldError
		if _, err := l.Sleep(t.Context(), ledger.SleepParams{Worker: "w"}); !errors.As(err, &f) || f.Field != "tags" {
			t.Errorf("no tags: got %v", err)
		}
	})
}
