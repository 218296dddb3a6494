package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// keyed is a job with a key.
func keyed(key string, args any) ledger.EnqueueParams {
	return ledger.EnqueueParams{Kind: "pay", Key: key, Args: args}
}

// jobsStored counts what a refused call must not have left: jobs, events, bodies and keys.
func jobsStored(t *testing.T, db *pgtest.DB) (n int) {
	t.Helper()
	const query = `SELECT (SELECT count(*) FROM jobledger.job) + (SELECT count(*) FROM jobledger.job_event)
		+ (SELECT count(*) FROM jobledger.job_payload) + (SELECT count(*) FROM jobledger.idempotency_key)`
	must(0, db.Pool.QueryRow(t.Context(), query).Scan(&n))(t)
	return n
}

// TestCase15_ParallelCallersWithOneKey: fifty callers, one job, and each is told its id.
func TestCase15_ParallelCallersWithOneKey(t *testing.T) {
	t.Parallel()
	const callers = 50
	db := pgtest.New(t, pgtest.MaxConns(callers))
	l := must(ledger.New(db.Pool, ledger.Config{}))(t)
	type result struct {
		job ledger.Enqueued
		err error
	}
	results := make(chan result)
	for range callers {
		go func() {
			job, err := l.Enqueue(context.Background(), keyed("order-17", `{"amount": 10}`))
			results <- result{job, err}
		}()
	}
	ids, created := map[uuid.UUID]bool{}, 0
	for range callers {
		r := <-results
		job := must(r.job, r.err)(t)
		ids[job.JobID] = true
		if !job.Replayed {
			created++
		}
	}
	if len(ids) != 1 || created != 1 {
		t.Errorf("callers were told %d ids, %d of them as new; want one", len(ids), created)
	}
	if n := jobsStored(t, db); n != 4 {
		t.Errorf("%d rows are stored, want one job, event, body and key", n)
	}
	verified(t, l, db)
}

// TestCase14_HolderOfTheKey: callers who meet a key of an open transaction wait for its end. If it
// commits, they get its job; if it rolls back, one of them creates the job and all get that one; never
// success without a job. A caller under REPEATABLE READ may be told to try again instead.
func TestCase14_HolderOfTheKey(t *testing.T) {
	t.Parallel()
	for _, isolation := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead} {
		for _, ending := range []string{"commit", "rollback"} {
			t.Run(fmt.Sprintf("%s/%s", strings.ReplaceAll(string(isolation), " ", "_"), ending), func(t *testing.T) {
				t.Parallel()
				const callers = 5
				l, db := newLedger(t)
				holder := db.Connect(t)
				tx := must(holder.Begin(t.Context()))(t)
				held := must(l.EnqueueTx(t.Context(), tx, keyed("k", `{"n":1}`)))(t)[0]

				type result struct {
					job ledger.Enqueued
					err error
				}
				results := make(chan result, callers)
				for range callers {
					go func() {
						var jobs []ledger.Enqueued
						err := pgx.BeginTxFunc(context.Background(), db.Pool, pgx.TxOptions{IsoLevel: isolation}, func(tx pgx.Tx) (err error) {
							jobs, err = l.EnqueueTx(context.Background(), tx, keyed("k", `{"n": 1}`))
							return err
						})
						results <- result{append(jobs, ledger.Enqueued{})[0], err}
					}()
				}
				db.WaitBlockedBy(t, holder.PgConn().PID(), callers)
				want := held.JobID
				if ending == "commit" {
					must(0, tx.Commit(t.Context()))(t)
				} else {
					must(0, tx.Rollback(t.Context()))(t)
					want = uuid.Nil
				}
				answered := 0
				for range callers {
					r := <-results
					if isolation == pgx.RepeatableRead && r.err != nil && ledger.Retryable(r.err) {
						continue
					}
					job := must(r.job, r.err)(t)
					answered++
					if want == uuid.Nil {
						want = job.JobID
					}
					if job.JobID != want {
						t.Errorf("a caller was told job %s, want %s", job.JobID, want)
					}
				}
				if ending == "rollback" && answered == 0 || isolation == pgx.ReadCommitted && answered != callers {
					t.Errorf("%d callers succeeded", answered)
				}
				if n := jobsStored(t, db); n != 4 {
					t.Errorf("%d rows are stored, want one job, event, body and key", n)
				}
				must(l.Job(t.Context(), want))(t)
				verified(t, l, db)
			})
		}
	}
}

