package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// newLedger returns a fresh ledger on a database of its own.
func newLedger(t testing.TB) (*ledger.Ledger, *pgtest.DB) {
	t.Helper()
	db := pgtest.New(t)
	l, err := ledger.New(db.Pool, ledger.Config{Actor: "tester"})
	if err != nil {
		t.Fatal(err)
	}
	return l, db
}

// must returns v or ends the test.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// verified ends the test with a failure if the ledger is not whole.
func verified(t testing.TB, l *ledger.Ledger, db *pgtest.DB) {
	t.Helper()
	v, err := l.Read().Verify(context.Background(), db.Pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range v.Findings {
		t.Errorf("verify: job %s version %d %s", f.JobID, f.Version, f.Problem)
	}
}

func TestLife(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := context.Background()
	id := must(l.Enqueue(ctx, ledger.EnqueueParams{Kind: "email", Args: map[string]any{"to": "a@example.org"}, Labels: map[string]string{"team": "x"}}))(t).JobID

	claims := must(l.Claim(ctx, ledger.ClaimParams{Worker: "w1"}))(t)
	if len(claims.Jobs) != 1 || claims.Jobs[0].JobID != id || string(claims.Jobs[0].Args) != `{"to":"a@example.org"}` {
		t.Fatalf("claimed %+v, want the job", claims)
	}
	held := claims.Jobs[0].Held
	if claims.Jobs[0].Lease != time.Minute || claims.Jobs[0].Facts.Labels["team"] != "x" {
		t.Fatalf("claimed %+v, want the default lease and the label", claims.Jobs[0])
	}
	pings := must(l.Ping(ctx, ledger.PingParams{Worker: "w1", Pings: []ledger.Ping{{Held: held, Progress: map[string]int{"done": 3}}}}))(t)
	if pings[0].Err != nil || pings[0].Event != domain.Pinged {
		t.Fatalf("ping answered %+v", pings[0])
	}
	done := must(l.Complete(ctx, "w1", ledger.Completion{Held: held, Result: "not json \x00"}))(t)
	if done.Event != domain.Completed || done.Outcome != domain.Success {
		t.Fatalf("complete answered %+v", done)
	}
	if again := must(l.Complete(ctx, "w1", ledger.Completion{Held: held, Result: "not json \x00"}))(t); !again.Repeated || again.Version != done.Version {
		t.Fatalf("repeated complete answered %+v, want the first answer", again)
	}
	if _, err := l.Complete(ctx, "w1", ledger.Completion{Held: held, Result: 1}); !errors.Is(err, domain.ErrEnded) {
		t.Fatalf("another result was answered with %v, want ErrEnded", err)
	}
	job := must(l.Wait(ctx, id))(t)
	if string(job.Result) != `"not json �"` || string(job.Progress) != `{"done":3}` {
		t.Fatalf("job has result %s and progress %s", job.Result, job.Progress)
	}
	if events := must(l.History(ctx, id))(t); len(events) != 5 || events[4].Type != domain.Rejected {
		t.Fatalf("history has %d events, want 5 with a rejected one at the end: %+v", len(events), events)
	}
	verified(t, l, db)
}

// TestResultSubstitutes: a job reaches its end whatever its result is, and JSON stays JSON.
func TestResultSubstitutes(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := context.Background()
	for name, c := range map[string]struct {
		result any
		want   string
	}{
		"nul in a string":       {map[string]string{"a": "x\x00y"}, `{"a":"x\ufffdy"}`},
		"lone surrogate":        {json.RawMessage(`["\ud800", "\ud83d\ude00"]`), `["\ufffd", "\ud83d\ude00"]`},
		"literal backslash u":   {json.RawMessage(`"\\u0000"`), `"\\u0000"`},
		"digits":                {json.RawMessage(`[1e400, 1.10, -0]`), `[1e400, 1.10, -0]`},
		"no json":               {"a\x00b", `"a` + "\uFFFD" + `b"`},
		"no utf-8":              {[]byte("a\xffb"), `"a` + "\uFFFD" + `b"`},
		"what does not marshal": {math.Inf(1), `"+Inf"`},
	} {
		id := must(l.Enqueue(ctx, ledger.EnqueueParams{Kind: "k"}))(t).JobID
		held := must(l.Claim(ctx, ledger.ClaimParams{Worker: "w"}))(t).Jobs[0].Held
		must(l.Complete(ctx, "w", ledger.Completion{Held: held, Result: c.result}))(t)
		if got := must(l.Job(ctx, id))(t); string(got.Result) != c.want {
			t.Errorf("%s: stored %s, want %s", name, got.Result, c.want)
		}
	}
	verified(t, l, db)
}
