package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// EvictReadOnly makes a pool close a connection, when it is given back, on which a write was refused because
// the server is read-only (SQLSTATE 25006). After a fail-over the old primary may live on as a replica,
// and a session that began while a server was read-only can stay so for its life: such connections
// answer every look at them, so a pool that only tests whether they live would keep them for half an hour.
// OpenPool does it; call it for a pool of your own, before pgxpool.NewWithConfig.
func EvictReadOnly(cfg *pgxpool.Config) {
	if other := cfg.ConnConfig.Tracer; other != nil {
		cfg.ConnConfig.Tracer = multitracer.New(other, readOnlyMarker{})
	} else {
		cfg.ConnConfig.Tracer = readOnlyMarker{}
	}
	before := cfg.AfterRelease
	cfg.AfterRelease = func(conn *pgx.Conn) bool {
		if _, marked := conn.PgConn().CustomData()[readOnlyMark]; marked {
			return false
		}
		return before == nil || before(conn)
	}
}

// readOnlyMark is set in the custom data of a connection that is to be closed.
const readOnlyMark = "jobledger.read_only"

// readOnlyMarker looks at the errors of all statements; where there is none, it costs a comparison.
type readOnlyMarker struct{}

func mark(conn *pgx.Conn, err error) {
	if err == nil {
		return
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == pgerrcode.ReadOnlySQLTransaction {
		conn.PgConn().CustomData()[readOnlyMark] = struct{}{}
	}
}

func (readOnlyMarker) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (readOnlyMarker) TraceQueryEnd(_ context.Context, conn *pgx.Conn, d pgx.TraceQueryEndData) {
	mark(conn, d.Err)
}

func (readOnlyMarker) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (readOnlyMarker) TraceBatchQuery(_ context.Context, conn *pgx.Conn, d pgx.TraceBatchQueryData) {
	mark(conn, d.Err)
}

func (readOnlyMarker) TraceBatchEnd(_ context.Context, conn *pgx.Conn, d pgx.TraceBatchEndData) {
	mark(conn, d.Err)
}
