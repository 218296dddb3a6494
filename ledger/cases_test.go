package ledger_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// gateLock is the advisory lock at which a gated reaper waits.
const gateLock = 17

// gatedClock is the hooked clock, but a session whose test.gate is closed waits once for the gate when it
// first reads the clock: a reap does so inside its one statement, after its snapshot was taken and before
// it locks anything.
const gatedClock = `
CREATE OR REPLACE FUNCTION jobledger.clock() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF current_setting('test.gate', true) = 'closed' THEN
        PERFORM set_config('test.gate', 'passed', false);
        PERFORM pg_advisory_lock_shared(17), pg_advisory_unlock_shared(17);
    END IF;
    RETURN (SELECT 'epoch'::timestamptz + last_value * interval '1 microsecond' FROM jobledger.test_clock);
END
$$`

// TestCase01_ReaperWithAStaleSnapshot: the reaper has read that a lease is over, and before it writes the
// job moves on. It must then write nothing for the generation that it saw.
func TestCase01_ReaperWithAStaleSnapshot(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		meanwhile func(t *testing.T, l *ledger.Ledger, db *pgtest.DB, held ledger.Held)
		want      []domain.EventType // after enqueued and claimed
		state     domain.State
	}{
		// The lease is closed at its end, so the owner can only be in time if the clock was set back.
		{"completed", func(t *testing.T, l *ledger.Ledger, db *pgtest.DB, held ledger.Held) {
			db.Advance(t, -time.Microsecond)
			must(l.Complete(t.Context(), "w", ledger.Completion{Held: held}))(t)
			db.Advance(t, time.Microsecond)
		}, []domain.EventType{domain.Completed}, domain.Ended},
		{"pinged", func(t *testing.T, l *ledger.Ledger, db *pgtest.DB, held ledger.Held) {
			db.Advance(t, -time.Microsecond)
			must(fencedCalls[0].call(t.Context(), l, held))(t)
			db.Advance(t, time.Microsecond)
		}, []domain.EventType{domain.Pinged}, domain.Running},
		{"completed_too_late", func(t *testing.T, l *ledger.Ledger, _ *pgtest.DB, held ledger.Held) {
			if _, err := l.Complete(t.Context(), "w", ledger.Completion{Held: held}); !errors.Is(err, domain.ErrLeaseOver) {
				t.Errorf("complete was answered with %v, want ErrLeaseOver", err)
			}
		}, []domain.EventType{domain.Rejected, domain.Reaped}, domain.Waiting},
		{"taken_over", func(t *testing.T, l *ledger.Ledger, _ *pgtest.DB, _ ledger.Held) {
			must(l.Reap(t.Context(), ledger.ReapParams{Actor: "other"}))(t)
			claimOne(t, l, "other", "case1", time.Minute)
		}, []domain.EventType{domain.Reaped, domain.Claimed}, domain.Running},
		{"marked_for_cancel", func(t *testing.T, l *ledger.Ledger, _ *pgtest.DB, held ledger.Held) {
			must(l.Cancel(t.Context(), held.JobID, ledger.ByOperator{Reason: "enough"}))(t)
		}, []domain.EventType{domain.CancelRequested, domain.CanceledEvent}, domain.Ended},
		{"canceled", func(t *testing.T, l *ledger.Ledger, _ *pgtest.DB, held ledger.Held) {
			must(l.Cancel(t.Context(), held.JobID, ledger.ByOperator{Reason: "enough"}))(t)
			must(l.Reap(t.Context(), ledger.ReapParams{Actor: "other"}))(t)
		}, []domain.EventType{domain.CancelRequested, domain.CanceledEvent}, domain.Ended},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l, db := newLedger(t)
			db.SetClock(t, zeroHour)
			held := running(t, l, "case1", 10*time.Second, time.Hour)
			db.SetClock(t, zeroHour.Add(10*time.Second))
			must(db.Pool.Exec(t.Context(), gatedClock))(t) // which only Advance leaves in place
			reaper, done := gatedReaper(t, db), make(chan error, 1)
			gate := db.Connect(t)
			must(gate.Exec(t.Context(), `SELECT pg_advisory_lock($1)`, gateLock))(t)
			go func() {
				_, err := reaper.Reap(context.Background(), ledger.ReapParams{Actor: "stale"})
				done <- err
			}()
			db.WaitBlockedBy(t, gate.PgConn().PID(), 1)
			c.meanwhile(t, l, db, held)
			must(gate.Exec(t.Context(), `SELECT pg_advisory_unlock($1)`, gateLock))(t)
			must(0, <-done)(t)

			events := must(l.History(t.Context(), held.JobID))(t)
			got := typesOf(events)[2:]
			if len(got) != len(c.want) || got[0] != c.want[0] || got[len(got)-1] != c.want[len(got)-1] {
				t.Errorf("history goes on with %v, want %v", got, c.want)
			}
			if job := must(l.Job(t.Context(), held.JobID))(t); job.State != c.state || job.ErrorVersion != 0 {
				t.Errorf("the job is %s with error version %d, want %s and none", job.State, job.ErrorVersion, c.state)
			}
			verified(t, l, db)
		})
	}
}

