package modeltest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobledger/jobledger/ledger"
)

// TestFacts hands labels and their kin to the Go API and, as facts, to the SQL function.
func TestFacts(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	long := strings.Repeat("x", 256)
	labels := func(n, size int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprint("l", i)] = strings.Repeat("v", size)
		}
		return m
	}
	for _, c := range []struct {
		ok bool
		p  ledger.EnqueueParams
	}{
		{true, ledger.EnqueueParams{Labels: labels(16, 1)}},
		{true, ledger.EnqueueParams{Labels: labels(16, 200)}},
		{false, ledger.EnqueueParams{Labels: labels(16, 255)}}, // together too long
		{false, ledger.EnqueueParams{Labels: labels(17, 1)}},
		{true, ledger.EnqueueParams{Labels: map[string]string{"a": long[1:]}}},
		{false, ledger.EnqueueParams{Labels: map[string]string{"a": long}}},
		{false, ledger.EnqueueParams{Labels: map[string]string{"a": strings.Repeat("é", 128)}}},
		{false, ledger.EnqueueParams{Labels: map[string]string{"a": ""}}},
		{false, ledger.EnqueueParams{Labels: map[string]string{"a": "x\ny"}}},
		{false, ledger.EnqueueParams{Labels: map[string]string{"a": "x\u0085y"}}},
		{true, ledger.EnqueueParams{Labels: map[string]string{"a": `"\<&>é` + "\U0001F600"}}},
		{true, ledger.EnqueueParams{Labels: map[string]string{"a": `":":":":":":":":":":":":":":":":":"`}}},
		{false, ledger.EnqueueParams{Labels: map[string]string{"a=b": "x"}}},
		{false, ledger.EnqueueParams{Labels: map[string]string{"": "x"}}},
		{false, ledger.EnqueueParams{Labels: map[string]string{long: "x"}}},
		{true, ledger.EnqueueParams{Labels: labels(16, 1), CorrelationID: "c", Traceparent: "t"}},
		{true, ledger.EnqueueParams{CorrelationID: long[1:], Traceparent: long[1:]}},
		{false, ledger.EnqueueParams{CorrelationID: long}},
		{false, ledger.EnqueueParams{CorrelationID: "a\x7f"}},
		{false, ledger.EnqueueParams{Traceparent: long}},
		{false, ledger.EnqueueParams{Traceparent: "\u0080"}},
	} {
		facts, err := json.Marshal(ledger.Facts{Labels: c.p.Labels, CorrelationID: c.p.CorrelationID, Traceparent: c.p.Traceparent})
		if err != nil {
			t.Fatal(err)
		}
		c.p.Kind = "k"
		_, inGo := g.l.Enqueue(g.ctx, c.p)
		inSQL := inTx(t, g.db, `SELECT jobledger.enqueue('k', facts => $1)`, string(facts))
		if (inGo == nil) != c.ok || (inSQL == nil) != c.ok {
			t.Errorf("%.100s: Go says %v, SQL says %v, want accepted: %t", facts, inGo, inSQL, c.ok)
		} else if !c.ok {
			sameRefusal(t, fmt.Sprintf("%.100s", facts), inGo, inSQL)
		}
	}
	// What the Go API has no words for.
	for facts, field := range map[string]string{
		`[]`: "facts", `null`: "facts", `"x"`: "facts", `{`: "facts", `{"other":1}`: "facts", `{"labels":{"a":"1"},"Labels":{}}`: "facts", `{"":1}`: "facts",
		`{"labels":null}`: "facts.labels", `{"labels":[]}`: "facts.labels", `{"labels":{"a":1}}`: "facts.labels.a", `{"labels":{"a":null}}`: "facts.labels.a",
		`{"labels":{"a":{"b":"c"}}}`: "facts.labels.a", `{"correlation_id":1}`: "facts.correlation_id", `{"correlation_id":""}`: "facts.correlation_id",
		`{"traceparent":["a"]}`: "facts.traceparent", `{"labels":{"a":"\u0000"}}`: "facts.labels.a", `{"labels":{"b":"x","a":"\ud800"}}`: "facts.labels.a",
		`{"labels":{"\u0000":"x"}}`: "facts.labels", `{"labels":{"a":"b","a":1}}`: "facts.labels.a", `{"traceparent":"a\u000ab"}`: "facts.traceparent",
	} {
		err := inTx(t, g.db, `SELECT jobledger.enqueue_many('{k,k}', facts => ARRAY[NULL, $1])`, facts)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "JL400" || !strings.Contains(pg.Detail, fmt.Sprintf(`"index" : 1, "field" : %q,`, field)) {
			t.Errorf("facts %s: %v, want JL400 about %s of element 1", facts, detail(err), field)
		}
	}
	for _, facts := range []string{`{}`, ` { } `, `{"labels":{}}`, `{"traceparent":"t","labels":{"a":"1"}}`, `{ "labels" : { "a" : "\u0041" } }`, `{"labels":{"a":"1","a":"2"}}`} {
		if err := inTx(t, g.db, `SELECT jobledger.enqueue('k', facts => $1)`, facts); err != nil {
			t.Errorf("facts %s: %v", facts, err)
		}
	}
}

// TestSameID: one id for two jobs of a batch is refused, alike in Go and in SQL; with one key it is one job.
func TestSameID(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	for i, c := range []struct {
		keys    [3]string
		refused bool
	}{
		{[3]string{"", "", ""}, true}, {[3]string{"a", "", ""}, true}, {[3]string{"a", "", "b"}, true}, {[3]string{"a", "b", "a"}, false},
	} {
		ids := []uuid.UUID{jobID(2*i+1, 100), jobID(2*i+2, 100), jobID(2*i+1, 100)}
		jobs := make([]ledger.EnqueueParams, 3)
		for i := range jobs {
			jobs[i] = ledger.EnqueueParams{Kind: "k", ID: ids[i], Key: c.keys[i]}
		}
		inSQL := inTx(t, g.db, `SELECT jobledger.enqueue_many('{k,k,k}', jobs => $1, keys => array_replace($2::text[], '', NULL))`, ids, c.keys[:])
		_, inGo := g.l.EnqueueMany(g.ctx, jobs)
		if (inGo != nil) != c.refused || (inSQL != nil) != c.refused {
			t.Errorf("keys %q: Go says %v, SQL says %v, want refused: %t", c.keys, inGo, inSQL, c.refused)
		} else if c.refused {
			sameRefusal(t, fmt.Sprint(c.keys), inGo, inSQL)
		}
	}
}
