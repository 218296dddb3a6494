package ledger_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// zeroHour is where hooked clocks start.
var zeroHour = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// claimOne claims exactly one job of a tag and returns its lease.
func claimOne(t *testing.T, l *ledger.Ledger, worker, tag string, lease time.Duration) ledger.Held {
	t.Helper()
	c := must(l.Claim(t.Context(), ledger.ClaimParams{Worker: worker, Tags: []string{tag}, Lease: lease}))(t)
	if len(c.Jobs) != 1 {
		t.Fatalf("worker %s claimed %+v, want one job of tag %s", worker, c, tag)
	}
	return c.Jobs[0].Held
}

// TestLeaseSequence is one job that two workers run after each other: leased for 10 s at 0, refused to
// another at 5, taken over at 11, the first one's end refused at 12, the second one's accepted at 13.
func TestLeaseSequence(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	at := func(seconds int) { db.SetClock(t, zeroHour.Add(time.Duration(seconds)*time.Second)) }
	claim := ledger.ClaimParams{Worker: "b", Lease: 10 * time.Second}

	at(0)
	id := must(l.Enqueue(ctx, ledger.EnqueueParams{Kind: "report"}))(t).JobID
	a := claimOne(t, l, "a", domain.DefaultTag, 10*time.Second)

	at(5)
	if c := must(l.Claim(ctx, claim))(t); len(c.Jobs) != 0 || c.Contended {
		t.Fatalf("at 5 another was given %+v, want nothing", c)
	}
	if taken := must(l.Reap(ctx, ledger.ReapParams{Actor: "b"}))(t); len(taken) != 0 {
		t.Fatalf("at 5 the reaper took back %+v", taken)
	}

	at(11)
	if taken := must(l.Reap(ctx, ledger.ReapParams{Actor: "b"}))(t); len(taken) != 1 || taken[0].Event != domain.Reaped || taken[0].JobID != id {
		t.Fatalf("at 11 the reaper took back %+v, want the job", taken)
	}
	b := claimOne(t, l, "b", domain.DefaultTag, 10*time.Second)
	if b.Generation != 2 {
		t.Fatalf("at 11 the second worker was given generation %d, want 2", b.Generation)
	}

	at(12)
	if _, err := l.Complete(ctx, "a", ledger.Completion{Held: a, Result: `"worker-a"`}); !errors.Is(err, domain.ErrFenced) {
		t.Fatalf("at 12 the first one's end was answered with %v, want ErrFenced", err)
	}
	if p := must(l.Ping(ctx, ledger.PingParams{Worker: "a", Pings: []ledger.Ping{{Held: a}}}))(t); !errors.Is(p[0].Err, domain.ErrFenced) {
		t.Fatalf("at 12 the first one's ping was answered with %v, want ErrFenced", p[0].Err)
	}

	at(13)
	must(l.Complete(ctx, "b", ledger.Completion{Held: b, Result: `"worker-b"`}))(t)
	job := must(l.Job(ctx, id))(t)
	if string(job.Result) != `"worker-b"` || job.Attempt != 1 || job.Restarts != 1 {
		t.Errorf("job has result %s, attempt %d, restarts %d; want worker-b's, 1 and 1", job.Result, job.Attempt, job.Restarts)
	}
	verified(t, l, db)
}

// fencedCall is one of the calls that need the lease, for several jobs of worker w at once.
type fencedCall struct {
	name string
	call func(ctx context.Context, l *ledger.Ledger, held ...ledger.Held) ([]ledger.Answer, error)
}

var fencedCalls = []fencedCall{
	{"ping", func(ctx context.Context, l *ledger.Ledger, held ...ledger.Held) ([]ledger.Answer, error) {
		pings := make([]ledger.Ping, len(held))
		for i, h := range held {
			pings[i].Held = h
		}
		return l.Ping(ctx, ledger.PingParams{Worker: "w", Pings: pings})
	}},
	{"complete", func(ctx context.Context, l *ledger.Ledger, held ...ledger.Held) ([]ledger.Answer, error) {
		ends := make([]ledger.Completion, len(held))
		for i, h := range held {
			ends[i] = ledger.Completion{Held: h, Result: `"done"`}
		}
		return l.CompleteMany(ctx, "w", ends)
	}},
	{"fail", func(ctx context.Context, l *ledger.Ledger, held ...ledger.Held) ([]ledger.Answer, error) {
		ends := make([]ledger.Failure, len(held))
		for i, h := range held {
			ends[i] = ledger.Failure{Held: h, Error: "broken"}
		}
		return l.FailMany(ctx, "w", ends)
	}},
	{"release", func(ctx context.Context, l *ledger.Ledger, held ...ledger.Held) ([]ledger.Answer, error) {
		return l.Release(ctx, "w", held...)
	}},
	{"snooze", func(ctx context.Context, l *ledger.Ledger, held ...ledger.Held) ([]ledger.Answer, error) {
		ends := make([]ledger.Snooze, len(held))
		for i, h := range held {
			ends[i] = ledger.Snooze{Held: h, Delay: time.Minute}
		}
		return l.Snooze(ctx, "w", ends...)
	}},
}

// The ends of a run that an owner can meet: each is over at that very instant.
var runEnds = []struct {
	name           string
	lease, timeout time.Duration
	want           error
}{
	{"lease_until", 10 * time.Second, time.Hour, domain.ErrLeaseOver},
	{"timeout_at", time.Hour, 10 * time.Second, domain.ErrTimedOut},
}

