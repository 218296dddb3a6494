package ledgertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/ledgertest"
	"github.com/jobledger/jobledger/ledger/worker"
)

var (
	start   = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	errTest = errors.New("printer on fire")
)

// exact is a policy whose retries come after exactly 1, 2, 4, ... s.
var exact = domain.Policy{BackoffJitter: domain.None}

// told is what runs tell, a line each: kind, how long after the start, how it ended.
func told(l *ledgertest.Ledger, t *testing.T, runs []ledgertest.Run) string {
	t.Helper()
	var lines []string
	for _, r := range runs {
		line := fmt.Sprintf("%s %s %s", r.Kind, r.StartedAt.Sub(start), r.Event)
		if r.Err != nil {
			line += " " + r.Err.Error()
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func TestRunOne(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t)
	w := newWorker(t, l, quiet())
	worker.Handle(w, "print", func(_ context.Context, job worker.Job[int]) (int, error) {
		if job.Attempt == 1 {
			return 0, fmt.Errorf("page %d: %w", job.Args, errTest)
		}
		return 2 * job.Args, nil
	})
	id := enqueue(t, l, ledger.EnqueueParams{Kind: "print", Args: 21, Policy: exact})[0].JobID
	run := l.RunOne(t, w)
	if run.ID != id || !errors.Is(run.Err, errTest) || run.Event != domain.Retried || run.Job.State != domain.Waiting || run.Job.Error != "page 21: printer on fire" {
		t.Errorf("the first run is %+v", run)
	}
	if late := failure(t, func(t testing.TB) { l.Advance(t, 0); l.RunOne(t, w) }); !strings.Contains(late, "nothing is due") {
		t.Errorf("the retry ran before its time: %q", late)
	}
	if got := fmt.Sprint(run); got != `kind "print", attempt 1, args 21: retried, returned "page 21: printer on fire"` {
		t.Errorf("in words it is %s", got)
	}
	l.Advance(t, time.Second)
	run = l.RunOne(t, w)
	if run.ID != id || run.Err != nil || run.Event != domain.Completed || run.Attempt != 2 || run.Result != 42 || string(run.Job.Result) != "42" {
		t.Errorf("the second run is %+v", run)
	}
	want := []domain.EventType{domain.Enqueued, domain.Claimed, domain.Retried, domain.Claimed, domain.Completed}
	if got := l.EventsOf(t, id); !slices.Equal(got, want) {
		t.Errorf("events are %v", got)
	}
}

// TestRunDue: in the order of claims, with what the jobs enqueue, at the clock's standstill.
func TestRunDue(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t)
	l.SetClock(t, start)
	one, two := newWorker(t, l, quiet("one")), newWorker(t, l, quiet("two"))
	var order []string
	for _, w := range []*worker.Worker{one, two} {
		worker.Handle(w, "k", func(ctx context.Context, job worker.Job[string]) (struct{}, error) {
			order = append(order, job.Args)
			if job.Args == "b" {
				for tag, args := range map[string]string{"one": `"b1"`, "two": `"b2"`} {
					if _, err := l.Enqueue(ctx, ledger.EnqueueParams{Kind: "k", Tag: tag, Args: args}); err != nil {
						return struct{}{}, err
					}
				}
			}
			if job.Args == "c" {
				return struct{}{}, errTest
			}
			return struct{}{}, nil
		})
	}
	enqueue(t, l, ledger.EnqueueParams{Kind: "k", Tag: "one", Args: `"c"`, Priority: -1}, ledger.EnqueueParams{Kind: "k", Tag: "one", Args: `"a"`, Priority: 9},
		ledger.EnqueueParams{Kind: "k", Tag: "two", Args: `"b"`}, ledger.EnqueueParams{Kind: "k", Tag: "one", Args: `"later"`, Delay: time.Hour})
	runs := l.RunDue(t, one, two)
	if got := strings.Join(order, " "); got != "a c b b1 b2" || len(runs) != 5 {
		t.Errorf("ran %s (%d runs)", got, len(runs))
	}
	l.RequireEnqueued(t, ledgertest.Want{Args: `"later"`, State: domain.Waiting})
	l.RequireEnqueued(t, ledgertest.Want{Args: `"c"`, State: domain.Waiting})
	if runs := l.RunDue(t, one, two); len(runs) > 0 {
		t.Errorf("ran %v with nothing due", runs)
	}
}

// TestRunAll: retries, snoozes and scheduled jobs run each at its own time, which is no time at all.
func TestRunAll(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t)
	l.SetClock(t, start)
	w := newWorker(t, l, quiet())
	worker.Handle(w, "fails_thrice", func(_ context.Context, job worker.Job[struct{}]) (struct{}, error) {
		if job.Attempt < 4 {
			return struct{}{}, errTest
		}
		return struct{}{}, nil
	})
	worker.Handle(w, "fails", func(context.Context, worker.Job[struct{}]) (struct{}, error) { return struct{}{}, errTest })
	worker.Handle(w, "snoozes", func(_ context.Context, job worker.Job[struct{}]) (struct{}, error) {
		if job.Generation < 3 {
			return struct{}{}, worker.Snooze(time.Hour, "too early")
		}
		return struct{}{}, nil
	})
	handle(w, "scheduled")
	enqueue(t, l,
		ledger.EnqueueParams{Kind: "fails_thrice", Priority: 2, Policy: exact},
		ledger.EnqueueParams{Kind: "fails", Priority: 1, Policy: domain.Policy{MaxAttempts: 2, BackoffBase: 10 * time.Second, BackoffJitter: domain.None}},
		ledger.EnqueueParams{Kind: "snoozes"},
		ledger.EnqueueParams{Kind: "scheduled", ScheduledFor: start.AddDate(1, 0, 0)},
		ledger.EnqueueParams{Kind: "of_others", Tag: "others", Delay: time.Minute})
	const want = `fails_thrice 0s retried printer on fire
fails 0s retried printer on fire
snoozes 0s snoozed snoozed for 1h0m0s: too early
fails_thrice 1s retried printer on fire
fails_thrice 3s retried printer on fire
fails_thrice 7s completed
fails 10s failed printer on fire
snoozes 1h0m0s snoozed snoozed for 1h0m0s: too early
snoozes 2h0m0s completed
scheduled 8760h0m0s completed`
	if got := told(l, t, l.RunAll(t, w)); got != want {
		t.Errorf("ran\n%s\nwant\n%s", got, want)
	}
	l.RequireEnqueued(t, ledgertest.Want{State: domain.Waiting}) // the one of others
}