// gatedReaper is a ledger whose one connection stops at the gate.
func gatedReaper(t *testing.T, db *pgtest.DB) *ledger.Ledger {
	t.Helper()
	pool := must(postgres.OpenPool(t.Context(), postgres.PoolConfig{URL: db.URL, MaxConns: 1}))(t)
	t.Cleanup(pool.Close)
	must(pool.Exec(t.Context(), `SET test.gate = 'closed'`))(t)
	return must(ledger.New(pool, ledger.Config{}))(t)
}

// TestCase01_LockedRow: a row that another session has locked is passed over, and taken back later.
func TestCase01_LockedRow(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	db.SetClock(t, zeroHour)
	locked, free := running(t, l, "locked", 10*time.Second, time.Hour), running(t, l, "free", 10*time.Second, time.Hour)
	db.Advance(t, 10*time.Second)
	tx := must(db.Connect(t).Begin(t.Context()))(t)
	must(0, exactlyOne(t.Context(), tx, `SELECT job_id FROM jobledger.job_runtime WHERE job_id = $1 FOR UPDATE`, locked.JobID))(t)
	if a := must(l.Reap(t.Context(), ledger.ReapParams{Actor: "r"}))(t); len(a) != 1 || a[0].JobID != free.JobID {
		t.Errorf("reaped %+v, want the free one alone", a)
	}
	must(0, tx.Rollback(t.Context()))(t)
	if a := must(l.Reap(t.Context(), ledger.ReapParams{Actor: "r"}))(t); len(a) != 1 || a[0].JobID != locked.JobID {
		t.Errorf("reaped %+v, want the one that had been locked", a)
	}
	verified(t, l, db)
}

