package modeltest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
)

// limit is one limit at the door, with values on both of its sides. Go and SQL have to accept and to
// refuse the same ones.
type limit struct {
	field string
	goes  func(value any) error // the check in Go
	sql   string                // the call in SQL, with the value as $1
	ok    []any
	bad   []any
}

// Values around the limits of texts.
var (
	names   = []any{"k", strings.Repeat("k", 255), "AZaz09._:/-"}
	noNames = []any{"", strings.Repeat("k", 256), "a b", "é", "a\n", "a\x7f", "a\\b", "a*"}
	lines   = []any{"w", strings.Repeat("w", 255), strings.Repeat("é", 127), "host-1 é 漢 \U0001F600", "\u00a0"}
	noLines = []any{"", strings.Repeat("w", 256), strings.Repeat("é", 128), "a\nb", "a\x01b", "a\x1f", "a\x7f", "a\u0080b", "a\u0085b", "a\u009fb"}
	spans   = []any{time.Duration(0), time.Microsecond, domain.MaxDelay}
	noSpans = []any{-time.Microsecond, domain.MaxDelay + time.Microsecond}
)

// job1 stands for any job in the calls below: checks come before it is looked for.
const job1 = `'00000000-0000-7000-8000-000000000001'::uuid`

var limits = []limit{
	{"kind", checkName("kind"), `SELECT jobledger.enqueue($1::text)`, names, noNames},
	{"tag", checkName("tag"), `SELECT jobledger.enqueue('k', tag => $1::text)`, names, noNames},
	{"trigger_kind", checkName("trigger_kind"), `SELECT jobledger.enqueue_many(ARRAY['k'], trigger_kinds => ARRAY[$1::text])`, names, noNames},
	{"trigger_ref", checkLine("trigger_ref", domain.MaxRefBytes), `SELECT jobledger.enqueue_many(ARRAY['k'], trigger_refs => ARRAY[$1::text])`, reasonsOK, reasonsBad},
	{"key", checkLine("key", domain.MaxKeyBytes), `SELECT jobledger.enqueue('k', key => $1::text)`, lines, noLines},
	{"actor of enqueue", checkLine("actor", domain.MaxActorBytes), `SELECT jobledger.enqueue('k', actor => $1::text)`, lines, noLines},
	{"actor of cancel", checkLine("actor", domain.MaxActorBytes), `SELECT jobledger.cancel(ARRAY[` + job1 + `], $1::text)`, lines, noLines},
	{"actor of redrive", checkLine("actor", domain.MaxActorBytes), `SELECT jobledger.redrive(ARRAY[` + job1 + `], $1::text)`, lines, noLines},
	{"actor of reap", checkLine("actor", domain.MaxActorBytes), `SELECT jobledger.reap($1::text)`, lines, noLines},
	{"worker of claim", checkLine("worker", domain.MaxActorBytes), `SELECT jobledger.claim($1::text, ARRAY['t'])`, lines, noLines},
	{"worker of ping", checkLine("worker", domain.MaxActorBytes), `SELECT jobledger.ping($1::text, ARRAY[` + job1 + `], ARRAY[1])`, lines, noLines},
	{"worker of complete", checkLine("worker", domain.MaxActorBytes), `SELECT jobledger.complete($1::text, ARRAY[` + job1 + `], ARRAY[1])`, lines, noLines},
	{"worker of fail", checkLine("worker", domain.MaxActorBytes), `SELECT jobledger.fail($1::text, ARRAY[` + job1 + `], ARRAY[1])`, lines, noLines},
	{"worker of release", checkLine("worker", domain.MaxActorBytes), `SELECT jobledger.release($1::text, ARRAY[` + job1 + `], ARRAY[1])`, lines, noLines},
	{"worker of snooze", checkLine("worker", domain.MaxActorBytes), `SELECT jobledger.snooze($1::text, ARRAY[` + job1 + `], ARRAY[1], ARRAY[interval '0'])`, lines, noLines},
	{"reason of cancel", checkLine("reason", domain.MaxReasonBytes), `SELECT jobledger.cancel(ARRAY[` + job1 + `], 'a', $1::text)`, reasonsOK, reasonsBad},
	{"reason of redrive", checkLine("reason", domain.MaxReasonBytes), `SELECT jobledger.redrive(ARRAY[` + job1 + `], 'a', $1::text)`, reasonsOK, reasonsBad},
	{"reason of snooze", checkLine("reason", domain.MaxReasonBytes), `SELECT jobledger.snooze('w', ARRAY[` + job1 + `], ARRAY[1], ARRAY[interval '0'], ARRAY[$1::text])`, reasonsOK, reasonsBad},
	{"priority", checked(domain.CheckPriority), `SELECT jobledger.enqueue('k', priority => $1::int)`,
		[]any{0, domain.MinPriority, domain.MaxPriority}, []any{domain.MinPriority - 1, domain.MaxPriority + 1, 1 << 30}},
	{"scheduled_for", func(v any) error { return domain.CheckTime("scheduled_for", v.(time.Time)) }, `SELECT jobledger.enqueue('k', scheduled_for => $1::timestamptz)`,
		[]any{domain.MinTime, domain.MaxTime}, []any{domain.MinTime.Add(-time.Microsecond), domain.MaxTime.Add(time.Microsecond)}},
	{"delay of enqueue", checkSpan("delay"), `SELECT jobledger.enqueue('k', delay => $1::interval)`, spans, noSpans},
	{"delay of fail", checkSpan("delay"), `SELECT jobledger.fail('w', ARRAY[` + job1 + `], ARRAY[1], delays => ARRAY[$1::interval])`, spans, noSpans},
	{"delay of snooze", checkSpan("delay"), `SELECT jobledger.snooze('w', ARRAY[` + job1 + `], ARRAY[1], ARRAY[$1::interval])`, spans, noSpans},
	{"key_ttl", checkSpan("key_ttl"), `SELECT jobledger.enqueue('k', key => 'x', key_ttl => $1::interval)`, spans, noSpans},
	{"lease of claim", checked(domain.CheckLease), `SELECT jobledger.claim('w', ARRAY['t'], 1, $1::interval)`,
		[]any{domain.MinLease, domain.MaxLease, domain.DefaultLease}, []any{domain.MinLease - time.Microsecond, domain.MaxLease + time.Microsecond, -time.Hour}},
	{"lease of ping", checked(domain.CheckLease), `SELECT jobledger.ping('w', ARRAY[` + job1 + `], ARRAY[1], $1::interval)`,
		[]any{domain.MinLease, domain.MaxLease}, []any{domain.MinLease - time.Microsecond, domain.MaxLease + time.Microsecond}},
	{"batch of complete", checked(domain.CheckBatch), `SELECT count(*) FROM jobledger.complete('w', array_fill(` + job1 + `, ARRAY[$1::int]), array_fill(1, ARRAY[$1::int]))`,
		[]any{0, 1, 1000}, []any{domain.MaxBatch + 1}},
	{"batch of cancel", checked(domain.CheckBatch), `SELECT count(*) FROM jobledger.cancel(array_fill(` + job1 + `, ARRAY[$1::int]))`,
		[]any{0, 1, domain.MaxBatch}, []any{domain.MaxBatch + 1}},
	{"batch of enqueue", checked(domain.CheckBatch), `SELECT count(*) FROM jobledger.enqueue_many(array_fill('k'::text, ARRAY[$1::int]))`,
		[]any{0, 1, domain.MaxBatch}, []any{domain.MaxBatch + 1}},
	{"args", checkSize("args", domain.MaxArgsBytes), `SELECT jobledger.enqueue('k', to_json(repeat('é', $1::int / 2 - 1))::text)`, sizes(domain.MaxArgsBytes), sizes(domain.MaxArgsBytes + 2)},
	{"max_jobs of claim", checked(domain.CheckMaxJobs), `SELECT jobledger.claim('w', ARRAY['t'], $1::int)`, []any{1, domain.MaxBatch}, []any{0, -1, domain.MaxBatch + 1}},
	{"max_jobs of reap", checked(domain.CheckMaxJobs), `SELECT jobledger.reap('w', $1::int)`, []any{1, domain.MaxBatch}, []any{0, -1, domain.MaxBatch + 1}},
	{"tags of claim", checkNames("tags", 1), `SELECT jobledger.claim('w', $1::text[])`, []any{[]string{"t"}, many(1000)}, []any{[]string{}, many(1001), []string{"t", "a b"}}},
	{"tags of reap", checkNames("tags", 0), `SELECT jobledger.reap('w', 1, $1::text[])`, []any{[]string{}, many(1000)}, []any{many(1001), []string{""}}},
	{"tags of worker_seen", checkNames("tags", 0), seen(`$1::text[], '{}', 'h', 1, 1, 1, 'working'`), []any{[]string{}, many(1000)}, []any{many(1001), []string{"\x7f"}}},
	{"kinds of worker_seen", checkNames("kinds", 0), seen(`'{}', $1::text[], 'h', 1, 1, 1, 'working'`), []any{[]string{}, many(1000)}, []any{many(1001), []string{"a\n"}}},
	{"host", checkLine("host", domain.MaxNameBytes), seen(`'{}', '{}', $1::text, 1, 1, 1, 'working'`), lines, noLines},
	{"pid", checkCount("pid"), seen(`'{}', '{}', 'h', $1::int, 1, 1, 'working'`), []any{0, 4194304}, []any{-1}},
	{"slots", checkCount("slots"), seen(`'{}', '{}', 'h', 1, $1::int, 1, 'working'`), []any{0}, []any{-1}},
	{"running", checkCount("running"), seen(`'{}', '{}', 'h', 1, 1, $1::int, 'working'`), []any{0}, []any{-1}},
}

