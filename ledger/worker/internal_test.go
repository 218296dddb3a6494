package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// idle returns a worker that talks to no database.
func idle(t *testing.T, cfg Config) *Worker {
	t.Helper()
	l, err := ledger.New(nil, ledger.Config{})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Logger = slog.New(slog.DiscardHandler)
	w, err := New(l, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// running admits a lease and gives it a handler's context.
func running(w *Worker, lasts time.Duration, sent time.Time) (*lease, context.Context) {
	w.admit(ledger.Claimed{Held: ledger.Held{JobID: uuid.New(), Generation: 1}, Lease: lasts}, sent)
	ctx, cancel := context.WithCancelCause(context.Background())
	w.mu.Lock()
	defer w.mu.Unlock()
	var l *lease
	for l = range w.leases { // the only one; it has left w.ready where its end was over on arrival
	}
	w.ready = nil
	l.cancel = cancel
	if l.cause != nil {
		cancel(l.cause)
	}
	return l, ctx
}

// TestLease: a worker that hears nothing stops its handlers a margin before the lease ends, counted
// from before the statement that gave or extended it was sent.
func TestLease(t *testing.T) {
	cfg := Config{Lease: time.Minute, Margin: 10 * time.Second}
	// after waits for d from the start of the bubble.
	after := func(start time.Time, d time.Duration) { <-time.After(time.Until(start.Add(d))) }

	for _, c := range []struct {
		name  string
		lease time.Duration
		ping  func(w *Worker, l *lease, start time.Time)
		want  time.Duration // from when the claim was sent; 0 for never
		cause error
	}{
		{name: "never_pinged", lease: time.Minute, want: 50 * time.Second, cause: ErrLeaseLost},
		{name: "pinged", lease: time.Minute, want: 80 * time.Second, cause: ErrLeaseLost, ping: func(w *Worker, l *lease, start time.Time) {
			after(start, 35*time.Second) // the answer took five
			w.heard(l, ledger.Answer{}, start.Add(30*time.Second), nil)
		}},
		{name: "busy", lease: time.Minute, want: 50 * time.Second, cause: ErrLeaseLost, ping: func(w *Worker, l *lease, start time.Time) {
			after(start, 30*time.Second)
			w.heard(l, ledger.Answer{Err: domain.ErrBusy}, start.Add(30*time.Second), nil)
		}},
		{name: "canceled_goes_on_to_be_pinged", lease: time.Minute, want: 30 * time.Second, cause: ErrCanceled, ping: func(w *Worker, l *lease, start time.Time) {
			after(start, 30*time.Second)
			w.heard(l, ledger.Answer{CancelRequested: true}, start.Add(30*time.Second), nil)
			if l.lost {
				t.Error("a canceled job counts as lost")
			}
		}},
		{name: "fenced", lease: time.Minute, want: 20 * time.Second, cause: ErrLeaseLost, ping: func(w *Worker, l *lease, start time.Time) {
			after(start, 20*time.Second)
			w.heard(l, ledger.Answer{Err: domain.ErrFenced}, start.Add(20*time.Second), nil)
		}},
		{name: "timed_out", lease: time.Minute, want: 20 * time.Second, cause: ErrTimedOut, ping: func(w *Worker, l *lease, start time.Time) {
			after(start, 20*time.Second)
			w.heard(l, ledger.Answer{Err: domain.ErrTimedOut}, start.Add(20*time.Second), nil)
		}},
		{name: "claimed_too_late", lease: 2 * time.Second, want: 3 * time.Second, cause: ErrLeaseLost},
		{name: "no_lease_to_lose"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, start := idle(t, cfg), time.Now()
				after(start, 3*time.Second) // the answer of the claim took three
				l, ctx := running(w, c.lease, start)
				if c.ping != nil {
					c.ping(w, l, start)
				}
				select {
				case <-ctx.Done():
					if got := time.Since(start); got != c.want || context.Cause(ctx) != c.cause {
						t.Errorf("told to stop after %s: %v, want %s: %v", got, context.Cause(ctx), c.want, c.cause)
					}
				case <-time.After(100 * time.Hour):
					if c.want != 0 {
						t.Errorf("never told to stop, want %s", c.want)
					}
				}
				w.settle(l)
				if l.end != nil && l.end.Stop() {
					t.Error("the timer outlives the lease")
				}
			})
		})
	}
}

