package ledger

import (
	"context"
	"fmt"

	"github.com/jobledger/jobledger/domain"
)

// ReapParams says who reaps and how far.
type ReapParams struct {
	// Actor is written into the events as who took the leases back. 1 to 255 bytes.
	Actor string
	// Max is how many jobs one call takes back. 1 to domain.MaxBatch, default 500.
	Max int
	// Tags limits it to jobs of these tags; nil: all.
	Tags []string
}

// Reap takes back running jobs whose lease or time-out is over; each answer's Event says what became
// of the job: reaped, retried, failed or canceled. Any number of reapers may run at once: a row that
// somebody has locked is passed over. Fewer answers than Max means that nothing else is due. If the
// connection breaks it is sent again, and tells only of what the last sending took back.
func (l *Ledger) Reap(ctx context.Context, p ReapParams) ([]Answer, error) {
	if p.Max == 0 {
		p.Max = 500
	}
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("reap: %w", err)
	}
	return l.call(ctx, poolQuerier{l.pool}, domain.VerbReap, nil, 0, p.Actor, p.Max, p.Tags)
}

func (p ReapParams) check() error {
	if err := domain.CheckText("actor", p.Actor, domain.MaxActorBytes); err != nil {
		return err
	}
	if err := domain.CheckMaxJobs(p.Max); err != nil {
		return err
	}
	return domain.CheckNames("tags", p.Tags, 0)
}
