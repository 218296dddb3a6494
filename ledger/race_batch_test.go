package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// TestRaceTwins: the same closing call is sent twice at once, as after a broken connection. The second
// gets the first's answer and appends nothing; if the first is rolled back it acts itself.
func TestRaceTwins(t *testing.T) {
	t.Parallel()
	twins := []struct {
		first firstMove
		rival rivalCall
	}{
		{firstMove{"complete", "running", domain.VerbComplete, func(ctx context.Context, tx pgx.Tx, r *race) error {
			_, err := r.l.CompleteTx(ctx, tx, firstWorker, ledger.Completion{Held: r.held()})
			return err
		}}, rivalCall{"complete", domain.Command{Verb: domain.VerbComplete, Actor: firstWorker, Generation: 1}, func(ctx context.Context, l *ledger.Ledger, r *race) reply {
			return replyOf(l.Complete(ctx, firstWorker, ledger.Completion{Held: r.held()}))
		}}},
		{firstMove{"fail", "running", domain.VerbFail, func(ctx context.Context, tx pgx.Tx, r *race) error {
			return exactlyOne(ctx, tx, `SELECT event FROM jobledger.fail('w1', ARRAY[$1::uuid], ARRAY[1], ARRAY['panic'])`, r.job)
		}}, rivalCall{"fail", domain.Command{Verb: domain.VerbFail, Actor: firstWorker, Generation: 1, Class: domain.ClassPanic}, func(ctx context.Context, l *ledger.Ledger, r *race) reply {
			return replyOf(l.Fail(ctx, firstWorker, ledger.Failure{Held: r.held(), Class: domain.ClassPanic}))
		}}},
	}
	s := newRaces(t)
	for _, twin := range twins {
		for _, ending := range []string{"commit", "rollback"} {
			t.Run(twin.first.name+"/"+ending, func(t *testing.T) { s.start(t, "running").run(t, twin.first, twin.rival, ending) })
		}
	}
	verified(t, s.l, s.db)
}

// TestCancelDuringClaim: one statement that begins while a claim is open sees the job in the queue, waits
// for its row, and finds it gone. The cancel must look again and mark the running job; it must never
// answer that there is no such job, and the rest of its batch is answered as if nothing had happened.
func TestCancelDuringClaim(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	enqueue := func(tag string) uuid.UUID {
		return must(l.Enqueue(t.Context(), ledger.EnqueueParams{Kind: "test", Tag: tag}))(t).JobID
	}
	claimed, waiting := enqueue("claimed"), enqueue("waiting")
	run := running(t, l, "running", time.Minute, time.Hour)
	ended := running(t, l, "ended", time.Minute, time.Hour)
	must(l.Complete(t.Context(), "w", ledger.Completion{Held: ended}))(t)
	unknown := uuid.New()

	conn := db.Connect(t)
	tx := must(conn.Begin(t.Context()))(t)
	must(0, exactlyOne(t.Context(), tx, `SELECT job_id FROM jobledger.claim('w', ARRAY['claimed'])`))(t)
	type result struct {
		answers []ledger.Answer
		err     error
	}
	done := make(chan result, 1)
	go func() {
		a, err := l.CancelMany(context.Background(), []uuid.UUID{unknown, claimed, waiting, run.JobID, ended.JobID, claimed}, ledger.ByOperator{Actor: "boss"})
		done <- result{a, err}
	}()
	db.WaitBlockedBy(t, conn.PgConn().PID(), 1)
	must(0, tx.Commit(t.Context()))(t)
	r := <-done
	answers := must(r.answers, r.err)(t)

	for i, want := range []struct {
		job   uuid.UUID
		event domain.EventType
		err   error
	}{
		{unknown, "", domain.ErrNotFound},
		{claimed, domain.CancelRequested, nil},
		{waiting, domain.CanceledEvent, nil},
		{run.JobID, domain.CancelRequested, nil},
		{ended.JobID, "", domain.ErrEnded},
		{claimed, domain.CancelRequested, nil},
	} {
		if a := answers[i]; a.JobID != want.job || a.Event != want.event || !errors.Is(a.Err, want.err) {
			t.Errorf("answer %d is %+v, want %q %v for job %s", i, a, want.event, want.err, want.job)
		}
	}
	lastEvent(t, l, claimed, domain.CancelRequested)
	if job := must(l.Job(t.Context(), claimed))(t); job.State != domain.Running || job.CanceledBy != "boss" || job.Version != 3 {
		t.Errorf("the job is %s at version %d, canceled by %q; want one mark on the running job", job.State, job.Version, job.CanceledBy)
	}
	verified(t, l, db)
}

// TestContended: a job that has moved each time it was looked for is answered with a word that means
// "again", and not with an error of the driver. No real schedule moves it ten times in a row, so the test
// makes the function that looks for homes say so.
func TestContended(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	const liar = `CREATE OR REPLACE FUNCTION jobledger.home(job_id uuid)
		RETURNS TABLE (state text, version integer, generation integer, attempt integer, worker text,
		               lease_until timestamptz, timeout_at timestamptz, canceled_by text, outcome text)
		LANGUAGE sql VOLATILE AS $$ SELECT %s $$`
	for _, c := range []struct {
		name string
		home string
		call func(job uuid.UUID) (ledger.Answer, error)
	}{
		{"cancel", `'waiting', 1, 0, 0, NULL, NULL::timestamptz, NULL::timestamptz, NULL, NULL`, func(job uuid.UUID) (ledger.Answer, error) {
			return l.Cancel(t.Context(), job, ledger.ByOperator{})
		}},
		{"redrive", `'ended', 1, 0, 0, NULL, NULL::timestamptz, NULL::timestamptz, NULL, 'failure'`, func(job uuid.UUID) (ledger.Answer, error) {
			return l.Redrive(t.Context(), job, ledger.ByOperator{})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			must(db.Pool.Exec(t.Context(), fmt.Sprintf(liar, c.home)))(t)
			if _, err := c.call(uuid.New()); !errors.Is(err, domain.ErrContended) || !ledger.Retryable(err) {
				t.Errorf("answered with %v, want ErrContended, to be tried again", err)
			}
		})
	}
}