// TestKeyConflict: a key that was used for something else refuses the whole batch, and leaves nothing.
func TestKeyConflict(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	first := must(l.Enqueue(ctx, keyed("k", `{"n":1}`)))(t)
	before := jobsStored(t, db)
	refused := func(t *testing.T, index int, jobs ...ledger.EnqueueParams) {
		t.Helper()
		_, err := l.EnqueueMany(ctx, jobs)
		refusal, ok := errors.AsType[*domain.RefusedError](err)
		if !ok || !errors.Is(err, domain.ErrKeyConflict) || refusal.Index != index || ledger.Retryable(err) {
			t.Errorf("answered with %v, want ErrKeyConflict for element %d", err, index)
		}
		if n := jobsStored(t, db); n != before {
			t.Errorf("%d rows are stored, want %d as before", n, before)
		}
	}
	t.Run("other_args", func(t *testing.T) { refused(t, 0, keyed("k", `{"n":2}`)) })
	t.Run("other_kind", func(t *testing.T) { refused(t, 0, ledger.EnqueueParams{Kind: "refund", Key: "k", Args: `{"n":1}`}) })
	t.Run("no_args", func(t *testing.T) { refused(t, 0, keyed("k", nil)) })
	t.Run("rest_of_the_batch", func(t *testing.T) {
		refused(t, 2, ledger.EnqueueParams{Kind: "pay"}, keyed("free", `1`), keyed("k", `{"n":2}`), keyed("free too", `1`))
		refused(t, 1, keyed("free", `1`), keyed("free", `2`))
	})
	t.Run("after_waiting_for_the_holder", func(t *testing.T) {
		holder := db.Connect(t)
		tx := must(holder.Begin(ctx))(t)
		must(l.EnqueueTx(ctx, tx, keyed("late", `{"n":1}`)))(t)
		done := make(chan error, 1)
		go func() {
			_, err := l.Enqueue(context.Background(), keyed("late", `{"n":2}`))
			done <- err
		}()
		db.WaitBlockedBy(t, holder.PgConn().PID(), 1)
		must(0, tx.Commit(ctx))(t)
		if err := <-done; !errors.Is(err, domain.ErrKeyConflict) {
			t.Errorf("who waited for a holder with other args was answered with %v, want ErrKeyConflict", err)
		}
	})
	if again := must(l.Enqueue(ctx, keyed("k", `{"n":1}`)))(t); again.JobID != first.JobID || !again.Replayed {
		t.Errorf("the key now gives %+v, want a replay of %s", again, first.JobID)
	}
	must(l.Enqueue(ctx, keyed("free", `3`)))(t)
	verified(t, l, db)
}

// TestKeyPayload: the same payload is the same canonical JSON. Order, white space and escapes don't
// matter, digits do.
func TestKeyPayload(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	for i, pair := range []struct {
		a, b any
		same bool
	}{
		{`{"a":1,"b":[1,2]}`, " {\n\t\"b\" : [ 1 , 2 ],\r\n\"a\":1} ", true},
		{`{"a":{"x":null,"y":true}}`, `{"a":{"y":true,"x":null}}`, true},
		{`"A/é😀\n"`, `"\u0041\/\u00e9\ud83d\ude00\u000a"`, true},
		{`{"A":1}`, `{"\u0041":1}`, true},
		{nil, `null`, true},
		{`{"a":1,"ab":2}`, `{"ab":2,"a":1}`, true},
		{`1`, `1.0`, false},
		{`100`, `1e2`, false},
		{`1e2`, `1E2`, false},
		{`0`, `-0`, false},
		{`9007199254740993`, `9007199254740992`, false},
		{`1`, `"1"`, false},
		{`[1,2]`, `[2,1]`, false},
		{`{"a":1}`, `{"a":2,"a":1}`, true}, // the last one counts
		{`{"a":1}`, `{"a":1,"a":2}`, false},
		{`[1e5,"1e6"]`, `[1e5,"1\u00656"]`, true},
		{`{"a":[1e5,{"b":"-0"}],"c":-0}`, `{"c":-0, "a":[1e5 ,{"b" : "-0"}]}`, true},
		{`{"a":-0,"b":1e5}`, `{"a":-0,"b":100000}`, false},
		{`1e200000`, ` 1e200000`, true},
		{`1e200000`, `1e200001`, false},
		{`"n1"`, `1`, false},
		{strings.Repeat("9", 140000), " " + strings.Repeat("9", 140000), true},
		{strings.Repeat("9", 140000), strings.Repeat("9", 140000) + ".0", false},
		{`{"a":"b,c"}`, `{"a":"b","c":""}`, false},
		{`"\\u0041"`, `"\u0041"`, false},
		{`{"a":null}`, `{}`, false},
	} {
		key := fmt.Sprintf("pair %d", i)
		first := must(l.Enqueue(t.Context(), keyed(key, pair.a)))(t)
		second, err := l.Enqueue(t.Context(), keyed(key, pair.b))
		if pair.same && (err != nil || second.JobID != first.JobID || !second.Replayed) {
			t.Errorf("%v and %v: got %+v and %v, want a replay", pair.a, pair.b, second, err)
		}
		if !pair.same && !errors.Is(err, domain.ErrKeyConflict) {
			t.Errorf("%v and %v: got %+v and %v, want ErrKeyConflict", pair.a, pair.b, second, err)
		}
		// Inside one batch the elements are compared before anything is stored.
		_, err = l.EnqueueMany(t.Context(), []ledger.EnqueueParams{keyed(key+" batch", pair.a), keyed(key+" batch", pair.b)})
		if pair.same != (err == nil) {
			t.Errorf("%v and %v in one batch: got %v", pair.a, pair.b, err)
		}
	}
	verified(t, l, db)
}

