package ledger_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// raceStep bounds one call of a race; only a call that waits for what never comes takes so long.
const raceStep = 10 * time.Second

// TestRaces forces every pair of calls on one job: the first holds the lock of the home row in an open
// transaction, the rival comes, and then the first commits, rolls back, or had only locked. A rival that
// has to wait is seen waiting before the first ends. What it must be told, and what must have been
// appended, is what domain.Decide says of the history at the moment when it was its turn.
func TestRaces(t *testing.T) {
	t.Parallel()
	for _, first := range firstMoves {
		t.Run(first.name, func(t *testing.T) {
			t.Parallel()
			s := newRaces(t)
			for _, rival := range rivalCalls {
				for _, ending := range []string{"commit", "rollback", "locked_only"} {
					t.Run(rival.name+"/"+ending, func(t *testing.T) { s.start(t, first.start).run(t, first, rival, ending) })
				}
			}
			verified(t, s.l, s.db)
		})
	}
}

// races is what all pairs with the same first move share: a ledger, and a connection for either side.
type races struct {
	l         *ledger.Ledger
	db        *pgtest.DB
	first     *pgx.Conn
	rival     *ledger.Ledger
	rivalPool *pgxpool.Pool
	n         int
}

func newRaces(t *testing.T) *races {
	t.Helper()
	l, db := newLedger(t)
	db.SetClock(t, zeroHour)
	must(db.Pool.Exec(t.Context(), `CREATE TABLE effect (job_id uuid)`))(t)
	pool := must(postgres.OpenPool(t.Context(), postgres.PoolConfig{URL: db.URL, MaxConns: 1}))(t)
	t.Cleanup(pool.Close)
	return &races{l: l, db: db, first: db.Connect(t), rival: must(ledger.New(pool, ledger.Config{}))(t), rivalPool: pool}
}

// race is one job in the state from which both sides start.
type race struct {
	*races
	job   uuid.UUID
	tag   string // the job is alone under it
	state string
	past  []domain.Event
}

func (r *race) held() ledger.Held { return ledger.Held{JobID: r.job, Generation: 1} }

// start brings a fresh job into a state: running under generation 1 with its lease alive or over, or
// waiting or ended with generation 1 behind it.
func (s *races) start(t *testing.T, state string) *race {
	t.Helper()
	ctx := t.Context()
	s.n++
	r := &race{races: s, tag: fmt.Sprintf("race%d", s.n), state: state}
	r.job = must(s.l.Enqueue(ctx, ledger.EnqueueParams{Kind: "race", Tag: r.tag}))(t).JobID
	if c := must(s.l.Claim(ctx, ledger.ClaimParams{Worker: firstWorker, Tags: []string{r.tag}, Lease: raceLease}))(t); len(c.Jobs) != 1 {
		t.Fatalf("claimed %+v, want the one job", c)
	}
	switch state {
	case "waiting":
		must(s.l.Release(ctx, firstWorker, r.held()))(t)
	case "expired":
		s.db.Advance(t, raceLease)
	case "ended":
		must(s.l.Fail(ctx, firstWorker, ledger.Failure{Held: r.held(), Permanent: true}))(t)
	}
	r.past = must(s.l.History(ctx, r.job))(t)
	return r
}

// run plays one race and compares every answer and every event with the domain.
func (r *race) run(t *testing.T, first firstMove, rival rivalCall, ending string) {
	t.Helper()
	tx := must(r.first.Begin(t.Context()))(t)
	defer tx.Rollback(context.WithoutCancel(t.Context())) // does nothing after the end of the race
	r.move(t, tx, first, ending)
	if rival.cmd.Verb == domain.VerbReap && r.state == "running" {
		r.db.Advance(t, raceLease) // the lease that is committed is over; a ping of the first is not
	}
	now := r.db.Now(t)

	waits := r.waits(t, rival.cmd, now)
	done := make(chan reply, 1)
	go func() { done <- r.ask(rival) }()
	if waits {
		r.db.WaitBlockedBy(t, r.first.PgConn().PID(), 1)
		now = r.db.Advance(t, time.Second) // what is appended after the wait must bear the time after it
	} else {
		r.checkPassedBy(t, rival.cmd, <-done, now)
	}
	if ending == "rollback" {
		must(0, tx.Rollback(t.Context()))(t)
	} else {
		must(0, tx.Commit(t.Context()))(t)
	}

	past := r.past
	if ending == "commit" {
		// Only the first has acted so far, or it was its turn before the rival's: its event comes next.
		past = must(r.l.History(t.Context(), r.job))(t)[:len(r.past)+1]
		if last := past[len(past)-1]; !slices.Contains(appendedBy(first.verb), last.Type) {
			t.Fatalf("after the first's commit the next event is %s, want one of %s", last.Type, first.verb)
		}
	}
	got := reply{}
	if waits {
		got = <-done
	} else {
		got = r.ask(rival)
	}
	want := must(domain.Decide(past, rival.cmd, now))(t)
	r.checkReply(t, rival.cmd, got, want)
	r.checkHistory(t, past, want)
	if rival.name == "complete_tx" {
		r.db.WaitTrue(t, "the rival's transaction has committed", `SELECT EXISTS (SELECT FROM effect WHERE job_id = $1)`, r.job)
	}
}

