package ledger

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
)

// ByOperator says who does something to jobs that are not his, and why.
type ByOperator struct {
	// Actor is written into the events. Default: Config.Actor, else the database's session user.
	Actor string
	// Reason is one line of at most 1 KiB; "" for none.
	Reason string
	// Operation joins the events of one bulk operation, which acts on a job once: the same verb with the
	// same operation answers what it answered first, with Repeated. Default: a new one for each call.
	Operation uuid.UUID
}

// Cancel ends a waiting job at once (Event canceled) and asks a running one to stop (Event
// cancel_requested): its worker hears of it at its next ping, and from then on failing, timing out,
// losing the lease and snoozing all end in canceled. Only completing it first still wins. A job that
// is marked already answers with CancelRequested and no Event. A job that has ended: ErrEnded.
func (l *Ledger) Cancel(ctx context.Context, job uuid.UUID, by ByOperator) (Answer, error) {
	return one(l.CancelMany(ctx, []uuid.UUID{job}, by))
}

// CancelMany is Cancel for many jobs in one statement, each answered on its own.
func (l *Ledger) CancelMany(ctx context.Context, jobs []uuid.UUID, by ByOperator) ([]Answer, error) {
	return l.byOperator(ctx, domain.VerbCancel, jobs, by)
}

// byOperator calls cancel or redrive, which show no generation.
func (l *Ledger) byOperator(ctx context.Context, verb domain.Verb, jobs []uuid.UUID, by ByOperator) ([]Answer, error) {
	if len(jobs) == 0 {
		return nil, nil
	}
	if by.Actor == "" {
		by.Actor = l.cfg.Actor
	}
	if err := by.check(len(jobs)); err != nil {
		return nil, fmt.Errorf("%s: %w", verb, err)
	}
	targets := make(ids, len(jobs))
	for i, job := range jobs {
		targets[i] = job
	}
	if by.Operation == uuid.Nil {
		by.Operation = uuid.New() // by which a second sending is known
	}
	r := &request{verb: verb, name: string(verb), jobs: jobs, args: []any{targets, nullable(by.Actor), nullable(by.Reason), by.Operation}}
	return l.answers(ctx, poolQuerier{l.pool}, r, nil, len(jobs))
}

func (by ByOperator) check(jobs int) error {
	if by.Actor != "" {
		if err := domain.CheckText("actor", by.Actor, domain.MaxActorBytes); err != nil {
			return err
		}
	}
	if by.Reason != "" {
		if err := domain.CheckText("reason", by.Reason, domain.MaxReasonBytes); err != nil {
			return err
		}
	}
	return domain.CheckBatch(jobs)
}
