package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jobledger/jobledger/domain"
)

// fitTimeout bounds the question whether the ledger fits.
const fitTimeout = 5 * time.Second

// fits refuses to begin on a ledger that is not there, or that this binary cannot work with: it would only log the same error
// for ever. A database that cannot be asked right now is no reason; the loops wait for it.
func (w *Worker) fits(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fitTimeout)
	defer cancel()
	var misfit *domain.SchemaError
	if err := w.l.CheckSchema(ctx); errors.As(err, &misfit) {
		return fmt.Errorf("run worker: %w", err)
	}
	return nil
}