// TestCase02_SameWorkerName: a worker loses its lease and claims the same job again under the same name.
// Every call that shows the first generation is refused and changes nothing but to leave one rejected
// event per verb.
func TestCase02_SameWorkerName(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	db.SetClock(t, zeroHour)
	old := running(t, l, "case2", 10*time.Second, time.Hour)
	db.Advance(t, 10*time.Second)
	must(l.Reap(t.Context(), ledger.ReapParams{Actor: "reaper"}))(t)
	current := claimOne(t, l, "w", "case2", time.Minute)
	if current.JobID != old.JobID || current.Generation != old.Generation+1 {
		t.Fatalf("claimed %+v, want the next generation of %+v", current, old)
	}
	db.Advance(t, time.Second)
	before := must(l.Job(t.Context(), old.JobID))(t)
	for i, f := range fencedCalls {
		for range 2 { // a caller that never gives up cannot fill the ledger
			if a := must(f.call(t.Context(), l, old))(t)[0]; !errors.Is(a.Err, domain.ErrFenced) || a.Repeated {
				t.Errorf("%s of generation 1 was answered with %+v, want ErrFenced", f.name, a)
			}
		}
		after := must(l.Job(t.Context(), old.JobID))(t)
		if after.Version != before.Version+i+1 {
			t.Errorf("%s of generation 1 took the job to version %d, want one rejected event", f.name, after.Version)
		}
		if after.State != domain.Running || !after.LeaseUntil.Equal(before.LeaseUntil) || after.Generation != 2 || after.Attempt != before.Attempt {
			t.Errorf("%s of generation 1 left the job as %+v", f.name, after)
		}
		last := must(l.History(t.Context(), old.JobID))(t)[after.Version-1]
		if last.Type != domain.Rejected || string(last.Verb) != f.name || last.Generation != 1 || last.Reason != string(domain.RefusedFenced) {
			t.Errorf("%s left %+v, want a rejected event", f.name, last)
		}
	}
	if a := must(fencedCalls[1].call(t.Context(), l, current))(t)[0]; a.Err != nil {
		t.Errorf("the second generation's end was refused: %v", a.Err)
	}
	verified(t, l, db)
}

// TestCase02_RestartUnderTheSameName: the pings of a new process keep only what it claimed itself.
func TestCase02_RestartUnderTheSameName(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	db.SetClock(t, zeroHour)
	left := running(t, l, "left", 10*time.Second, time.Hour)
	kept := running(t, l, "kept", 10*time.Second, time.Hour)
	for range 2 {
		db.Advance(t, 5*time.Second)
		must(l.Ping(t.Context(), ledger.PingParams{Worker: "w", Lease: 10 * time.Second, Pings: []ledger.Ping{{Held: kept}}}))(t)
	}
	if a := must(l.Reap(t.Context(), ledger.ReapParams{Actor: "r"}))(t); len(a) != 1 || a[0].JobID != left.JobID {
		t.Errorf("reaped %+v, want the lease of the old process alone", a)
	}
	verified(t, l, db)
}