// TestJudge: what is reported of a run, by what the handler returned and why it was told to stop.
func TestJudge(t *testing.T) {
	plain := errors.New("x")
	for _, c := range []struct {
		name  string
		cause error
		lost  bool
		err   error
		want  domain.Verb // "" for nothing
	}{
		{"success", nil, false, nil, domain.VerbComplete},
		{"success_after_cancel", ErrCanceled, false, nil, domain.VerbComplete},
		{"success_after_the_lease_was_lost", ErrLeaseLost, true, nil, domain.VerbComplete},
		{"success_after_the_time_out", ErrTimedOut, false, nil, domain.VerbComplete},
		{"error", nil, false, plain, domain.VerbFail},
		{"error_after_cancel", ErrCanceled, false, plain, domain.VerbFail},
		{"error_after_stop", ErrStopping, false, plain, domain.VerbRelease},
		{"error_when_cut_off", ErrLeaseLost, false, plain, domain.VerbRelease},
		{"error_when_fenced", ErrLeaseLost, true, plain, ""},
		{"error_after_the_time_out", ErrTimedOut, false, plain, ""},
		{"error_after_kill", ErrKilled, false, plain, ""},
		{"permanent_after_stop", ErrStopping, false, Permanent(plain), domain.VerbFail},
		{"permanent_after_the_time_out", ErrTimedOut, false, Permanent(plain), ""},
		{"panic_after_stop", ErrStopping, false, &panicError{}, domain.VerbFail},
		{"snooze_after_stop", ErrStopping, false, Snooze(0, ""), domain.VerbSnooze},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := idle(t, Config{})
			l, ctx := running(w, 0, time.Now())
			l.lost = c.lost
			if c.cause != nil {
				w.interrupt(l, c.cause)
			}
			var got domain.Verb
			if o := w.judge(ctx, l, nil, c.err); o != nil {
				got = o.verb
			}
			if got != c.want {
				t.Errorf("reported as %q, want %q", got, c.want)
			}
			l.cancel(nil)
		})
	}
}

func TestNoHandlerDelay(t *testing.T) {
	enqueued := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name       string
		generation int
		age, want  time.Duration
	}{
		{"fresh", 1, 0, time.Second},
		{"second_round", 2, time.Hour, 2 * time.Second},
		{"retried_often_before", 20, 8 * time.Second, 4 * time.Second},
		{"scheduled_long_ago", 1, 1000 * time.Hour, time.Second},
		{"bounded", 1000, 1000 * time.Hour, time.Minute},
	} {
		job := ledger.Claimed{Held: ledger.Held{Generation: c.generation}, EnqueuedAt: enqueued, StartedAt: enqueued.Add(c.age)}
		if got := noHandlerDelay(job); got != c.want {
			t.Errorf("%s: put off by %s, want %s", c.name, got, c.want)
		}
	}
}

func TestRoom(t *testing.T) {
	for _, c := range []struct{ running, ready, reported, want int }{
		{0, 0, 0, 12}, {10, 2, 0, 0}, {10, 0, 0, 2}, {4, 0, 11, 1}, {0, 0, 12, 0}, {3, 0, 20, 0},
	} {
		w := idle(t, Config{Concurrency: 10, Prefetch: 2})
		w.running, w.ready, w.reported = c.running, make([]*lease, c.ready), c.reported
		if got := w.room(); got != c.want {
			t.Errorf("%+v: room for %d", c, got)
		}
	}
}

// TestBatches: what gathers in a lane is one batch, up to a number of jobs and bytes.
func TestBatches(t *testing.T) {
	mib := json.RawMessage(strings.Repeat("1", 1<<20))
	for _, c := range []struct {
		name   string
		n      int
		result json.RawMessage
		want   []int
	}{
		{"few", 3, nil, []int{3}},
		{"many", 2*batchMost + 1, nil, []int{batchMost, batchMost, 1}},
		{"large", 10, mib, []int{8, 2}},
	} {
		w := idle(t, Config{})
		for range c.n {
			w.enqueue(&lease{outcome: &outcome{verb: domain.VerbComplete, result: c.result}})
		}
		var got []int
		for b := w.take(w.lanes[domain.VerbComplete]); b != nil; b = w.take(w.lanes[domain.VerbComplete]) {
			got = append(got, len(b))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: batches of %v, want %v", c.name, got, c.want)
		}
	}
}

