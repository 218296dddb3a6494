package ledger

import (
	"context"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
)

// Redrive gives a job that ended with failure or was canceled a new life, due now: attempts, restarts
// and time budget begin anew, generation and history go on. ErrSucceeded or ErrNotEnded otherwise. The
// same operation never redrives a job twice.
func (l *Ledger) Redrive(ctx context.Context, job uuid.UUID, by ByOperator) (Answer, error) {
	return one(l.RedriveMany(ctx, []uuid.UUID{job}, by))
}

// RedriveMany is Redrive for many jobs in one statement, each answered on its own.
func (l *Ledger) RedriveMany(ctx context.Context, jobs []uuid.UUID, by ByOperator) ([]Answer, error) {
	return l.byOperator(ctx, domain.VerbRedrive, jobs, by)
}