var (
	reasonsOK  = []any{"r", strings.Repeat("r", 1024)}
	reasonsBad = []any{"", strings.Repeat("r", 1025), "two\nlines"}
)

func checkName(field string) func(any) error {
	return func(v any) error { return domain.CheckName(field, v.(string)) }
}

func checkLine(field string, limit int) func(any) error {
	return func(v any) error { return domain.CheckText(field, v.(string), limit) }
}

func checkSpan(field string) func(any) error {
	return func(v any) error { return domain.CheckDelay(field, v.(time.Duration)) }
}

func checked[T any](f func(T) error) func(any) error { return func(v any) error { return f(v.(T)) } }

func checkNames(field string, atLeast int) func(any) error {
	return func(v any) error { return domain.CheckNames(field, v.([]string), atLeast) }
}

func checkCount(field string) func(any) error {
	return func(v any) error { return domain.CheckCount(field, v.(int)) }
}

func checkSize(field string, limit int) func(any) error {
	return func(v any) error {
		if v.(int) > limit {
			return &domain.FieldError{Field: field, Want: fmt.Sprintf("at most %d bytes", limit)}
		}
		return nil
	}
}

// many names, all different.
func many(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("n", i)
	}
	return names
}

// seen is a call of worker_seen with all arguments but the worker.
func seen(rest string) string { return `SELECT jobledger.worker_seen('w', ` + rest + `)` }