func TestOneLine(t *testing.T) {
	for in, want := range map[string]string{
		"a\nb\x00c\x7f": "a b c ", "\xff": " ", strings.Repeat("ü", 6): strings.Repeat("ü", 5), "": "",
	} {
		if got := oneLine(in, 11); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

// TestOutageIsToldInFewLines: one line when the first thing stops working, one every ten seconds while anything
// does not, one at the end; and no more than two in ten seconds where trouble comes and goes.
func TestOutageIsToldInFewLines(t *testing.T) {
	const stopped, works = "does not do what it is asked", "works again"
	told := func(b *bytes.Buffer, what string) int { return strings.Count(b.String(), what) }

	t.Run("lasts", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var b bytes.Buffer
			o := newOutages(slog.New(slog.NewTextHandler(&b, nil)))
			o.over(t.Context(), doesClaim) // nothing to tell
			for range 25 {
				o.failed(t.Context(), doesClaim, errors.New("refused"))
				o.failed(t.Context(), doesPing, errors.New("refused"))
				<-time.After(time.Second)
			}
			o.over(t.Context(), doesClaim)
			if told(&b, works) != 0 || o.of(doesClaim) != nil || o.of(doesClaim, doesPing) == nil {
				t.Errorf("one thing works again, and the other: %v\n%s", o.of(doesClaim, doesPing), b.String())
			}
			o.over(t.Context(), doesPing)
			o.over(t.Context(), doesPing)
			if told(&b, stopped) != 3 || told(&b, works) != 1 || !strings.Contains(b.String(), `what="claim, ping"`) || !strings.Contains(b.String(), "errors=50 after=25s") {
				t.Errorf("25 seconds are told as\n%s", b.String())
			}
		})
	})
	t.Run("comes_and_goes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var b bytes.Buffer
			o := newOutages(slog.New(slog.NewTextHandler(&b, nil)))
			for range 600 {
				o.failed(t.Context(), doesClaim, errors.New("refused"))
				<-time.After(50 * time.Millisecond)
				o.over(t.Context(), doesClaim)
				<-time.After(50 * time.Millisecond)
			}
			if n := told(&b, "\n"); n < 2 || n > 12 {
				t.Errorf("a minute is told in %d lines:\n%s", n, b.String())
			}
			if o.counted() != 600 {
				t.Errorf("counted %d", o.counted())
			}
		})
	})
	t.Run("stop", func(t *testing.T) {
		var b bytes.Buffer
		o := newOutages(slog.New(slog.NewTextHandler(&b, nil)))
		stopped, cancel := context.WithCancel(t.Context())
		cancel()
		o.failed(stopped, doesClaim, context.Canceled)
		if b.Len() > 0 {
			t.Errorf("a stop was told as %s", b.String())
		}
	})
}

// TestManyJobsAreToldInFewLines: a worker does not flood the log when all its jobs have the same trouble.
func TestManyJobsAreToldInFewLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		w := idle(t, Config{})
		w.log = slog.New(slog.NewTextHandler(&b, nil))
		for range tellMost + 7 {
			w.tell(slog.LevelWarn, "lost", &lease{})
		}
		if got := strings.Count(b.String(), "msg=lost"); got != tellMost {
			t.Errorf("told of %d jobs, want %d", got, tellMost)
		}
		<-time.After(tellEvery)
		b.Reset()
		w.tell(slog.LevelWarn, "lost", &lease{})
		if !strings.Contains(b.String(), "lines_left_out_before=7") {
			t.Errorf("told %s", b.String())
		}
	})
}

// TestConfig: what New refuses, naming the option.
func TestConfig(t *testing.T) {
	l, err := ledger.New(nil, ledger.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for field, cfg := range map[string]Config{
		"name":         {Name: "a\nb"},
		"tags":         {Tags: []string{"a", "b c"}},
		"lease":        {Lease: time.Millisecond},
		"concurrency":  {Concurrency: MaxConcurrency + 1},
		"prefetch":     {Prefetch: -1},
		"margin":       {Margin: 31 * time.Second},
		"ping_every":   {PingEvery: 26 * time.Second},
		"poll":         {Poll: -1},
		"reap_every":   {ReapEvery: 2 * time.Hour},
		"stop_timeout": {StopTimeout: -1},
		"stop_grace":   {StopGrace: -1},
	} {
		var f *domain.FieldError
		if _, err := New(l, cfg); !errors.As(err, &f) || f.Field != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
	a, b := idle(t, Config{}), idle(t, Config{})
	if a.Name() == b.Name() {
		t.Errorf("two workers have the name %s", a.Name())
	}
	if name := defaultName(strings.Repeat("h\n", 300)); domain.CheckText("name", name, domain.MaxActorBytes) != nil {
		t.Errorf("a long host name gives %q", name)
	}
}
