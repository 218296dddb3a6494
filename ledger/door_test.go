package ledger_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// TestExists: an id belongs to one job for good, also when the events of its first life lie in another
// partition, whose index knows nothing of the newest one.
func TestExists(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	id := uuid.New()
	params := ledger.EnqueueParams{Kind: "k", ID: id}
	must(l.Enqueue(ctx, params))(t)
	held := must(l.Claim(ctx, ledger.ClaimParams{Worker: "w"}))(t).Jobs[0].Held
	must(l.Complete(ctx, "w", ledger.Completion{Held: held}))(t)
	must(db.Pool.Exec(ctx, `SELECT setval('jobledger.job_event_seq', 16777216)`))(t)
	_, err := l.EnqueueMany(ctx, []ledger.EnqueueParams{{Kind: "k"}, params})
	var refused *domain.RefusedError
	if !errors.Is(err, domain.ErrExists) || !errors.As(err, &refused) || refused.Index != 1 {
		t.Errorf("a batch with the id of a job that has ended was answered with %v, want ErrExists of element 1", err)
	}
	if jobs := must(l.Read().Counts(ctx))(t); len(jobs) != 1 || jobs[0].Jobs != 1 {
		t.Errorf("the ledger has %+v, want the first job alone", jobs)
	}
	verified(t, l, db)
}

// TestExistsAtOnce: two transactions that enqueue the same id; the second waits for the first.
func TestExistsAtOnce(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	params := ledger.EnqueueParams{Kind: "k", ID: uuid.New()}
	tx := must(db.Pool.Begin(ctx))(t)
	must(l.EnqueueTx(ctx, tx, params))(t)
	second := make(chan error, 1)
	go func() {
		_, err := l.Enqueue(ctx, params)
		second <- err
	}()
	db.WaitBlockedBy(t, tx.Conn().PgConn().PID(), 1)
	must(0, tx.Commit(ctx))(t)
	if err := <-second; !errors.Is(err, domain.ErrExists) {
		t.Errorf("the second was answered with %v, want ErrExists", err)
	}
	verified(t, l, db)
}

// TestSQLOutputs: what a caller of the SQL functions reports is stored whatever it is, and can be read.
func TestSQLOutputs(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	for result, want := range map[string]string{
		`not json`:                    `"not json"`,
		`{"a": "\u0000"}`:             `"{\"a\": \"\\u0000\"}"`,
		`{"a":  1.10}`:                `{"a":  1.10}`,
		`"` + big(2<<20) + `"`:        "",
		strings.Repeat("\x01", 2<<20): "",
	} {
		held := running(t, l, "k", 0, 0)
		var event string
		must(0, db.Pool.QueryRow(ctx, `SELECT event FROM jobledger.complete('w', ARRAY[$1]::uuid[], ARRAY[$2]::int[], ARRAY[$3])`,
			held.JobID, held.Generation, result).Scan(&event))(t)
		job := must(l.Job(ctx, held.JobID))(t)
		if err := domain.CheckJSON("result", job.Result); err != nil || len(job.Result) > domain.MaxArgsBytes {
			t.Errorf("result %.20q is stored as %.60s (%d bytes): %v", result, job.Result, len(job.Result), err)
		}
		if want != "" && string(job.Result) != want {
			t.Errorf("result %q is stored as %s, want %s", result, job.Result, want)
		}
	}
	held := running(t, l, "k", 0, 0)
	for range 2 { // the repetition is recognised although the text was cut
		var event string
		must(0, db.Pool.QueryRow(ctx, `SELECT event FROM jobledger.fail('w', ARRAY[$1]::uuid[], ARRAY[$2]::int[], errors => ARRAY[$3])`,
			held.JobID, held.Generation, big(1<<20)).Scan(&event))(t)
	}
	if job := must(l.Job(ctx, held.JobID))(t); len(job.Error) > domain.MaxErrorBytes || !strings.Contains(job.Error, "left out") {
		t.Errorf("the error has %d bytes, want at most 64 KiB with a mark", len(job.Error))
	}
	verified(t, l, db)
}