// TestRunFor: a job that enqueues its next run runs as often as it would in that time.
func TestRunFor(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, ledgertest.Config{MaxRuns: 40})
	l.SetClock(t, start)
	w := newWorker(t, l, quiet())
	delay := time.Hour
	worker.Handle(w, "tick", func(ctx context.Context, job worker.Job[struct{}]) (struct{}, error) {
		_, err := l.Enqueue(ctx, ledger.EnqueueParams{Kind: "tick", ScheduledFor: job.ScheduledFor.Add(delay)})
		return struct{}{}, err
	})
	enqueue(t, l, ledger.EnqueueParams{Kind: "tick", Delay: time.Minute})
	if runs := l.RunFor(t, 24*time.Hour, w); len(runs) != 24 {
		t.Errorf("in a day it ran %d times", len(runs))
	}
	if now := l.Now(t); !now.Equal(start.Add(24 * time.Hour)) {
		t.Errorf("it is %s", now)
	}
	if runs := l.RunFor(t, time.Minute, w); len(runs) != 1 {
		t.Errorf("at the very end of the time it ran %d times, want once", len(runs))
	}
	delay = 0
	l.Advance(t, time.Hour)
	if message := failure(t, func(t testing.TB) { l.RunDue(t, w) }); !strings.Contains(message, `40 runs and no end: does a handler of kind "tick"`) {
		t.Errorf("of an endless job: %q", message)
	}
}

// TestRunsThatDoNotReturn: cancellation and the worker's own time-out reach a handler, and the run tells how it ended.
func TestRunsThatDoNotReturn(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t)
	cfg := quiet()
	cfg.PingEvery = 10 * time.Millisecond
	w := newWorker(t, l, cfg)
	worker.Handle(w, "wait", func(ctx context.Context, job worker.Job[json.RawMessage]) (struct{}, error) {
		if string(job.Args) == `"cancel"` {
			if _, err := l.Cancel(ctx, job.ID, ledger.ByOperator{}); err != nil {
				return struct{}{}, err
			}
		}
		<-ctx.Done()
		return struct{}{}, context.Cause(ctx)
	})
	enqueue(t, l, ledger.EnqueueParams{Kind: "wait", Args: `"cancel"`})
	if run := l.RunOne(t, w); run.Event != domain.CanceledEvent || !errors.Is(run.Err, worker.ErrCanceled) || run.Job.Outcome != domain.Canceled {
		t.Errorf("a canceled run: %+v", run)
	}
	l.SetClock(t, start)
	job := ledger.EnqueueParams{Kind: "wait", Policy: domain.Policy{Timeout: time.Second, MaxAttempts: 1}}
	enqueue(t, l, job)
	if run := l.RunOne(t, w); run.Event != "" || !errors.Is(run.Err, worker.ErrTimedOut) || run.Job.State != domain.Running {
		t.Errorf("a run that timed out while the ledger's clock stands still: %+v", run)
	}
	// RunAll moves the clock to where the ledger agrees.
	if runs := l.RunAll(t, w); len(runs) != 0 || !l.Now(t).Equal(start.Add(time.Second)) {
		t.Errorf("ran %v until %s", runs, l.Now(t))
	}
	l.RequireEnqueued(t, ledgertest.Want{Outcome: domain.Failure})
}
