package ledger_test

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// The workers and leases of a race. Every job begins with generation 1 given to firstWorker.
const (
	firstWorker = "w1"
	rivalWorker = "w2"
	raceLease   = 10 * time.Second
	pingLease   = time.Minute
)

// firstMove is a call that acts in an open transaction and so holds the lock of the home row, with the
// state of the job that makes it possible.
type firstMove struct {
	name  string
	start string
	verb  domain.Verb
	call  func(ctx context.Context, tx pgx.Tx, r *race) error
}

var firstMoves = []firstMove{
	{"claim", "waiting", domain.VerbClaim, func(ctx context.Context, tx pgx.Tx, r *race) error {
		return exactlyOne(ctx, tx, `SELECT job_id FROM jobledger.claim('w3', ARRAY[$1]) WHERE job_id IS NOT NULL`, r.tag)
	}},
	{"ping", "running", domain.VerbPing, func(ctx context.Context, tx pgx.Tx, r *race) error {
		return exactlyOne(ctx, tx, `SELECT event FROM jobledger.ping('w1', ARRAY[$1::uuid], ARRAY[1], $2) WHERE refusal IS NULL`, r.job, pingLease)
	}},
	{"complete", "running", domain.VerbComplete, func(ctx context.Context, tx pgx.Tx, r *race) error {
		return exactlyOne(ctx, tx, `SELECT event FROM jobledger.complete('w1', ARRAY[$1::uuid], ARRAY[1], ARRAY['"first"']) WHERE refusal IS NULL`, r.job)
	}},
	{"complete_tx", "running", domain.VerbComplete, func(ctx context.Context, tx pgx.Tx, r *race) error {
		_, err := r.l.CompleteTx(ctx, tx, firstWorker, ledger.Completion{Held: r.held(), Result: `"first"`})
		return err
	}},
	{"fail", "running", domain.VerbFail, func(ctx context.Context, tx pgx.Tx, r *race) error {
		return exactlyOne(ctx, tx, `SELECT event FROM jobledger.fail('w1', ARRAY[$1::uuid], ARRAY[1], ARRAY['crash']) WHERE refusal IS NULL`, r.job)
	}},
	{"cancel_of_waiting", "waiting", domain.VerbCancel, cancelFirst},
	{"cancel_of_running", "running", domain.VerbCancel, cancelFirst},
	{"reap", "expired", domain.VerbReap, func(ctx context.Context, tx pgx.Tx, r *race) error {
		return exactlyOne(ctx, tx, `SELECT event FROM jobledger.reap('reaper', 1, ARRAY[$1])`, r.tag)
	}},
	{"redrive", "ended", domain.VerbRedrive, func(ctx context.Context, tx pgx.Tx, r *race) error {
		return exactlyOne(ctx, tx, `SELECT event FROM jobledger.redrive(ARRAY[$1::uuid], 'boss') WHERE refusal IS NULL`, r.job)
	}},
}

func cancelFirst(ctx context.Context, tx pgx.Tx, r *race) error {
	return exactlyOne(ctx, tx, `SELECT event FROM jobledger.cancel(ARRAY[$1::uuid], 'boss') WHERE refusal IS NULL`, r.job)
}

// exactlyOne runs a statement that must give one row.
func exactlyOne(ctx context.Context, db interface {
	QueryRow(ctx context.Context, text string, args ...any) pgx.Row
}, text string, args ...any) error {
	var ignored any
	return db.QueryRow(ctx, text, args...).Scan(&ignored)
}

// reply is what the rival was told, in the terms of domain.Answer.
type reply struct {
	event     domain.EventType
	refusal   domain.Refusal
	repeated  bool
	outcome   domain.Outcome
	contended bool // claim only
	err       error
}

// rivalCall is a call that meets the lock, as the command that it is and as it is made through the Go API.
type rivalCall struct {
	name string
	cmd  domain.Command
	call func(ctx context.Context, l *ledger.Ledger, r *race) reply
}