// TestKeyLimits: bytes and characters of keys are checked at the door, alike in Go and in SQL.
func TestKeyLimits(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	before := jobsStored(t, db)
	for name, key := range map[string]string{"300_bytes": strings.Repeat("k", 300), "256_bytes_of_two_each": strings.Repeat("é", 128),
		"line_break": "a\nb", "nul": "a\x00b", "delete": "a\x7fb", "c1_control": "a\u0085b", "invalid_utf8": "a\xffb"} {
		_, err := l.Enqueue(t.Context(), keyed(key, `1`))
		if field, ok := errors.AsType[*domain.FieldError](err); !ok || field.Field != "key" {
			t.Errorf("%s: answered with %v, want a FieldError of key", name, err)
		}
		if !utf8.ValidString(key) || strings.Contains(key, "\x00") {
			continue // text that cannot reach a function
		}
		_, err = db.Pool.Exec(t.Context(), `SELECT jobledger.enqueue('pay', '1', key => $1)`, key)
		if code := sqlState(err); code != "JL400" {
			t.Errorf("%s: SQL answered with %v, want JL400", name, err)
		}
	}
	if n := jobsStored(t, db); n != before {
		t.Errorf("%d rows are stored, want %d as before", n, before)
	}
	for name, c := range map[string]struct {
		key  string
		same bool
	}{"255_bytes": {strings.Repeat("é", 127) + "k", true}, "none": {"", false}} {
		first, second := must(l.Enqueue(t.Context(), keyed(c.key, `1`)))(t), must(l.Enqueue(t.Context(), keyed(c.key, `1`)))(t)
		if (first.JobID == second.JobID) != c.same || second.Replayed != c.same {
			t.Errorf("%s: got %+v and %+v, want the same job: %t", name, first, second, c.same)
		}
	}
}

// TestKeyLife: a key lives as long as its job, and then for its own time.
func TestKeyLife(t *testing.T) {
	t.Parallel()
	const week = 7 * 24 * time.Hour
	for _, c := range []struct {
		name string
		ttl  time.Duration
		free time.Duration // after the end of its job
	}{
		{"default", 0, week},
		{"until_ended", ledger.KeyUntilEnded, 0},
		{"one_hour", time.Hour, time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l, db := newLedger(t)
			db.SetClock(t, zeroHour)
			p := keyed("k", `1`)
			p.KeyTTL = c.ttl
			first := must(l.Enqueue(t.Context(), p))(t).JobID
			replayed := func(when string) {
				t.Helper()
				if e := must(l.Enqueue(t.Context(), p))(t); e.JobID != first || !e.Replayed {
					t.Errorf("%s: got %+v, want a replay of %s", when, e, first)
				}
			}
			db.Advance(t, 2*week)
			replayed("while it waits, however long")
			held := claimOne(t, l, "w", domain.DefaultTag, 24*time.Hour)
			replayed("while it runs")
			db.Advance(t, time.Minute)
			must(l.Fail(t.Context(), "w", ledger.Failure{Held: held, Permanent: true}))(t)
			if c.free > 0 {
				db.Advance(t, c.free-time.Microsecond)
				replayed("a microsecond before its own time is over")
				db.Advance(t, time.Microsecond)
			}
			p.Args = `"another payload"`
			next := must(l.Enqueue(t.Context(), p))(t)
			if next.JobID == first || next.Replayed {
				t.Errorf("after its life: got %+v, want a new job", next)
			}
			if again := must(l.Enqueue(t.Context(), p))(t); again.JobID != next.JobID || !again.Replayed {
				t.Errorf("the key's second life: got %+v, want a replay of %s", again, next.JobID)
			}
			verified(t, l, db)
		})
	}
}

// TestKeyConflictNames the job that has the key; one that was never stored is not named.
func TestKeyConflictNames(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	first := must(l.Enqueue(t.Context(), keyed("a", 1)))(t)
	stored := jobsStored(t, db)
	for want, batch := range map[string][]ledger.EnqueueParams{
		"enqueue job " + first.JobID.String() + ": idempotency key was used for another kind or payload": {keyed("b", 1), keyed("a", 1), keyed("a", 2)},
		"enqueue: job 3: idempotency key was used for another kind or payload earlier in the batch":      {{Kind: "k"}, keyed("b", 1), {Kind: "k"}, keyed("b", 2)},
	} {
		_, err := l.EnqueueMany(t.Context(), batch)
		refused, ok := errors.AsType[*domain.RefusedError](err)
		if !ok || err.Error() != want || refused.Index != len(batch)-1 {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if n := jobsStored(t, db); n != stored {
		t.Errorf("%d rows are there, want %d", n, stored)
	}
}
