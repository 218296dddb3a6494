package modeltest

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

// scenario is a race that is forced at its decisive point. It returns what it found instead of failing, so
// that the mutant test can run it, too.
type scenario struct {
	name string
	run  func(g *ground) error
}

var scenarios = []scenario{
	{"late_complete", lateOwner(domain.VerbComplete)},
	{"late_fail", lateOwner(domain.VerbFail)},
	{"late_release", lateOwner(domain.VerbRelease)},
	{"late_snooze", lateOwner(domain.VerbSnooze)},
	{"late_by_timeout", lateByTimeout},
	{"reason_after_the_move", reasonAfterMove},
	{"repetition_after_the_move", repetitionAfterMove},
	{"cancel_finds_the_moved_job", cancelOfMoved},
	{"redrive_finds_the_moved_job", redriveOfMoved},
	{"redrive_sent_late", redriveSentLate},
	{"rejected_only_as_judged", rejectedAsJudged},
	{"ping_never_waits", pingNeverWaits},
}

// TestForced runs each race once on the functions as they are.
func TestForced(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			if err := s.run(newGround(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// newBuilder is a job to be, with a tag of its own.
func newBuilder(g *ground) *builder {
	return &builder{ground: g, lease: tableLease, params: ledger.EnqueueParams{Kind: "race", Tag: "t-" + uuid.NewString(), Policy: domain.DefaultPolicy}}
}

// lateOwner: the owner's call waits for a row that somebody has merely locked, across the very instant at
// which the lease ends. It has to be refused, although its guard was tested in time.
func lateOwner(verb domain.Verb) func(*ground) error {
	return func(g *ground) error {
		b := newBuilder(g)
		return g.lateCall(b, callFor(cell{verb: verb, relation: "current"}, b.run()))
	}
}

// lateByTimeout is the same with the end of the time-out.
func lateByTimeout(g *ground) error {
	b := newBuilder(g).timeout(tableLease)
	b.lease = time.Hour
	return g.lateCall(b, callFor(cell{verb: domain.VerbComplete, relation: "current"}, b.run()))
}

func (g *ground) lateCall(b *builder, k call) error {
	lock := func(tx pgx.Tx) error {
		_, err := tx.Exec(g.ctx, `SELECT FROM jobledger.job_runtime WHERE job_id = $1 FOR UPDATE`, b.id)
		return err
	}
	return g.raced(b, k, lock, func() { b.advance(tableLease) }, false)
}

// reasonAfterMove: the owner's second call waits while the first one completes the job. The snapshot of its
// guard still has the job running; the reason must come from a newer one.
func reasonAfterMove(g *ground) error {
	b := newBuilder(g)
	return g.raced(b, callFor(cell{verb: domain.VerbComplete, relation: "other_body"}, b.run()), b.completeIn, nil, true)
}

// repetitionAfterMove: the same with the same result, which is answered like the first call.
func repetitionAfterMove(g *ground) error {
	b := newBuilder(g)
	return g.raced(b, callFor(cell{verb: domain.VerbComplete, relation: "current"}, b.run()), b.completeIn, nil, true)
}

func (b *builder) completeIn(tx pgx.Tx) error {
	_, err := b.l.CompleteTx(b.ctx, tx, owner, ledger.Completion{Held: b.held, Result: someBody})
	return err
}

// cancelOfMoved: cancel waits for a running job that is released meanwhile; its first look found the job
// in no home.
func cancelOfMoved(g *ground) error {
	b := newBuilder(g)
	return g.raced(b, callFor(cell{verb: domain.VerbCancel, relation: "-"}, b.run()), func(tx pgx.Tx) error {
		_, err := tx.Exec(g.ctx, `SELECT jobledger.release($1, ARRAY[$2::uuid], ARRAY[$3::int])`, owner, b.id, b.held.Generation)
		return err
	}, nil, true)
}

// redriveOfMoved: redrive waits for a job that somebody else redrives meanwhile.
func redriveOfMoved(g *ground) error {
	b := newBuilder(g)
	b.run().expect(domain.Failed, b.failForGood)
	return g.raced(b, callFor(cell{verb: domain.VerbRedrive, relation: "-"}, b), func(tx pgx.Tx) error {
		_, err := tx.Exec(g.ctx, `SELECT jobledger.redrive(ARRAY[$1::uuid], 'first')`, b.id)
		return err
	}, nil, true)
}

// redriveSentLate: a redrive is sent again when the job has run and failed anew. It must not start it twice.
func redriveSentLate(g *ground) error {
	b := newBuilder(g)
	b.run().expect(domain.Failed, b.failForGood)
	k := callFor(cell{verb: domain.VerbRedrive, relation: "-"}, b)
	b.expect(domain.Redriven, func() (ledger.Answer, error) { return only(k.make(g.ctx, b.l)) })
	b.claim().expect(domain.Failed, b.failForGood)
	if b.err != nil {
		return b.err
	}
	w, err := g.watch(b.id)
	if err != nil {
		return err
	}
	_, err = g.observe(k, b, w)
	return err
}

// raced lets first act in an open transaction, makes the call, sees it wait, lets happen what happens
// meanwhile, and ends the transaction. The answer, and what is stored, have to be what the domain decides
// on what the transaction left, at the time when it ended.
func (g *ground) raced(b *builder, k call, first func(pgx.Tx) error, meanwhile func(), commit bool) error {
	if b.err != nil {
		return b.err
	}
	before, _, err := g.past(b.id)
	if err != nil {
		return err
	}
	conn := g.db.Connect(g.t)
	tx, err := conn.Begin(g.ctx)
	if err != nil {
		return err
	}
	if err := first(tx); err != nil {
		return errors.Join(err, tx.Rollback(g.ctx))
	}
	type answer struct {
		reply *reply
		err   error
	}
	c := k.command(k.items[0])
	done := make(chan answer, 1)
	go func() {
		r, err := g.answer(k, c, b.id)
		done <- answer{r, err}
	}()
	if err := g.waits(conn, func() bool { return len(done) > 0 }); err != nil {
		return errors.Join(err, (<-done).err, tx.Rollback(g.ctx))
	}
	if meanwhile != nil {
		meanwhile()
	}
	moved := 0
	if commit {
		moved, err = 1, tx.Commit(g.ctx)
	} else {
		err = tx.Rollback(g.ctx)
	}
	got := <-done
	if err := errors.Join(err, got.err); err != nil {
		return err
	}
	return g.judge(b, k, got.reply, len(before)+moved)
}

// waitTimeout bounds how long a call may take to come to the lock.
const waitTimeout = 30 * time.Second

// waits returns once somebody waits for a lock of this connection, and with an error if the call has been
// answered before that.
func (g *ground) waits(holder *pgx.Conn, answered func() bool) error {
	ctx, cancel := context.WithTimeout(g.ctx, waitTimeout)
	defer cancel()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for range ticker.C {
		var blocked bool
		err := g.db.Pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))`,
			int32(holder.PgConn().PID())).Scan(&blocked)
		switch {
		case err != nil:
			return fmt.Errorf("wait for the call to be blocked: %w", err)
		case blocked:
			return nil
		case answered():
			return errors.New("the call was answered without waiting for the lock")
		}
	}
	return nil
}

// judge compares an answer that was given when the job had n events.
func (g *ground) judge(b *builder, k call, got *reply, n int) error {
	events, texts, err := g.past(b.id)
	if err != nil {
		return err
	}
	if len(events) < n {
		return fmt.Errorf("the job has %d events, want at least %d", len(events), n)
	}
	past := events[:n:n]
	was, err := domain.Fold(past)
	if err != nil {
		return err
	}
	c := k.command(k.items[0])
	want, err := domain.Decide(past, c, g.now)
	if err != nil {
		return err
	}
	h := &history{events: past, job: was, bodies: bodies{}}
	for version, text := range texts {
		if version <= n {
			h.bodies[version] = text
		}
	}
	if want.Event.Type != "" && !want.Repeated {
		if err := newModel(g.now).append(h, want.Event, k.stored(k.items[0])); err != nil {
			return err
		}
	}
	if err := sameReply(k, got, expected(was, h.job, c, want)); err != nil {
		return err
	}
	if err := sameEvents(g.ctx, g.db, g.l, b.id, h.events, h.bodies); err != nil {
		return err
	}
	job, err := g.l.Job(g.ctx, b.id)
	if err != nil {
		return err
	}
	return sameHome(job, h.job)
}

// pingNeverWaits: a ping of two leases, one of them locked, extends the other and answers busy for the
// locked one. It may not wait; the lock time-out is there to end a wait, and its length decides nothing.
func pingNeverWaits(g *ground) error {
	locked, free := newBuilder(g).run(), newBuilder(g).run()
	if err := errors.Join(locked.err, free.err); err != nil {
		return err
	}
	tx, err := g.db.Connect(g.t).Begin(g.ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(g.ctx) //nolint:errcheck // the connection is closed at the end of the test
	if _, err := tx.Exec(g.ctx, `SELECT FROM jobledger.job_runtime WHERE job_id = $1 FOR UPDATE`, locked.id); err != nil {
		return err
	}
	conn := g.db.Connect(g.t)
	if _, err := conn.Exec(g.ctx, `SET lock_timeout = '500ms'`); err != nil {
		return err
	}
	var answers []string
	err = conn.QueryRow(g.ctx, `SELECT array_agg(coalesce(refusal, event) ORDER BY ord) FROM jobledger.ping($1, ARRAY[$2, $3]::uuid[], ARRAY[2, 2])`,
		owner, locked.id, free.id).Scan(&answers)
	if err != nil {
		return err
	}
	return same("answers", answers, []string{string(domain.RefusedBusy), string(domain.Pinged)})
}
