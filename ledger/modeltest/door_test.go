package modeltest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/projections"
)

// TestSQLDoor tries what a caller of the SQL functions can say and a caller of the Go API cannot.
func TestSQLDoor(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	t.Run("odd_facts_cost_nobody_a_run", func(t *testing.T) {
		odd := []string{`{"labels":5}`, `{"labels":{"a":1}}`, `{"LABELS":[]}`, `{"correlation_id":{}}`, `{"other":true}`, `{}`, `[1]`, `no json`, `"\u0000"`, `{"labels":{"a":"\ud800"}}`}
		for range odd {
			// The door refuses all of them but {}: a hand has put them there.
			if _, err := g.db.Pool.Exec(g.ctx, `SELECT jobledger.enqueue('k', tag => 'odd')`); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := g.db.Pool.Exec(g.ctx, `UPDATE jobledger.job_queue q SET facts = ($1::text[])[n.n]
			FROM (SELECT job_id, row_number() OVER () AS n FROM jobledger.job_queue WHERE tag = 'odd') n WHERE n.job_id = q.job_id`, odd); err != nil {
			t.Fatal(err)
		}
		if _, err := g.l.Enqueue(g.ctx, ledger.EnqueueParams{Kind: "k", Tag: "even", Labels: map[string]string{"a": "1"}}); err != nil {
			t.Fatal(err)
		}
		if jobs, err := g.l.Read().List(g.ctx, projections.Filter{Label: "a=1"}); err != nil || len(jobs) == 0 {
			t.Errorf("the jobs with label a=1: %d, %v", len(jobs), err)
		}
		c, err := g.l.Claim(g.ctx, ledger.ClaimParams{Worker: "w", Tags: []string{"odd"}, Max: 100})
		if err != nil || len(c.Jobs) != len(odd) {
			t.Errorf("claimed %d of %d jobs, %v", len(c.Jobs), len(odd), err)
		}
	})
	t.Run("a_delay_or_a_time", func(t *testing.T) {
		err := inTx(t, g.db, `SELECT jobledger.enqueue('k', delay => '1 hour', scheduled_for => now())`)
		if !refusedField(err) || !strings.Contains(err.Error(), "delay") {
			t.Errorf("both were answered with %v, want JL400 about delay", err)
		}
	})
	t.Run("one_result_for_each_job", func(t *testing.T) {
		_, err := g.db.Pool.Exec(g.ctx, `SELECT refusal FROM jobledger.complete('w', ARRAY[`+job1+`], ARRAY[1], ARRAY['1', '2', '3'])`)
		if !refusedField(err) || !strings.Contains(err.Error(), "results") {
			t.Errorf("one job with three results was answered with %v, want JL400 about results", err)
		}
	})
	t.Run("deep_args_with_a_key", func(t *testing.T) {
		for _, n := range []int{90, domain.MaxJSONDepth} {
			key, args := fmt.Sprint("deep ", n), deep(n, "[", "]")
			first, err := g.l.Enqueue(g.ctx, ledger.EnqueueParams{Kind: "k", Key: key, Args: args})
			if err != nil {
				t.Fatal(err)
			}
			for _, spelling := range []string{args, deep(n, "[ ", "]")} {
				if again, err := g.l.Enqueue(g.ctx, ledger.EnqueueParams{Kind: "k", Key: key, Args: spelling}); err != nil || again.JobID != first.JobID {
					t.Errorf("%d levels, sent again: %+v, %v", n, again, err)
				}
			}
		}
	})
}

// TestClaimOrder: of what has become due since the last claim the best comes first, up to a hundred jobs of
// a tag at once. Where more became due together, every claim looks at the next hundred, so that one claim
// never has to go through a million.
func TestClaimOrder(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	later := func(tag string, n int) (best uuid.UUID) {
		jobs := make([]ledger.EnqueueParams, n)
		for i := range jobs {
			jobs[i] = ledger.EnqueueParams{ID: jobID(i, n), Kind: "k", Tag: tag, Delay: time.Second + time.Duration(i)*time.Millisecond}
		}
		jobs[n-1].Priority = 9
		if _, err := g.l.EnqueueMany(g.ctx, jobs); err != nil {
			t.Fatal(err)
		}
		return jobs[n-1].ID
	}
	few, many := later("few", 100), later("many", 250)
	g.setClock(g.now.Add(time.Hour))
	claim := func(tag string) uuid.UUID {
		c, err := g.l.Claim(g.ctx, ledger.ClaimParams{Worker: "w", Tags: []string{tag}})
		if err != nil || len(c.Jobs) != 1 {
			t.Fatalf("claimed %+v, %v", c, err)
		}
		return c.Jobs[0].JobID
	}
	if got := claim("few"); got != few {
		t.Errorf("of 100 jobs that became due, %s came first, want %s", got, few)
	}
	claims := 1
	for claim("many") != many {
		if claims++; claims > 3 {
			t.Fatal("of 250 jobs that became due, the best was not among the first three")
		}
	}
}

// TestAPILimits: the Go API tests its fields at its own door and names the one that is wrong.
func TestAPILimits(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	enqueue := func(set func(*ledger.EnqueueParams)) error {
		p := ledger.EnqueueParams{Kind: "k"}
		set(&p)
		_, err := g.l.EnqueueMany(g.ctx, []ledger.EnqueueParams{{Kind: "k"}, p})
		return err
	}
	long := strings.Repeat("x", 2000)
	many := map[string]string{}
	for i := range domain.MaxLabels + 1 {
		many[fmt.Sprint("l", i)] = "v"
	}
	negative := -time.Second
	held := ledger.Held{JobID: jobID(1, 1), Generation: 1}
	for _, c := range []struct {
		field string
		index int
		err   error
	}{
		{"kind", 1, enqueue(func(p *ledger.EnqueueParams) { p.Kind = "" })},
		{"tag", 1, enqueue(func(p *ledger.EnqueueParams) { p.Tag = "a b" })},
		{"priority", 1, enqueue(func(p *ledger.EnqueueParams) { p.Priority = domain.MaxPriority + 1 })},
		{"scheduled_for", 1, enqueue(func(p *ledger.EnqueueParams) { p.ScheduledFor = domain.MaxTime.Add(time.Second) })},
		{"delay", 1, enqueue(func(p *ledger.EnqueueParams) { p.Delay = negative })},
		{"delay", 1, enqueue(func(p *ledger.EnqueueParams) { p.Delay, p.ScheduledFor = time.Second, start })},
		{"key", 1, enqueue(func(p *ledger.EnqueueParams) { p.Key = long })},
		{"key_ttl", 1, enqueue(func(p *ledger.EnqueueParams) { p.KeyTTL = domain.MaxDelay + 1 })},
		{"trigger_kind", 1, enqueue(func(p *ledger.EnqueueParams) { p.Origin.TriggerKind = "a\x00" })},
		{"trigger_ref", 1, enqueue(func(p *ledger.EnqueueParams) { p.Origin.TriggerRef = "a\x00" })},
		{"trigger_ref", 1, enqueue(func(p *ledger.EnqueueParams) { p.Origin.TriggerRef = long })},
		{"policy.timeout", 1, enqueue(func(p *ledger.EnqueueParams) { p.Policy.Timeout = 1 })},
		{"labels", 1, enqueue(func(p *ledger.EnqueueParams) { p.Labels = many })},
		{"labels", 1, enqueue(func(p *ledger.EnqueueParams) { p.Labels = map[string]string{"a b": "v"} })},
		{"labels.a", 1, enqueue(func(p *ledger.EnqueueParams) { p.Labels = map[string]string{"a": long} })},
		{"correlation_id", 1, enqueue(func(p *ledger.EnqueueParams) { p.CorrelationID = "a\n" })},
		{"traceparent", 1, enqueue(func(p *ledger.EnqueueParams) { p.Traceparent = long })},
		{"args", 1, enqueue(func(p *ledger.EnqueueParams) { p.Args = `"` + strings.Repeat("x", domain.MaxArgsBytes-1) + `"` })},
		{"args.a", 1, enqueue(func(p *ledger.EnqueueParams) { p.Args = `{"a":"\u0000"}` })},
		{"args.a[1].b", 1, enqueue(func(p *ledger.EnqueueParams) { p.Args = map[string]any{"a": []any{1, map[string]string{"b": "x\xff"}}} })},
		{"worker", 0, second(g.l.Claim(g.ctx, ledger.ClaimParams{Worker: ""}))},
		{"tags", 0, second(g.l.Claim(g.ctx, ledger.ClaimParams{Worker: "w", Tags: []string{"a b"}}))},
		{"max_jobs", 0, second(g.l.Claim(g.ctx, ledger.ClaimParams{Worker: "w", Max: domain.MaxBatch + 1}))},
		{"lease", 0, second(g.l.Claim(g.ctx, ledger.ClaimParams{Worker: "w", Lease: time.Millisecond}))},
		{"lease", 0, second(g.l.Ping(g.ctx, ledger.PingParams{Worker: "w", Lease: 25 * time.Hour, Pings: []ledger.Ping{{Held: held}}}))},
		{"worker", 0, second(g.l.Complete(g.ctx, "w\n", ledger.Completion{Held: held}))},
		{"class", 0, second(g.l.Fail(g.ctx, "w", ledger.Failure{Held: held, Class: "broken"}))},
		{"delay", 0, second(g.l.Fail(g.ctx, "w", ledger.Failure{Held: held, After: &negative}))},
		{"delay", 1, second(g.l.Snooze(g.ctx, "w", ledger.Snooze{Held: held}, ledger.Snooze{Held: held, Delay: negative}))},
		{"reason", 0, second(g.l.Snooze(g.ctx, "w", ledger.Snooze{Held: held, Reason: long}))},
		{"reason", 0, second(g.l.Cancel(g.ctx, held.JobID, ledger.ByOperator{Reason: long}))},
		{"actor", 0, second(g.l.Redrive(g.ctx, held.JobID, ledger.ByOperator{Actor: long}))},
		{"actor", 0, second(g.l.Reap(g.ctx, ledger.ReapParams{Actor: ""}))},
		{"max_jobs", 0, second(g.l.Reap(g.ctx, ledger.ReapParams{Actor: "a", Max: -1}))},
		{"jobs", 0, second(g.l.CancelMany(g.ctx, make([]uuid.UUID, domain.MaxBatch+1), ledger.ByOperator{}))},
		{"jobs", 0, second(g.l.Release(g.ctx, "w", make([]ledger.Held, domain.MaxBatch+1)...))},
	} {
		if f, ok := errors.AsType[*domain.FieldError](c.err); !ok || f.Field != c.field || f.Index != c.index {
			t.Errorf("%s: %v (%T), want a FieldError about %s of element %d", c.field, c.err, c.err, c.field, c.index)
		}
	}
	if n := one[int](t, g.db.Connect(t), `SELECT count(*) FROM jobledger.job_event`); n != 0 {
		t.Errorf("%d events were stored, want none", n)
	}
}

func second[T any](_ T, err error) error { return err }
