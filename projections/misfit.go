package projections

import (
	"context"
	"errors"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobledger/jobledger/domain"
)

// Misfit turns what Postgres says of a schema that is missing, or is not of this release, into a *domain.SchemaError, and
// returns any other error as it is.
func Misfit(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	switch pg.Code {
	case pgerrcode.InvalidSchemaName:
		return &domain.SchemaError{Err: domain.ErrNoLedger, Detail: pg.Message}
	case pgerrcode.UndefinedFunction, pgerrcode.UndefinedTable, pgerrcode.UndefinedColumn:
		return &domain.SchemaError{Err: domain.ErrLedgerMisfit, Detail: pg.Message}
	}
	return err
}

// fitting is a Querier whose errors have gone through Misfit.
type fitting struct{ db Querier }

func (f fitting) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := f.db.Query(ctx, sql, args...)
	return fittingRows{rows}, Misfit(err)
}

// fittingRows: where the driver has a statement in its cache, the error comes with the rows.
type fittingRows struct{ pgx.Rows }

func (r fittingRows) Err() error { return Misfit(r.Rows.Err()) }
