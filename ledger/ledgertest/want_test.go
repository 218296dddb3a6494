package ledgertest_test

import (
	"database/sql"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/ledgertest"
)

// TestInTransaction: a transaction sees what it has enqueued, nobody else does before the commit, and nobody after a
// roll-back.
func TestInTransaction(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t)
	ctx := t.Context()
	want := ledgertest.Want{Kind: "welcome", Args: map[string]int{"user": 17}}
	job := ledger.EnqueueParams{Kind: "welcome", Args: `{ "user" : 17 }`}

	t.Run("pgx", func(t *testing.T) {
		tx, err := l.Pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.EnqueueTx(ctx, tx, job); err != nil {
			t.Fatal(err)
		}
		l.In(tx).RequireEnqueued(t, want)
		l.RequireNotEnqueued(t, want)
		if err := tx.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
		l.RequireNotEnqueued(t, want)
	})
	t.Run("database_sql", func(t *testing.T) {
		db := stdlib.OpenDBFromPool(l.Pool)
		defer db.Close()
		tx, err := db.BeginTx(ctx, &sql.TxOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.EnqueueSQLTx(ctx, tx, job); err != nil {
			t.Fatal(err)
		}
		l.InSQL(tx).RequireEnqueued(t, want)
		l.RequireNotEnqueued(t, want)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		got, same := l.RequireEnqueued(t, want), l.InSQL(db).RequireEnqueued(t, want)
		if got.ID != same.ID || !got.EnqueuedAt.Equal(same.EnqueuedAt) || string(got.Args) != string(same.Args) {
			t.Errorf("pgx gives %+v, database/sql %+v", got, same)
		}
	})
	t.Run("goes_on_after_a_failure", func(t *testing.T) {
		err := pgx.BeginFunc(ctx, l.Pool, func(tx pgx.Tx) error {
			failure(t, func(t testing.TB) { l.In(tx).RequireEnqueued(t, ledgertest.Want{Kind: "other"}) })
			_, err := tx.Exec(ctx, `SELECT 1`)
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestWant asks for one job in many ways, right and wrong.
func TestWant(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t)
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	l.SetClock(t, now)
	enqueue(t, l, ledger.EnqueueParams{Kind: "mail", Tag: "slow", Args: `{"to": ["a", "b"], "n": 1.0, "opts": {"x": 1, "y": 2}}`, Priority: -3, Delay: time.Hour,
		Key: "k-1", Labels: map[string]string{"team": "x", "env": "y"}, CorrelationID: "c-1"})
	for name, c := range map[string]struct {
		want ledgertest.Want
		says string // what the failure says of the difference; "" if it is as wanted
	}{
		"anything":        {ledgertest.Want{}, ""},
		"kind":            {ledgertest.Want{Kind: "mail"}, ""},
		"other_kind":      {ledgertest.Want{Kind: "male"}, `kind is "mail", want "male"`},
		"tag":             {ledgertest.Want{Tag: "slow"}, ""},
		"other_tag":       {ledgertest.Want{Tag: "fast"}, `tag is "slow", want "fast"`},
		"args":            {ledgertest.Want{Args: `{"n":1.0,"opts":{"y":2,"x":1},"to":["a","b"]}`}, ""},
		"args_as_values":  {ledgertest.Want{Args: map[string]any{"to": []string{"a", "b"}, "n": json.Number("1.0"), "opts": map[string]int{"x": 1, "y": 2}}}, ""},
		"args_digits":     {ledgertest.Want{ArgsWith: map[string]any{"n": 1}}, `args.n is 1.0, want 1`},
		"args_extra":      {ledgertest.Want{Args: `{"n":1.0,"to":["a","b"]}`}, `args.opts is {"x":1,"y":2}, want it missing`},
		"args_missing":    {ledgertest.Want{Args: `{"n":1.0,"opts":{"y":2,"x":1},"to":["a","b"],"z":0}`}, `args.z is missing, want 0`},
		"args_deep":       {ledgertest.Want{Args: `{"n":1.0,"opts":{"y":3,"x":1},"to":["a","c"]}`}, "args.opts.y is 2, want 3\n        args.to[1] is \"b\", want \"c\""},
		"args_length":     {ledgertest.Want{Args: `{"n":1.0,"opts":{"y":2,"x":1},"to":["a"]}`}, `args.to is ["a","b"], want ["a"]`},
		"args_type":       {ledgertest.Want{Args: `[]`}, `want []`},
		"args_with":       {ledgertest.Want{ArgsWith: map[string]any{"opts": map[string]any{"x": 1}}}, ""},
		"args_with_other": {ledgertest.Want{ArgsWith: map[string]any{"opts": map[string]any{"x": 2}}}, `args.opts.x is 1, want 2`},
		"args_null":       {ledgertest.Want{Args: `null`}, `want null`},
		"bad_args":        {ledgertest.Want{Args: `{`}, `Want.Args: unexpected end`},
		"bad_args_with":   {ledgertest.Want{ArgsWith: map[string]any{"f": func() {}}}, `Want.ArgsWith: json`},
		"key":             {ledgertest.Want{Key: "k-1"}, ""},
		"other_key":       {ledgertest.Want{Key: "k-2"}, `key is "k-1", want "k-2"`},
		"priority":        {ledgertest.Want{Priority: new(-3)}, ""},
		"priority_0":      {ledgertest.Want{Priority: new(0)}, `priority is -3, want 0`},
		"delay":           {ledgertest.Want{Delay: time.Hour}, ""},
		"delay_1us":       {ledgertest.Want{Delay: time.Hour + time.Microsecond}, `delay is 1h0m0s, want 1h0m0.000001s`},
		"due":             {ledgertest.Want{ScheduledFor: now.Add(time.Hour + time.Second).In(time.FixedZone("x", 3600))}, ""},
		"due_other":       {ledgertest.Want{ScheduledFor: now.Add(time.Hour + 1001*time.Millisecond)}, `due time is 2030-01-01T01:00:00Z, want 2030-01-01T01:00:01.001Z within 1s`},
		"due_within":      {ledgertest.Want{ScheduledFor: now, Within: time.Hour}, ""},
		"label":           {ledgertest.Want{Labels: map[string]string{"team": "x"}}, ""},
		"other_label":     {ledgertest.Want{Labels: map[string]string{"team": "y"}}, `label team is "x", want "y"`},
		"correlation":     {ledgertest.Want{CorrelationID: "c-2"}, `correlation id is "c-1", want "c-2"`},
		"state":           {ledgertest.Want{State: domain.Waiting}, ""},
		"other_state":     {ledgertest.Want{State: domain.Ended, Outcome: domain.Success}, `outcome is "", want "success"`},
	} {
		message := failure(t, func(t testing.TB) { l.RequireEnqueued(t, c.want) })
		if (message == "") != (c.says == "") || !strings.Contains(message, c.says) {
			t.Errorf("%s: the failure is\n%s\nwant in it\n%s", name, message, c.says)
		}
		if strings.HasPrefix(name, "bad") {
			continue
		}
		if not := failure(t, func(t testing.TB) { l.RequireNotEnqueued(t, c.want) }); (not == "") == (c.says == "") {
			t.Errorf("%s: enqueued says %q, and not enqueued %q", name, message, not)
		}
	}
}

var volatile = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// TestFailures shows the messages as people read them.
func TestFailures(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t)
	l.SetClock(t, time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	for _, p := range []ledger.EnqueueParams{{Kind: "invoice", Args: `{"user": 18}`}, {Kind: "welcome", Args: `{"user": 18}`, Key: "w-18"}, {Kind: "welcome", Args: `{"user": 17}`, Tag: "mail", Delay: time.Hour}} {
		enqueue(t, l, p)
	}
	for _, c := range []struct {
		name string
		f    func(t testing.TB)
		want string
	}{
		{"none", func(t testing.TB) { l.RequireEnqueued(t, ledgertest.Want{Kind: "welcome", Args: `{"user": 17}`}) }, ``},
		{"missing", func(t testing.TB) {
			l.RequireEnqueued(t, ledgertest.Want{Kind: "welcome", Tag: "mail", Args: map[string]int{"user": 18}, Priority: new(1)})
		}, `
ledgertest: no such job was enqueued
  want: kind "welcome", tag "mail", args {"user":18}, priority 1
  have: kind "welcome", tag "default", args {"user": 18}, key "w-18", waiting until 2030-01-01T00:00:00Z (<id>)
        tag is "default", want "mail"
        priority is 0, want 1
  have: kind "welcome", tag "mail", args {"user": 17}, waiting until 2030-01-01T01:00:00Z (<id>)
        priority is 0, want 1
        args.user is 17, want 18
  have: kind "invoice", tag "default", args {"user": 18}, waiting until 2030-01-01T00:00:00Z (<id>)
        kind is "invoice", want "welcome"
        tag is "default", want "mail"
        priority is 0, want 1`},
		{"twice", func(t testing.TB) { l.RequireEnqueued(t, ledgertest.Want{Kind: "welcome"}) }, `
ledgertest: 2 such jobs were enqueued, want one
  want: kind "welcome"
  have: kind "welcome", tag "default", args {"user": 18}, key "w-18", waiting until 2030-01-01T00:00:00Z (<id>)
  have: kind "welcome", tag "mail", args {"user": 17}, waiting until 2030-01-01T01:00:00Z (<id>)`},
		{"unwanted", func(t testing.TB) { l.RequireNotEnqueued(t, ledgertest.Want{Kind: "invoice"}) }, `
ledgertest: a job was enqueued that should not be
  unwanted: kind "invoice"
  have: kind "invoice", tag "default", args {"user": 18}, waiting until 2030-01-01T00:00:00Z (<id>)`},
		{"many", func(t testing.TB) {
			// The first fits two jobs and makes room for the second.
			got := l.RequireEnqueuedMany(t, ledgertest.Want{Kind: "welcome"}, ledgertest.Want{Key: "w-18"}, ledgertest.Want{Kind: "invoice"})
			if got[0].Tag != "mail" || got[1].Key != "w-18" || got[2].Kind != "invoice" {
				t.Errorf("got %v", got)
			}
		}, ``},
		{"many_others", func(t testing.TB) {
			l.RequireEnqueuedMany(t, ledgertest.Want{Kind: "welcome"}, ledgertest.Want{Kind: "refund"})
		}, `
ledgertest: other jobs were enqueued than these 2
  missing: kind "refund"
  too many: kind "invoice", tag "default", args {"user": 18}, waiting until 2030-01-01T00:00:00Z (<id>)
  too many: kind "welcome", tag "mail", args {"user": 17}, waiting until 2030-01-01T01:00:00Z (<id>)`},
		{"nothing_due", func(t testing.TB) {
			w := newWorker(t.(*failing).TB.(*testing.T), l, quiet("elsewhere"))
			handle(w, "welcome")
			l.RunOne(t, w)
		}, `
ledgertest: nothing is due for the worker, which serves the tags elsewhere, at 2030-01-01T00:00:00Z
  have: kind "invoice", tag "default", args {"user": 18}, waiting until 2030-01-01T00:00:00Z (<id>)
  have: kind "welcome", tag "default", args {"user": 18}, key "w-18", waiting until 2030-01-01T00:00:00Z (<id>)
  have: kind "welcome", tag "mail", args {"user": 17}, waiting until 2030-01-01T01:00:00Z (<id>)`},
		{"no_handler", func(t testing.TB) {
			w := newWorker(t.(*failing).TB.(*testing.T), l, quiet("default"))
			handle(w, "welcome")
			l.RunOne(t, w)
		}, `
ledgertest: the worker has no handler for kind "invoice", of which a job was due (<id>)`},
	} {
		got := volatile.ReplaceAllString(failure(t, c.f), "<id>")
		if want := strings.TrimPrefix(c.want, "\n"); got != want {
			t.Errorf("%s: the message is\n%s\nwant\n%s", c.name, got, want)
		}
	}
	empty := ledgertest.New(t)
	if got := failure(t, func(t testing.TB) { empty.RequireEnqueued(t, ledgertest.Want{}) }); !strings.Contains(got, "want: any job\n  have: no job at all") {
		t.Errorf("of an empty ledger: %s", got)
	}
	for range 9 {
		enqueue(t, empty, ledger.EnqueueParams{Kind: "k"})
	}
	if got := failure(t, func(t testing.TB) { empty.RequireNotEnqueued(t, ledgertest.Want{}) }); !strings.Contains(got, "and 4 more") {
		t.Errorf("of many jobs: %s", got)
	}
}
