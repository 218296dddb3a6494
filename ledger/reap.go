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
// somebody has locked is passed over. Fewer answers than Max means that nothing else is due.
func (l *Ledger) Reap(ctx context.Context, p ReapParams) ([]Answer, error) {
	if p.Max == 0 {
		p.Max = 500
	}
	if p.Max < 1 || p.Max > domain.MaxBatch {
		return nil, fmt.Errorf("reap: %w", &domain.FieldError{Field: "max", Value: p.Max, Want: "1 to 10000"})
	}
	if err := domain.CheckText("actor", p.Actor, domain.MaxActorBytes); err != nil {
		return nil, fmt.Errorf("reap: %w", err)
	}
	return l.call(ctx, pgxQuerier{l.pool}, domain.VerbReap, nil, 0, p.Actor, p.Max, p.Tags)
}
