package projections

import (
	"errors"

	"github.com/jackc/pgerrcode"
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