func sizes(n ...int) []any { return each(n, func(n int) any { return n }) }

// TestLimits tries each limit at its last value and one beyond, in Go and in SQL.
func TestLimits(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, l := range limits {
		t.Run(strings.ReplaceAll(l.field, " ", "_"), func(t *testing.T) {
			for _, v := range l.ok {
				if err := l.goes(v); err != nil {
					t.Errorf("Go refuses %s: %v", shown(v), err)
				}
				if err := inTx(t, db, l.sql, v); err != nil {
					t.Errorf("SQL refuses %s: %v", shown(v), err)
				}
			}
			for _, v := range l.bad {
				sameRefusal(t, shown(v), l.goes(v), inTx(t, db, l.sql, v))
			}
		})
	}
}

func shown(v any) string {
	s := fmt.Sprintf("%q", v)
	if _, ok := v.(string); !ok {
		s = fmt.Sprint(v)
	}
	if len(s) > 40 {
		return fmt.Sprintf("%s... (%d bytes)", s[:40], len(s))
	}
	return s
}

// sameRefusal wants a value refused for the same field and with the same advice, in Go and in SQL. A caller of
// SQL has put labels and their kin into facts; in Go they are fields of their own.
func sameRefusal(t *testing.T, what string, inGo, inSQL error) {
	t.Helper()
	var want *domain.FieldError
	if !errors.As(inGo, &want) {
		t.Errorf("%s: Go says %v, want a FieldError", what, inGo)
		return
	}
	var pg *pgconn.PgError
	if !errors.As(inSQL, &pg) || pg.Code != "JL400" {
		t.Errorf("%s: SQL says %v, want JL400: %v", what, inSQL, want)
		return
	}
	var got struct{ Field, Want string }
	if err := json.Unmarshal([]byte(pg.Detail), &got); err != nil {
		t.Fatalf("%s: DETAIL %s: %v", what, pg.Detail, err)
	}
	if strings.TrimPrefix(got.Field, "facts.") != want.Field || got.Want != want.Want {
		t.Errorf("%s: SQL says %s: want %s; Go says %s: want %s", what, got.Field, got.Want, want.Field, want.Want)
	}
}