func big(n int) string { return strings.Repeat("x", n) }

// TestPolicyNewerThanSnapshot: a policy that was added after a transaction's snapshot is no bad input;
// the transaction has to be run again.
func TestPolicyNewerThanSnapshot(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	tx := must(db.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}))(t)
	defer func() { _ = tx.Rollback(ctx) }()
	must(tx.Exec(ctx, `SELECT FROM jobledger.policy`))(t)
	params := ledger.EnqueueParams{Kind: "k", Policy: domain.Policy{MaxAttempts: 7}}
	must(l.Enqueue(ctx, params))(t)
	_, err := l.EnqueueTx(ctx, tx, params)
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "40001" || !ledger.Retryable(err) {
		t.Errorf("got %v, want a serialization failure", err)
	}
}

// TestLongerArrays: an array that is longer than kinds is bad input, not a job without a kind.
func TestLongerArrays(t *testing.T) {
	t.Parallel()
	_, db := newLedger(t)
	for _, call := range []string{
		`enqueue_many(ARRAY['a'], ARRAY['1', '2'])`,
		`enqueue_many(ARRAY['a'], keys => ARRAY['k', 'l'])`,
		`enqueue_many(ARRAY['a'], jobs => ARRAY[gen_random_uuid(), gen_random_uuid()])`,
		`enqueue_many(ARRAY['a'], trigger_refs => ARRAY['a', 'b'])`,
	} {
		_, err := db.Pool.Exec(t.Context(), "SELECT * FROM jobledger."+call)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "JL400" {
			t.Errorf("%s: got %v, want JL400", call, err)
		}
	}
}

// TestOddArrays: elements are found by their number, from 1, and there is one for each job. Arrays of
// another shape would pass the checks unseen.
func TestOddArrays(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	held := running(t, l, "k", 0, 0)
	for _, call := range []string{
		`enqueue_many('{k}', args => '[0:0]={"not json"}'::text[])`,
		`enqueue_many('{k}', facts => ARRAY[ARRAY['{"labels":{"a":"\u0000"}}']])`,
		`enqueue_many('[2:2]={k}'::text[])`,
		`enqueue_many(NULL)`,
		`complete('w', ARRAY[$1::uuid], '{1}', results => ARRAY[ARRAY['notjson']])`,
		`complete('w', ARRAY[$1::uuid], '{1}', results => '{1,2}')`,
		`complete('w', ARRAY[ARRAY[$1::uuid]], '{1}')`,
		`ping('w', ARRAY[$1::uuid], '{1}', progress => '{1,2}')`,
		`snooze('w', ARRAY[$1::uuid], '{1}', NULL)`,
		`fail('w', ARRAY[$1::uuid], '{1}', errors => '[0:0]={x}'::text[])`,
		`claim('w', '{t}', 1, '-1 year 360 days 1 hour')`,
		`extend_events(65)`,
	} {
		args := []any{held.JobID}
		if !strings.Contains(call, "$1") {
			args = nil
		}
		_, err := db.Pool.Exec(t.Context(), "SELECT * FROM jobledger."+call, args...)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "JL400" {
			t.Errorf("%s: got %v, want JL400", call, err)
		}
	}
	verified(t, l, db)
}

// TestManySubstitutes: a result of nothing but escapes that cannot be stored is cleaned in one pass; in
// time that grows with its square it would cost the worker the leases of its other jobs.
func TestManySubstitutes(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	held := running(t, l, "k", 0, 0)
	const escapes = 170_000
	must(l.Complete(t.Context(), "w", ledger.Completion{Held: held, Result: json.RawMessage(`"` + strings.Repeat(`\u0000`, escapes) + `"`)}))(t)
	if job := must(l.Job(t.Context(), held.JobID))(t); string(job.Result) != `"`+strings.Repeat(`\ufffd`, escapes)+`"` {
		t.Errorf("stored %.40s (%d bytes)", job.Result, len(job.Result))
	}
	verified(t, l, db)
}