// TestLeaseEnd: one microsecond before its end a lease is good for everything, at its end for nothing,
// though nobody has reaped.
func TestLeaseEnd(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	for _, f := range fencedCalls {
		for _, end := range runEnds {
			t.Run(f.name+"/before_"+end.name, func(t *testing.T) {
				db.SetClock(t, zeroHour)
				held := running(t, l, f.name+"_before_"+end.name, end.lease, end.timeout)
				db.SetClock(t, zeroHour.Add(10*time.Second-time.Microsecond))
				if a := must(f.call(t.Context(), l, held))(t)[0]; a.Err != nil {
					t.Errorf("refused with %v", a.Err)
				}
			})
			t.Run(f.name+"/at_"+end.name, func(t *testing.T) {
				db.SetClock(t, zeroHour)
				held := running(t, l, f.name+"_at_"+end.name, end.lease, end.timeout)
				db.SetClock(t, zeroHour.Add(10*time.Second))
				if a := must(f.call(t.Context(), l, held))(t)[0]; !errors.Is(a.Err, end.want) {
					t.Errorf("answered with %v, want %v", a.Err, end.want)
				}
				lastEvent(t, l, held.JobID, domain.Rejected)
			})
		}
	}
	verified(t, l, db)
}

// TestLate: an owner that waited for a lock across the end of its lease is refused, though its lease was
// good when it called and nobody else has touched the row; the others of its batch end in the same call.
func TestLate(t *testing.T) {
	t.Parallel()
	for _, f := range fencedCalls[1:] { // a ping never waits: see TestLateBatch/ping_does_not_wait
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			l, db := newLedger(t)
			for _, end := range runEnds {
				db.SetClock(t, zeroHour)
				late := running(t, l, "late_"+end.name, end.lease, end.timeout)
				good := []ledger.Held{running(t, l, "good1", time.Hour, 2*time.Hour), running(t, l, "good2", time.Hour, 2*time.Hour)}
				answers := acrossLock(t, db, late.JobID, func() ([]ledger.Answer, error) {
					return f.call(context.Background(), l, good[0], late, good[1])
				}, zeroHour.Add(10*time.Second))
				if !errors.Is(answers[1].Err, end.want) {
					t.Errorf("who waited across %s was answered with %q and %v, want %v", end.name, answers[1].Event, answers[1].Err, end.want)
				}
				lastEvent(t, l, late.JobID, domain.Rejected)
				for i, h := range good {
					if a := answers[2*i]; a.Err != nil || a.JobID != h.JobID {
						t.Errorf("a batch-mate that was not late was answered with %+v", a)
					}
					if job := must(l.Job(t.Context(), h.JobID))(t); job.State == domain.Running {
						t.Errorf("a batch-mate that was not late is still %s", job.State)
					}
				}
			}
			verified(t, l, db)
		})
	}
}

// TestLateBatch/ping_does_not_wait: a locked row costs a ping nothing but this row's renewal.
func TestLateBatch(t *testing.T) {
	t.Parallel()
	t.Run("ping_does_not_wait", func(t *testing.T) {
		l, db := newLedger(t)
		db.SetClock(t, zeroHour)
		locked, free := running(t, l, "locked", 10*time.Second, time.Hour), running(t, l, "free", 10*time.Second, time.Hour)
		tx := must(db.Connect(t).Begin(t.Context()))(t)
		must(0, exactlyOne(t.Context(), tx, `SELECT job_id FROM jobledger.job_runtime WHERE job_id = $1 FOR UPDATE`, locked.JobID))(t)
		answers := must(fencedCalls[0].call(t.Context(), l, locked, free))(t)
		if !errors.Is(answers[0].Err, domain.ErrBusy) || answers[1].Err != nil {
			t.Errorf("answered with %v and %v, want ErrBusy and success", answers[0].Err, answers[1].Err)
		}
		if job := must(l.Job(t.Context(), locked.JobID))(t); !job.LeaseUntil.Equal(zeroHour.Add(10 * time.Second)) {
			t.Errorf("the busy job's lease ends at %s, want it as it was", job.LeaseUntil)
		}
		must(0, tx.Rollback(t.Context()))(t)
		verified(t, l, db)
	})
}

// running returns the lease of a fresh job, alone under its tag, that worker w runs.
func running(t *testing.T, l *ledger.Ledger, tag string, lease, timeout time.Duration) ledger.Held {
	t.Helper()
	must(l.Enqueue(t.Context(), ledger.EnqueueParams{Kind: "test", Tag: tag, Policy: domain.Policy{Timeout: timeout, RestartLimit: 3}}))(t)
	return claimOne(t, l, "w", tag, lease)
}

// acrossLock makes the call wait for the home row of a running job, moves the clock while it waits, and
// returns its answers.
func acrossLock(t *testing.T, db *pgtest.DB, job uuid.UUID, call func() ([]ledger.Answer, error), until time.Time) []ledger.Answer {
	t.Helper()
	conn := db.Connect(t)
	tx := must(conn.Begin(t.Context()))(t)
	must(0, exactlyOne(t.Context(), tx, `SELECT job_id FROM jobledger.job_runtime WHERE job_id = $1 FOR UPDATE`, job))(t)
	type result struct {
		answers []ledger.Answer
		err     error
	}
	done := make(chan result, 1)
	go func() {
		answers, err := call()
		done <- result{answers, err}
	}()
	db.WaitBlockedBy(t, conn.PgConn().PID(), 1)
	db.SetClock(t, until)
	must(0, tx.Rollback(t.Context()))(t)
	r := <-done
	return must(r.answers, r.err)(t)
}

// lastEvent tests what was appended last to a job.
func lastEvent(t *testing.T, l *ledger.Ledger, job uuid.UUID, want domain.EventType) {
	t.Helper()
	if events := must(l.History(t.Context(), job))(t); events[len(events)-1].Type != want {
		t.Errorf("history is %v, want it to end with %s", typesOf(events), want)
	}
}
