package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/projections"
)

// FunctionsAhead is how many versions newer than this binary the transition functions may be: their signatures live one
// release longer than their last caller, so that old and new binaries run side by side while a new one is rolled out.
const FunctionsAhead = 1

// CheckSchema asks the database once whether the ledger is one that this binary can work with: of this release or of
// the next one. If not, it returns a *domain.SchemaError that wraps domain.ErrNoLedger, ErrLedgerOlder (migrate it) or
// ErrLedgerNewer (use a newer binary). worker.Run asks the same at its start.
func (l *Ledger) CheckSchema(ctx context.Context) error {
	version := 0
	rows, err := l.pool.Query(ctx, "SELECT version FROM "+pgx.Identifier{l.cfg.Schema}.Sanitize()+".function_version")
	if err == nil {
		version, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
	}
	var misfit *domain.SchemaError
	switch err := projections.Misfit(err); {
	case errors.As(err, &misfit):
		misfit.Schema, misfit.Err = l.cfg.Schema, domain.ErrNoLedger // no ledger is without this table
		return fmt.Errorf("check schema: %w", misfit)
	case err != nil && !errors.Is(err, pgx.ErrNoRows): // no row: the functions have not been applied yet
		return fmt.Errorf("check schema: %w", err)
	}
	misfit = &domain.SchemaError{Schema: l.cfg.Schema, Detail: fmt.Sprintf("functions %d, this binary has %d", version, FunctionsVersion)}
	switch {
	case version < FunctionsVersion:
		misfit.Err = domain.ErrLedgerOlder
	case version > FunctionsVersion+FunctionsAhead:
		misfit.Err = domain.ErrLedgerNewer
	default:
		return nil
	}
	return fmt.Errorf("check schema: %w", misfit)
}
