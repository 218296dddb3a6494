package ledger_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// refusedFor is the field for which SQL refused something, "" if it did not.
func refusedFor(t *testing.T, err error) string {
	t.Helper()
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "JL400" {
		return ""
	}
	var detail struct{ Field string }
	must(0, json.Unmarshal([]byte(pg.Detail), &detail))(t)
	return detail.Field
}

// TestCase18_InputsThatCannotBeStored: NUL, invalid UTF-8 and lone surrogates are refused with the place in
// the JSON, alike in Go and in SQL, and leave nothing.
func TestCase18_InputsThatCannotBeStored(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	for args, field := range map[string]string{
		`"\u0000"`:                                    "args",
		`{"a":"x\u0000y"}`:                            "args.a",
		`{"a":{"b\u0000":1}}`:                         "args.a",
		`{"to":[1,{"k":2},["x","\ud800"]]}`:           "args.to[2][1]",
		`{"to" : [ {"x":"]}{"} , {"a b":"\udc00"} ]}`: `args.to[1]["a b"]`,
		`{"q\"":["\\u0000",{"n":"\\\u0000"}]}`:        `args["q\""][1].n`,
		`[{"` + big(60) + `":"\u0000"}]`:              `args[0]["` + big(40) + `…"]`,
		`["\ud83d\ude00","\u00e9","\ud83d"]`:          "args[2]",
		`[[],[[]],{},"\uD800\uD800\uDC00"]`:           "args[3]",
	} {
		_, err := l.EnqueueMany(t.Context(), []ledger.EnqueueParams{{Kind: "k"}, {Kind: "k", Args: args}})
		if f, ok := errors.AsType[*domain.FieldError](err); !ok || f.Field != field || f.Index != 1 {
			t.Errorf("%.60s: Go says %v, want a FieldError of %s", args, err, field)
		}
		_, err = db.Pool.Exec(t.Context(), `SELECT jobledger.enqueue_many('{k,k}', ARRAY[NULL, $1])`, args)
		if got := refusedFor(t, err); got != field {
			t.Errorf("%.60s: SQL says %v, want JL400 of %s", args, err, field)
		}
	}
	type strange map[string]any
	for field, args := range map[string]any{
		"args.a[1]": strange{"a": []any{"x", "\xff"}},
		"args.b.c": strange{"a": "\uFFFD", "b": struct {
			C *string `json:"c"`
		}{new("\xc3")}},
		"args.s":       strange{"s": "nul \x00"},
		`args["\"}["]`: json.RawMessage("{\"\\\"}[\":\"\xff\"}"),
		"args[0]":      []string{"\xed\xa0\x80"},
	} {
		_, err := l.Enqueue(t.Context(), ledger.EnqueueParams{Kind: "k", Args: args})
		if f, ok := errors.AsType[*domain.FieldError](err); !ok || f.Field != field {
			t.Errorf("%q: %v, want a FieldError of %s", args, err, field)
		}
	}
	for field, p := range map[string]ledger.EnqueueParams{
		"kind": {Kind: "a\x00"}, "tag": {Kind: "k", Tag: "a\x00"}, "key": {Kind: "k", Key: "a\x00"}, "labels": {Kind: "k", Labels: map[string]string{"a\x00": "b"}},
		"labels.a": {Kind: "k", Labels: map[string]string{"a": "\x00"}}, "correlation_id": {Kind: "k", CorrelationID: "\x00"},
		"trigger_ref": {Kind: "k", Origin: domain.Origin{TriggerRef: "\xff"}},
	} {
		_, err := l.Enqueue(t.Context(), p)
		if f, ok := errors.AsType[*domain.FieldError](err); !ok || f.Field != field {
			t.Errorf("NUL in %s: %v", field, err)
		}
	}
	if n := jobsStored(t, db); n != 0 {
		t.Errorf("%d rows are stored, want none", n)
	}
	// What looks alike and is fine.
	for _, args := range []any{`"\\u0000"`, `{"\\ud800":"\\\\u0000"}`, `"\ufffd"`, `["\ud83d\ude00"]`, json.RawMessage("\"\uFFFD\""), map[string]json.RawMessage{"a": json.RawMessage(`"\ufffd"`)}, "\"\u0085\""} {
		id := must(l.Enqueue(t.Context(), ledger.EnqueueParams{Kind: "k", Args: args}))(t).JobID
		want := fmt.Sprintf("%s", args)
		if m, ok := args.(map[string]json.RawMessage); ok {
			want = `{"a":` + string(m["a"]) + `}`
		}
		if got := must(l.Job(t.Context(), id))(t).Args; string(got) != want {
			t.Errorf("%s came back as %s", want, got)
		}
	}
	verified(t, l, db)
}