func refusedField(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "JL400"
}

// inTx runs a statement and undoes it.
func inTx(t *testing.T, db *pgtest.DB, sql string, args ...any) error {
	t.Helper()
	ctx := context.Background()
	tx, err := db.Pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, err = tx.Exec(ctx, sql, args...)
	if rollback := tx.Rollback(ctx); rollback != nil && !errors.Is(rollback, pgx.ErrTxClosed) {
		t.Fatal(rollback)
	}
	return err
}

// policyLimits are the fields of a policy with the values on both sides of their limits.
var policyLimits = []struct {
	field string
	set   func(*domain.Policy, int)
	unit  string
	ok    []int
	bad   []int
}{
	{"max_attempts", func(p *domain.Policy, n int) { p.MaxAttempts = n }, "int", []int{1, 1000}, []int{0, 1001, -1}},
	{"timeout", func(p *domain.Policy, n int) { p.Timeout = micros(n) }, "us", []int{1e6, 720 * 3600e6}, []int{1e6 - 1, 720*3600e6 + 1, 0, -1}},
	{"restart_limit", func(p *domain.Policy, n int) { p.RestartLimit = n }, "int", []int{0, 1000}, []int{-1, 1001}},
	{"backoff_base", func(p *domain.Policy, n int) { p.BackoffBase = micros(n); p.BackoffCap = 720 * time.Hour }, "us", []int{1e3, 24 * 3600e6}, []int{999, 24*3600e6 + 1, 0, -1}},
	{"backoff_factor", func(p *domain.Policy, n int) { p.BackoffFactor = n }, "int", []int{100, 10000}, []int{99, 10001}},
	{"backoff_cap", func(p *domain.Policy, n int) { p.BackoffCap = micros(n) }, "us", []int{1e6, 720 * 3600e6}, []int{1e6 - 1, 720*3600e6 + 1}},
	{"backoff_jitter", func(p *domain.Policy, n int) { p.BackoffJitter = n }, "int", []int{0, 100}, []int{-1, 101}},
	{"stall_after", func(p *domain.Policy, n int) { p.StallAfter = micros(n) }, "us", []int{1e6, 720 * 3600e6}, []int{1e6 - 1, 720*3600e6 + 1, -1}},
}

func micros(n int) time.Duration { return time.Duration(n) * time.Microsecond }

// TestPolicyLimits compares Policy.Validate with what ensure_policy accepts.
func TestPolicyLimits(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, l := range policyLimits {
		for _, n := range append(append([]int(nil), l.ok...), l.bad...) {
			p := domain.DefaultPolicy
			l.set(&p, n)
			inGo, inSQL := p.Validate(), inTx(t, db, ensurePolicy, policyArgs(p)...)
			if (inGo == nil) != (inSQL == nil) || (inGo == nil) != contains(l.ok, n) {
				t.Errorf("%s %d: Go says %v, SQL says %v", l.field, n, inGo, inSQL)
			} else if inGo != nil {
				sameRefusal(t, fmt.Sprint(l.field, " ", n), inGo, inSQL)
			}
		}
	}
	for _, o := range []domain.OnLostLease{domain.Restart, domain.FailIt, domain.Reconcile, "", "retry"} {
		p := domain.DefaultPolicy
		p.OnLostLease = o
		inGo, inSQL := p.Validate(), inTx(t, db, ensurePolicy, policyArgs(p)...)
		if (inGo == nil) != (inSQL == nil) {
			t.Errorf("on_lost_lease %q: Go says %v, SQL says %v", o, inGo, inSQL)
		} else if inGo != nil {
			sameRefusal(t, fmt.Sprintf("on_lost_lease %q", o), inGo, inSQL)
		}
	}
}

func contains(all []int, n int) bool {
	for _, a := range all {
		if a == n {
			return true
		}
	}
	return false
}

const ensurePolicy = `SELECT jobledger.ensure_policy($1, $2, $3, $4, $5, $6, $7, $8, NULLIF($9, interval '0'))`

func policyArgs(p domain.Policy) []any {
	return []any{p.MaxAttempts, p.Timeout, p.RestartLimit, string(p.OnLostLease), p.BackoffBase, p.BackoffFactor, p.BackoffCap, p.BackoffJitter, p.StallAfter}
}
