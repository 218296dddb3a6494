package ledger

import (
	"context"
	"fmt"

	"github.com/jobledger/jobledger/domain"
)

// Release gives runs back unspent, due as before, so that another worker can start them at once.
// A job whose cancellation had been asked for ends canceled instead. Answers come in the order of held.
func (l *Ledger) Release(ctx context.Context, worker string, held ...Held) ([]Answer, error) {
	if len(held) == 0 {
		return nil, nil
	}
	if err := checkHeld(worker, held); err != nil {
		return nil, fmt.Errorf("release: %w", err)
	}
	jobs, generations := split(held)
	return l.call(ctx, poolQuerier{l.pool}, domain.VerbRelease, held, len(held), worker, jobs, generations)
}