// outputs are what a run may report, and what is stored of it: "" where that is not said to the byte.
var outputs = map[string]struct {
	text, json string // the text as an error, and as a result or progress
	altered    bool   // as JSON
	inError    bool   // as an error
}{
	"json":             {`{"a": [1.10, "\\u0000", "\ud83d\ude00"]}`, `{"a": [1.10, "\\u0000", "\ud83d\ude00"]}`, false, false},
	"nul escape":       {`{"\u0000":["\u0000"]}`, `{"\ufffd":["\ufffd"]}`, true, false},
	"lone surrogate":   {`["\ud800", "\ud83d\ude00"]`, `["\ufffd", "\ud83d\ude00"]`, true, false},
	"no json":          {`not json`, `"not json"`, true, false},
	"raw nul":          {"a\x00b", `"a` + "\uFFFD" + `b"`, true, true},
	"invalid utf-8":    {"a\xffb", `"a` + "\uFFFD" + `b"`, true, true},
	"too deep":         {strings.Repeat("[", 501) + strings.Repeat("]", 501), `"` + strings.Repeat("[", 501) + strings.Repeat("]", 501) + `"`, true, false},
	"large":            {big(65 << 10), "", true, true},
	"larger":           {`"` + big(2<<20) + `"`, "", true, true},
	"large, six times": {strings.Repeat("\x01", 2<<20), "", true, true},
}

// TestCase18_OutputsThatCannotBeStored: whatever a run reports, its job goes on; what is stored in place of what
// cannot be is seen to be no original, in Go as in SQL.
func TestCase18_OutputsThatCannotBeStored(t *testing.T) {
	t.Parallel()
	for name, o := range outputs {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			l, db := newLedger(t)
			t.Run("go", func(t *testing.T) {
				held := running(t, l, "k", 0, 0)
				if p := must(l.Ping(t.Context(), ledger.PingParams{Worker: "w", Pings: []ledger.Ping{{Held: held, Progress: o.text}}}))(t)[0]; p.Err != nil {
					t.Fatalf("ping: %v", p.Err)
				}
				must(l.Fail(t.Context(), "w", ledger.Failure{Held: held, Error: o.text, After: new(time.Duration(0))}))(t)
				held = claimOne(t, l, "w", "k", 0)
				for _, repeated := range []bool{false, true} {
					if a := must(l.Complete(t.Context(), "w", ledger.Completion{Held: held, Result: o.text}))(t); a.Repeated != repeated {
						t.Errorf("complete was answered with %+v, want repeated: %t", a, repeated)
					}
				}
				wantOutputs(t, l, db, held, o.json, o.altered, o.inError)
			})
			if strings.ContainsRune(o.text, 0) || !utf8.ValidString(o.text) {
				return // no parameter of Postgres can hold it
			}
			t.Run("sql", func(t *testing.T) {
				held := running(t, l, "k", 0, 0)
				call := func(sql string) (event string) {
					must(0, db.Pool.QueryRow(t.Context(), `SELECT event FROM jobledger.`+sql, held.JobID, held.Generation, o.text).Scan(&event))(t)
					return event
				}
				call(`ping('w', ARRAY[$1::uuid], ARRAY[$2::int], progress => ARRAY[$3])`)
				call(`fail('w', ARRAY[$1::uuid], ARRAY[$2::int], errors => ARRAY[$3], delays => '{0}')`)
				held = claimOne(t, l, "w", "k", 0)
				for range 2 {
					if event := call(`complete('w', ARRAY[$1::uuid], ARRAY[$2::int], ARRAY[$3])`); event != "completed" {
						t.Errorf("complete was answered with %q", event)
					}
				}
				want := o.json
				if strings.Contains(want, `\ufffd`) {
					want = "" // SQL keeps the text, as a string
				}
				wantOutputs(t, l, db, held, want, o.altered, o.inError)
			})
			verified(t, l, db)
		})
	}
}