// move lets the first act, or only lock.
func (r *race) move(t *testing.T, tx pgx.Tx, first firstMove, ending string) {
	t.Helper()
	if ending != "locked_only" {
		must(0, first.call(t.Context(), tx, r))(t)
		return
	}
	table := map[string]string{"waiting": "job_queue", "running": "job_runtime", "expired": "job_runtime", "ended": "job_completed"}[r.state]
	must(0, exactlyOne(t.Context(), tx, `SELECT job_id FROM jobledger.`+table+` WHERE job_id = $1 FOR UPDATE`, r.job))(t)
}

// ask calls the rival, within bounds: a call that should not have waited fails the test and not the run.
func (r *race) ask(rival rivalCall) reply {
	ctx, cancel := context.WithTimeout(context.Background(), raceStep)
	defer cancel()
	return rival.call(ctx, r.rival, r)
}

// waits: claim, ping and reap pass a locked row by. The others wait where they find, in what is
// committed, a row to act on.
func (r *race) waits(t *testing.T, c domain.Command, now time.Time) bool {
	t.Helper()
	switch c.Verb {
	case domain.VerbClaim, domain.VerbPing, domain.VerbReap:
		return false
	case domain.VerbCancel:
		return r.state != "ended"
	}
	return must(domain.Decide(r.past, c, now))(t).Refusal == ""
}

// checkPassedBy tests the answer to a call that did not wait, while the first was still open: it is the
// truth about what is committed, or that the row is locked, and nothing is appended.
func (r *race) checkPassedBy(t *testing.T, c domain.Command, got reply, now time.Time) {
	t.Helper()
	want := must(domain.Decide(r.past, c, now))(t)
	locked := want.Refusal == "" && !want.Repeated
	switch {
	case locked && c.Verb == domain.VerbPing:
		want.Refusal = domain.RefusedBusy
	case locked:
		want.Refusal = domain.RefusedNotDue
	}
	want.Event = domain.Event{}
	r.checkReply(t, c, got, want)
	if got.contended != (locked && c.Verb == domain.VerbClaim) {
		t.Errorf("contended is %t while the first is open", got.contended)
	}
	if events := must(r.l.History(t.Context(), r.job))(t); len(events) != len(r.past) {
		t.Errorf("%s appended %s while the first was open", c.Verb, events[len(events)-1].Type)
	}
}

// checkReply compares what the rival was told with what the domain says. Claim and reap name no job and
// so have no reason to tell: they come back empty.
func (r *race) checkReply(t *testing.T, c domain.Command, got reply, want domain.Answer) {
	t.Helper()
	if got.err != nil {
		t.Fatalf("%s: %v", c.Verb, got.err)
	}
	if c.Verb == domain.VerbClaim || c.Verb == domain.VerbReap {
		if (got.refusal == "") != (want.Refusal == "") {
			t.Errorf("%s took %q, the domain says %q%s", c.Verb, got.event, want.Event.Type, want.Refusal)
		}
		return
	}
	if got.refusal != want.Refusal || got.repeated != want.Repeated || want.Refusal == "" && got.event != want.Event.Type {
		t.Errorf("%s was answered with %q %q repeated %t, the domain says %q %q repeated %t", c.Verb,
			got.event, got.refusal, got.repeated, want.Event.Type, want.Refusal, want.Repeated)
	}
	if home := must(r.l.Job(t.Context(), r.job))(t); got.refusal == domain.RefusedEnded && got.outcome != home.Outcome {
		t.Errorf("%s was told outcome %q, the job has %q", c.Verb, got.outcome, home.Outcome)
	}
}

// checkHistory tests that what has been appended is past and then what the domain answered, one event
// per version, each life with at most one end.
func (r *race) checkHistory(t *testing.T, past []domain.Event, want domain.Answer) {
	t.Helper()
	events := must(r.l.History(t.Context(), r.job))(t)
	if want.Event.Type != "" && !want.Repeated {
		past = append(slices.Clone(past), want.Event)
	}
	if len(events) != len(past) {
		t.Fatalf("history is %v, want %v", typesOf(events), typesOf(past))
	}
	for i := range events {
		if got, want := factOf(events[i]), factOf(past[i]); got != want {
			t.Errorf("event %d is %+v, want %+v", i+1, got, want)
		}
	}
	must(domain.Fold(events))(t)
}

func appendedBy(v domain.Verb) []domain.EventType {
	for _, row := range domain.Transitions {
		if row.Verb == v {
			return row.Events
		}
	}
	return nil
}

func typesOf(events []domain.Event) []domain.EventType {
	types := make([]domain.EventType, len(events))
	for i, e := range events {
		types[i] = e.Type
	}
	return types
}

// fact is what an event says, without its row number and the digest of a body, which is salted.
type fact struct {
	version, generation, attempt int
	kind                         domain.EventType
	at, due, leaseUntil          int64
	actor, reason                string
	class                        domain.Class
	verb                         domain.Verb
}

func factOf(e domain.Event) fact {
	return fact{e.Version, e.Generation, e.Attempt, e.Type, e.At.UnixMicro(), e.ScheduledFor.UnixMicro(), e.LeaseUntil.UnixMicro(),
		e.Actor, e.Reason, e.Class, e.Verb}
}
