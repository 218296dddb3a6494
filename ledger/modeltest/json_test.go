package modeltest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// nastyTexts are JSON and near JSON that parsers disagree about. Go and SQL have to say the same of each.
var nastyTexts = []string{
	``, ` `, `null`, ` null `, "\t\r\nnull\n", "\vnull", "\u00a0null", "\ufeffnull", `nul`, `NULL`, `True`, `true false`, `undefined`, `NaN`, `Infinity`, `-Infinity`,
	`0`, `-0`, `00`, `01`, `-01`, `+1`, `1.`, `.5`, `1.0`, `1.10`, `1e5`, `1E+5`, `1e-5`, `1e`, `1e+`, `0x10`, `1_000`, `1 2`, `--1`, `-`, `1a`, `1e400`, `-1e400`,
	`9007199254740993`, `123456789012345678901234567890`, `3889108265204450031`, `1e131071`, `1e131072`, `1e200000`, `1e-200000`, `1e99999999999`,
	`{"a":"\u00e9","b":1e400}`, `{"a":"\u00e9","b":1e200000}`, `["\u00e9",1e-200000]`, `["\u00e9",1e99999999999]`,
	`""`, `"`, `"a`, `'a'`, `"a" "b"`, "\"a\tb\"", "\"a\nb\"", "\"a\x00b\"", "\"a\x1fb\"", "\"a\x7fb\"", "\"\u0085\"", "\"\u2028\"", `"\q"`, `"\x41"`, `"\/"`, `"\\"`, `"\"`, `"\b\f\n\r\t"`, `"\a"`,
	`"\u0000"`, `"\\u0000"`, `"\\\u0000"`, `"\\\\u0000"`, `"\u0001"`, `"\u001f"`, `"\u00"`, `"\u00g0"`, `"\U0041"`, `"\u0041"`, `"\uFFFF"`, `"\ufffe"`, `"a\u0000b"`, `{"\u0000":1}`, `{"a":[{"b":"\u0000"}]}`,
	`"\ud800"`, `"\udc00"`, `"\ud800\udc00"`, `"\uD83D\uDE00"`, `"\udc00\ud800"`, `"\ud800\ud800"`, `"\ud800\ud800\udc00"`, `"\ud800x\udc00"`, `"\ud800\n"`, `"\ud800\\udc00"`, `"\ud83d\u0041"`, `"\ud83d\u0000"`,
	`{"\ud800":1}`, `"\udbff\udfff"`, `"\ue000"`, `"\ud7ff"`, `["\ud83d","\ude00"]`,
	"\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xf4\x8f\xbf\xbf\"", "\"\xe2\x82\"", "\"\U0001F600\"", "\"\ufffd\"", "\"\uffff\"",
	`{}`, `[]`, `{ }`, `[ ]`, `{"a"}`, `{"a":}`, `{"a":1,}`, `[1,]`, `[,1]`, `{,}`, `{a:1}`, `{'a':1}`, `{1:1}`, `{null:1}`, `{"a":1,"a":2}`, `{"":{"":{"":""}}}`, `[1`, `{"a":1`, `]`, `[1]]`, `{"a":1}}`, `[1 2]`, `{"a":1 "b":2}`, `{"a" 1}`,
	`// x`, `1 // x`, `/* x */ 1`, `[1,/**/2]`, `#`, "\x00", "1\x00", `"a"\u0041`,
	deep(10, "[", "]"), deep(500, "[", "]"), deep(501, "[", "]"), deep(250, `{"a":[`, "]}"), deep(251, `{"a":[`, "]}"), deep(500, `{"a":`, "}"),
	deep(501, `{"a":`, "}"), deep(3000, "[", "]"), deep(499, "[", "],[2]") + strings.Repeat(`"[[[{{{]",`, 300), `[1e200000,` + deep(499, "[", "]") + `]`, `[1e200000,` + deep(500, "[", "]") + `]`,
	`[` + strings.Repeat(`[],{},"[{",`, 400) + deep(499, "[", "]") + `]`, `[` + strings.Repeat(`[],{},"[{",`, 400) + deep(500, "[", "]") + `]`, deep(20000, "[", "]"), strings.Repeat("[", 20000), strings.Repeat("[", 1000), strings.Repeat(`{"a":`, 50),
	`"` + strings.Repeat(`\u00e9`, 5000) + `"`, `["` + strings.Repeat("x", 100000) + `"]`, `[` + strings.Repeat("1,", 20000) + `1]`,
}

// deep is 1 inside n pairs.
func deep(n int, open, closing string) string {
	return strings.Repeat(open, n) + `1` + strings.Repeat(closing, n)
}

// TestJSON compares CheckJSON with what Postgres takes: as an argument at the door, and as json and jsonb.
func TestJSON(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, text := range nastyTexts {
		inGo := domain.CheckJSON("args", []byte(text))
		inSQL := inTx(t, db, `SELECT jobledger.enqueue('k', $1)`, text)
		if (inGo == nil) != (inSQL == nil) {
			t.Errorf("%s: Go says %v, SQL says %v", shown(text), inGo, inSQL)
		}
		if inGo != nil && inSQL != nil && !notText(inSQL) {
			sameRefusal(t, shown(text), inGo, inSQL)
		}
		if err := inTx(t, db, `SELECT $1::text::json`, text); inGo == nil && err != nil {
			t.Errorf("%s: Go accepts what is no json: %v", shown(text), err)
		}
		if f, ok := errors.AsType[*domain.FieldError](inGo); ok && strings.Contains(f.Want, "deep") {
			continue // Postgres would read it, but not every language that may have to run the job
		}
		if err := inTx(t, db, `SELECT json_strip_nulls($1::text::json)`, text); (inGo == nil) != (err == nil) {
			t.Errorf("%s: Go says %v, reading every string back says %v", shown(text), inGo, err)
		}
	}
}

// notText reports the errors with which Postgres refuses a parameter that is no text at all: NUL bytes and
// invalid UTF-8 never reach a function.
func notText(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "22021"
}

// TestJSONOfABatch wants the index of the culprit named, in Go as in SQL.
func TestJSONOfABatch(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	for _, bad := range []string{`"\u0000"`, `{`, `"\ud800"`} {
		texts := []string{`1`, `"\u00e9"`, bad, `[]`}
		_, err := g.l.EnqueueMany(g.ctx, each(texts, func(s string) ledger.EnqueueParams { return ledger.EnqueueParams{Kind: "k", Args: s} }))
		wantIndex(t, "Go", err, 2)
		rows, err := g.db.Pool.Query(g.ctx, `SELECT jobledger.enqueue_many(ARRAY['k','k','k','k'], $1::text[])`, texts)
		if err == nil {
			rows.Close()
			err = rows.Err()
		}
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "JL400" || !strings.Contains(pg.Detail, `"index" : 2,`) {
			t.Errorf("SQL says %v, want JL400 about element 2", detail(err))
		}
	}
	if n := one[int](t, g.db.Connect(t), `SELECT count(*) FROM jobledger.job_event`); n != 0 {
		t.Errorf("%d events were stored, want none", n)
	}
}

func wantIndex(t *testing.T, who string, err error, index int) {
	t.Helper()
	f, ok := errors.AsType[*domain.FieldError](err)
	if !ok || f.Index != index || !strings.HasPrefix(f.Field, "args") {
		t.Errorf("%s says %v, want a FieldError about args of element %d", who, err, index)
	}
}

func detail(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return fmt.Sprintf("%s: %s", pg.Error(), pg.Detail)
	}
	return fmt.Sprint(err)
}
