package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// isolationVariable is the default isolation of every new database: "repeatable read" or "serializable".
const isolationVariable = "JOBLEDGER_TEST_ISOLATION"

// poolVariable says how the pool of a DB reaches its database: "pgbouncer" (a pooler of the test's own, in mode
// cache_describe), "discard_all" (a session forgets everything between two uses), or one of the driver's modes:
// "cache_describe", "describe_exec", "exec", "simple_protocol". Empty: as the driver does by default.
const poolVariable = "JOBLEDGER_TEST_POOL"

// URLWith is db.URL with one more setting of the connection or the pool, such as "pool_max_conns", "2".
func (db *DB) URLWith(setting, value string) string {
	address, err := url.Parse(db.URL)
	if err != nil {
		panic("pgtest: " + err.Error()) // it is one of ours
	}
	query := address.Query()
	query.Set(setting, value)
	address.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // Postgres knows no + for a space
	return address.String()
}

// openPool opens a pool whose connections carry the test's name, so that pg_stat_activity tells whose they are, and
// return times in UTC.
func (db *DB) openPool(t testing.TB, maxConns int32) (*pgxpool.Pool, error) {
	t.Helper()
	kind, address := os.Getenv(poolVariable), db.URL
	if kind == "pgbouncer" {
		address = db.PgBouncer(t, fmt.Sprintf("default_pool_size = %d", maxConns))
	}
	settings, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	settings.MaxConns = maxConns
	settings.ConnConfig.RuntimeParams["application_name"] = t.Name()[:min(len(t.Name()), 63)]
	settings.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		conn.TypeMap().RegisterType(&pgtype.Type{
			Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
		})
		return nil
	}
	switch kind {
	case "":
	case "pgbouncer", "cache_describe":
		settings.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	case "describe_exec":
		settings.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec
	case "exec":
		settings.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	case "simple_protocol":
		settings.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	case "discard_all":
		settings.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		settings.AfterRelease = DiscardAll
	default:
		return nil, fmt.Errorf("%s is %q, which is no way to reach a database", poolVariable, kind)
	}
	return pgxpool.NewWithConfig(t.Context(), settings)
}

// DiscardAll as AfterRelease of a pool takes everything from a session that its last user left there, as a transaction
// pooler does that hands out other sessions each time.
func DiscardAll(conn *pgx.Conn) bool {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_, err := conn.Exec(ctx, "DISCARD ALL")
	return err == nil
}

// setIsolation gives a new database the default isolation that was asked for.
func (s *server) setIsolation(ctx context.Context, database string) error {
	isolation := os.Getenv(isolationVariable)
	if isolation == "" {
		return nil
	}
	return s.exec(ctx, fmt.Sprintf("ALTER DATABASE %s SET default_transaction_isolation = '%s'", pgx.Identifier{database}.Sanitize(), isolation))
}
