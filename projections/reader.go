// Package projections is the read path of jobledger: what waits, runs and has ended, the history of
// a job, who works, and the proof that the projections are what the events say. It changes nothing.
package projections

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/domain"
)

// Querier is what reading needs of a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Reader reads one ledger. It is safe for concurrent use if its Querier is.
type Reader struct {
	db     Querier
	schema string // quoted
}

// New returns a Reader of the ledger in schema.
func New(db Querier, schema string) (*Reader, error) {
	if err := CheckSchema(schema); err != nil {
		return nil, err
	}
	return &Reader{db: fitting{db}, schema: pgx.Identifier{schema}.Sanitize()}, nil
}

// SpineSuffix behind the name of a ledger's schema is the schema of its views in the flag form (docs/SQL.md).
const SpineSuffix = "_spine"

// MaxSchemaBytes is how long the name of a ledger's schema may be: Postgres cuts names of more than 63 bytes
// without a word, and two that begin alike would be one ledger, or have one schema of views.
const MaxSchemaBytes = 63 - len(SpineSuffix)

// CheckSchema tests the name of a ledger's schema; the error is a *domain.FieldError.
func CheckSchema(schema string) error {
	want := ""
	switch {
	case schema == "" || len(schema) > MaxSchemaBytes || strings.ContainsRune(schema, 0) || !utf8.ValidString(schema):
		want = fmt.Sprintf("a Postgres identifier of 1 to %d bytes of UTF-8", MaxSchemaBytes)
	case strings.HasPrefix(schema, "pg_"):
		want = "a name that does not begin with pg_, as those of Postgres itself do"
	case strings.HasSuffix(schema, SpineSuffix):
		want = "a name that does not end in " + SpineSuffix + ", as the views of another ledger may be there"
	default:
		return nil
	}
	return &domain.FieldError{Field: "schema", Value: schema, Want: want}
}

// In returns a Reader of the same ledger on another connection or transaction.
func (r *Reader) In(db Querier) *Reader { return &Reader{db: fitting{db}, schema: r.schema} }

// sql qualifies a statement with the ledger's schema.
func (r *Reader) sql(text string) string { return strings.ReplaceAll(text, "{schema}", r.schema) }