var rivalCalls = []rivalCall{
	{"claim", domain.Command{Verb: domain.VerbClaim, Actor: rivalWorker, Lease: raceLease}, func(ctx context.Context, l *ledger.Ledger, r *race) reply {
		c, err := l.Claim(ctx, ledger.ClaimParams{Worker: rivalWorker, Tags: []string{r.tag}, Lease: raceLease})
		if len(c.Jobs) == 1 && c.Jobs[0].JobID == r.job {
			return reply{event: domain.Claimed, contended: c.Contended, err: err}
		}
		return reply{refusal: domain.RefusedNotDue, contended: c.Contended, err: err}
	}},
	{"ping", domain.Command{Verb: domain.VerbPing, Actor: firstWorker, Generation: 1, Lease: pingLease}, func(ctx context.Context, l *ledger.Ledger, r *race) reply {
		a, err := l.Ping(ctx, ledger.PingParams{Worker: firstWorker, Lease: pingLease, Pings: []ledger.Ping{{Held: r.held()}}})
		if err != nil {
			return reply{err: err}
		}
		return replyOf(a[0], a[0].Err)
	}},
	{"complete", completeCommand, func(ctx context.Context, l *ledger.Ledger, r *race) reply {
		return replyOf(l.Complete(ctx, firstWorker, ledger.Completion{Held: r.held(), Result: `"rival"`}))
	}},
	// The caller's own transaction must remain usable whatever the answer is.
	{"complete_tx", completeCommand, func(ctx context.Context, l *ledger.Ledger, r *race) (out reply) {
		err := pgx.BeginFunc(ctx, r.rivalPool, func(tx pgx.Tx) error {
			out = replyOf(l.CompleteTx(ctx, tx, firstWorker, ledger.Completion{Held: r.held(), Result: `"rival"`}))
			_, err := tx.Exec(ctx, `INSERT INTO effect VALUES ($1)`, r.job)
			return err
		})
		out.err = errors.Join(out.err, err)
		return out
	}},
	{"fail", domain.Command{Verb: domain.VerbFail, Actor: firstWorker, Generation: 1, Class: domain.ClassPanic}, func(ctx context.Context, l *ledger.Ledger, r *race) reply {
		return replyOf(l.Fail(ctx, firstWorker, ledger.Failure{Held: r.held(), Class: domain.ClassPanic}))
	}},
	{"cancel", domain.Command{Verb: domain.VerbCancel, Actor: "operator"}, func(ctx context.Context, l *ledger.Ledger, r *race) reply {
		a, err := l.Cancel(ctx, r.job, ledger.ByOperator{Actor: "operator"})
		if err == nil && a.Event == "" && a.CancelRequested {
			return reply{refusal: domain.RefusedAlreadyRequested}
		}
		return replyOf(a, err)
	}},
	{"reap", domain.Command{Verb: domain.VerbReap, Actor: "reaper"}, func(ctx context.Context, l *ledger.Ledger, r *race) reply {
		a, err := l.Reap(ctx, ledger.ReapParams{Actor: "reaper", Tags: []string{r.tag}})
		if err != nil || len(a) == 0 {
			return reply{refusal: domain.RefusedAlive, err: err}
		}
		return replyOf(a[0], a[0].Err)
	}},
	{"redrive", domain.Command{Verb: domain.VerbRedrive, Actor: "operator"}, func(ctx context.Context, l *ledger.Ledger, r *race) reply {
		return replyOf(l.Redrive(ctx, r.job, ledger.ByOperator{Actor: "operator"}))
	}},
}

// completeCommand has a digest of its own: a rival with another result is no repetition of the first call.
var completeCommand = domain.Command{Verb: domain.VerbComplete, Actor: firstWorker, Generation: 1, Digest: []byte("rival")}

func replyOf(a ledger.Answer, err error) reply {
	if refused, ok := errors.AsType[*domain.RefusedError](err); ok {
		return reply{refusal: refused.Refusal, outcome: refused.Outcome}
	}
	return reply{event: a.Event, repeated: a.Repeated, outcome: a.Outcome, err: err}
}