// TestCase08_LongTransaction: a lease taken, and a job enqueued, at the end of a long transaction count
// from the call and not from BEGIN.
func TestCase08_LongTransaction(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	var called, until, started, enqueued, now time.Time
	var job uuid.UUID
	must(0, pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT clock_timestamp() FROM pg_sleep(0.3)`).Scan(&called); err != nil {
			return err
		}
		jobs, err := l.EnqueueTx(ctx, tx, ledger.EnqueueParams{Kind: "slow"})
		if err != nil {
			return err
		}
		const claim = `SELECT job_id, started_at, lease_until, enqueued_at, clock_timestamp() FROM jobledger.claim('w', ARRAY['default'], 1, '1 second')`
		if err := tx.QueryRow(ctx, claim).Scan(&job, &started, &until, &enqueued, &now); err != nil {
			return err
		}
		if job != jobs[0].JobID {
			t.Errorf("claimed %s, want the job just enqueued", job)
		}
		return nil
	}))(t)
	if started.Before(called) || enqueued.Before(called) || now.Before(started) || until.Sub(started) != time.Second {
		t.Errorf("called at %s: enqueued at %s, started at %s, leased until %s; want all from the call on", called, enqueued, started, until)
	}
	if j := must(l.Job(ctx, job))(t); j.ScheduledFor.Before(called) || !j.LeaseUntil.Equal(until) {
		t.Errorf("the job is due at %s and leased until %s", j.ScheduledFor, j.LeaseUntil)
	}
	verified(t, l, db)
}

// TestCase08_ClockSetBack: the database's clock goes back by an hour while jobs are pinged. No pinged job
// is taken back, and a lease that is not renewed ends after its own length.
func TestCase08_ClockSetBack(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	db.SetClock(t, zeroHour)
	held := running(t, l, "case8", 30*time.Second, time.Hour)
	for i := range 6 {
		db.Advance(t, 10*time.Second)
		if i == 3 {
			db.Advance(t, -time.Hour)
		}
		a := must(l.Ping(t.Context(), ledger.PingParams{Worker: "w", Lease: 30 * time.Second, Pings: []ledger.Ping{{Held: held}}}))(t)[0]
		if a.Err != nil || a.LeaseUntil.Sub(a.At) != 30*time.Second {
			t.Fatalf("ping %d was answered with %+v, want a lease of its full length", i, a)
		}
		if a := must(l.Reap(t.Context(), ledger.ReapParams{Actor: "r"}))(t); len(a) != 0 {
			t.Fatalf("a pinged job was taken back: %+v", a)
		}
	}
	db.Advance(t, 30*time.Second-time.Microsecond)
	if a := must(l.Reap(t.Context(), ledger.ReapParams{Actor: "r"}))(t); len(a) != 0 {
		t.Errorf("a microsecond before the end of the last lease: reaped %+v", a)
	}
	db.Advance(t, time.Microsecond)
	if a := must(l.Reap(t.Context(), ledger.ReapParams{Actor: "r"}))(t); len(a) != 1 || a[0].Event != domain.Reaped {
		t.Errorf("at the end of the last lease: reaped %+v, want the job", a)
	}
	verified(t, l, db)
}

// TestCase08_ClockOfTheProcess: a process whose own clock is decades behind takes part as any other.
func TestCase08_ClockOfTheProcess(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	calls, called := make(chan func(*ledger.Ledger)), make(chan struct{})
	go func() {
		for f := range calls {
			f(l)
			called <- struct{}{}
		}
	}()
	defer close(calls)
	inTime := func(f func(*ledger.Ledger)) { calls <- f; <-called }

	synctest.Test(t, func(t *testing.T) { // where it is midnight of 1 January 2000
		if time.Now().Year() != 2000 {
			t.Fatalf("the process's clock says %s", time.Now())
		}
		pool := must(pgxpool.New(t.Context(), db.URL))(t)
		defer pool.Close()
		behindLedger := must(ledger.New(pool, ledger.Config{}))(t)
		behind := func(f func(*ledger.Ledger)) { f(behindLedger) }
		for _, side := range []struct{ enqueuer, worker func(func(*ledger.Ledger)) }{{behind, inTime}, {inTime, behind}} {
			playLife(t, side.enqueuer, side.worker)
		}
	})
	verified(t, l, db)
}

// playLife has one process enqueue a job and another run it, while both ping and reap.
func playLife(t *testing.T, enqueuer, worker func(func(*ledger.Ledger))) {
	t.Helper()
	ctx := context.Background()
	enqueuer(func(l *ledger.Ledger) {
		if _, err := l.Enqueue(ctx, ledger.EnqueueParams{Kind: "test"}); err != nil {
			t.Error(err)
		}
	})
	var held ledger.Held
	worker(func(l *ledger.Ledger) {
		c, err := l.Claim(ctx, ledger.ClaimParams{Worker: "w", Lease: 30 * time.Second})
		if err != nil || len(c.Jobs) != 1 || c.Jobs[0].Lease != 30*time.Second {
			t.Errorf("claimed %+v and %v, want a job due now with its full lease", c, err)
			return
		}
		held = c.Jobs[0].Held
	})
	for _, process := range []func(func(*ledger.Ledger)){enqueuer, worker} {
		process(func(l *ledger.Ledger) {
			if a, err := l.Reap(ctx, ledger.ReapParams{Actor: "r"}); err != nil || len(a) != 0 {
				t.Errorf("a live lease was taken back: %+v, %v", a, err)
			}
			if a, err := fencedCalls[0].call(ctx, l, held); err != nil || a[0].Err != nil {
				t.Errorf("a ping was answered with %+v, %v", a, err)
			}
		})
	}
	worker(func(l *ledger.Ledger) {
		if _, err := l.Complete(ctx, "w", ledger.Completion{Held: held}); err != nil {
			t.Error(err)
		}
	})
}