// wantOutputs looks at the bodies of a job whose run reported the same text as progress, error and result.
func wantOutputs(t *testing.T, l *ledger.Ledger, db *pgtest.DB, held ledger.Held, want string, altered, inError bool) {
	t.Helper()
	job := must(l.Job(t.Context(), held.JobID))(t)
	if job.Outcome != domain.Success || job.ResultAltered != altered || job.ErrorAltered != inError {
		t.Errorf("the job is %s, altered: %t, its error: %t; want success, %t and %t", job.Outcome, job.ResultAltered, job.ErrorAltered, altered, inError)
	}
	for name, b := range map[string]struct {
		text    json.RawMessage
		altered bool
		limit   int
	}{"result": {job.Result, job.ResultAltered, domain.MaxArgsBytes}, "progress": {job.Progress, job.ProgressAltered, domain.MaxProgressBytes}} {
		if err := domain.CheckJSON(name, b.text); err != nil || len(b.text) > b.limit {
			t.Errorf("%s is stored as %.60s (%d bytes): %v", name, b.text, len(b.text), err)
		}
		if want != "" && string(b.text) != want {
			t.Errorf("%s is stored as %s, want %s", name, b.text, want)
		}
		if !b.altered && altered {
			t.Errorf("%s was altered, and carries no flag", name)
		}
	}
	if len(job.Error) > domain.MaxErrorBytes || inError && !strings.Contains(job.Error, "left out") && !strings.Contains(job.Error, "\uFFFD") {
		t.Errorf("the error has %d bytes, want at most 64 KiB with a mark: %.60q", len(job.Error), job.Error)
	}
	for _, e := range must(l.History(t.Context(), held.JobID))(t) {
		wanted := e.Type == domain.Completed && altered || e.Type == domain.Pinged && job.ProgressAltered || e.Type == domain.Retried && inError
		if e.Altered != wanted {
			t.Errorf("event %s says altered: %t, want %t", e.Type, e.Altered, wanted)
		}
	}
	var flagged int
	must(0, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM jobledger.job_payload WHERE job_id = $1 AND altered`, held.JobID).Scan(&flagged))(t)
	if flagged > 0 != (altered || inError) {
		t.Errorf("%d bodies are flagged", flagged)
	}
}

// TestAlteredByTheCaller: who has put substitutes into an output says so; encoding/json does without a word.
func TestAlteredByTheCaller(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	type named struct{ Name string }
	for name, c := range map[string]struct {
		result  any
		want    string
		altered bool
	}{
		"said so":             {ledger.Altered{Value: map[string]int{"a": 1}}, `{"a":1}`, true},
		"nothing":             {ledger.Altered{}, ``, false},
		"no utf-8":            {named{"a\xff"}, `{"Name":"a\ufffd"}`, true},
		"no utf-8 in a key":   {map[string]*named{"\xff": nil}, `{"\ufffd":null}`, true},
		"no utf-8 far inside": {[]any{map[string]any{"a": []named{{}, {"\xff"}}}}, `[{"a":[{"Name":""},{"Name":"\ufffd"}]}]`, true},
		"the real one":        {map[string]any{"a": "\uFFFD", "b": json.RawMessage(`"\ufffd"`), "c": []byte{255}}, `{"a":"` + "\uFFFD" + `","b":"\ufffd","c":"/w=="}`, false},
		"no json at all":      {make(chan int), ``, true},
	} {
		held := running(t, l, "k", 0, 0)
		must(l.Complete(t.Context(), "w", ledger.Completion{Held: held, Result: c.result}))(t)
		job := must(l.Job(t.Context(), held.JobID))(t)
		if job.ResultAltered != c.altered || c.want != "" && string(job.Result) != c.want {
			t.Errorf("%s: stored %s, altered: %t; want %s and %t", name, job.Result, job.ResultAltered, c.want, c.altered)
		}
	}
	held := running(t, l, "k", 0, 0)
	must(l.Fail(t.Context(), "w", ledger.Failure{Held: held, Error: "the end of it", Altered: true, Permanent: true}))(t)
	if !must(l.Job(t.Context(), held.JobID))(t).ErrorAltered {
		t.Error("an error that its caller had cut carries no flag")
	}
	for _, verb := range []string{`complete('w', $1, $2, '{1,2}', altered => '{f,t}')`, `fail('w', $1, $2, errors => '{1,2}', permanent => '{t,t}', altered => '{NULL,t}')`} {
		a, b := running(t, l, "k", 0, 0), running(t, l, "k", 0, 0)
		must(db.Pool.Exec(t.Context(), `SELECT jobledger.`+verb, []any{a.JobID, b.JobID}, []int{1, 1}))(t)
		first, second := must(l.Job(t.Context(), a.JobID))(t), must(l.Job(t.Context(), b.JobID))(t)
		if first.ResultAltered || first.ErrorAltered || !second.ResultAltered && !second.ErrorAltered {
			t.Errorf("%s: flags are %+v and %+v", verb, first, second)
		}
	}
	verified(t, l, db)
}
