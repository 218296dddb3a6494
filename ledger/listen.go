package ledger

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ListenerName is the application_name of the connections that Listen opens.
const ListenerName = "jobledger listener"

// Listener is a connection that hears what is notified on a ledger's wake channel. It belongs to one
// goroutine.
type Listener struct {
	conn    *pgx.Conn
	backend uint32 // the process of the server that listens
}

// Listen opens a connection that is not one of the pool's, as the pool would open it or, where url is
// not empty, by url, and listens with it on the ledger's wake channel. Behind a transaction pooler it
// succeeds and hears nothing: send yourself something with Notify. Close it.
func (l *Ledger) Listen(ctx context.Context, url string) (*Listener, error) {
	cfg := l.pool.Config()
	if url != "" {
		direct, err := pgxpool.ParseConfig(url)
		if err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
		cfg = direct
	}
	if cfg.BeforeConnect != nil { // it may fetch a password that does not last
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
	}
	// A handler of the pool's would take the notifications. The simple protocol leaves no statements
	// behind and is understood by every pooler.
	cfg.ConnConfig.OnNotification = nil
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	cfg.ConnConfig.RuntimeParams["application_name"] = ListenerName
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	e := &Listener{conn: conn}
	if err := e.listen(ctx, l.stmts["wake_channel"], cfg.AfterConnect); err != nil {
		_ = conn.Close(ctx) // what matters is in err
		return nil, fmt.Errorf("listen: %w", err)
	}
	return e, nil
}

func (e *Listener) listen(ctx context.Context, channelQuery string, prepare func(context.Context, *pgx.Conn) error) error {
	if prepare != nil { // it may set a role
		if err := prepare(ctx, e.conn); err != nil {
			return err
		}
	}
	var channel string
	if err := e.conn.QueryRow(ctx, channelQuery).Scan(&channel); err != nil {
		return err
	}
	backend, err := e.onBackend(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize())
	e.backend = backend
	return err
}

// onBackend executes a statement and returns which process of the server did: one message, so that a
// pooler cannot hand it to two.
func (e *Listener) onBackend(ctx context.Context, statement string) (uint32, error) {
	results, err := e.conn.PgConn().Exec(ctx, statement+"; SELECT pg_backend_pid()").ReadAll()
	if err != nil {
		return 0, err
	}
	pid, err := strconv.ParseUint(string(results[len(results)-1].Rows[0][0]), 10, 32)
	return uint32(pid), err
}

// Wait returns the next payload. Where ctx ends first the connection goes on to listen.
func (e *Listener) Wait(ctx context.Context) (string, error) {
	n, err := e.conn.WaitForNotification(ctx)
	if err != nil {
		return "", fmt.Errorf("wait for a notification: %w", err)
	}
	return n.Payload, nil
}

// Ping makes a round trip. Where ctx ends first the connection is lost.
func (e *Listener) Ping(ctx context.Context) error {
	if err := e.conn.Ping(ctx); err != nil {
		return fmt.Errorf("ping the listener's connection: %w", err)
	}
	return nil
}

// unlistenMost bounds how often Close looks for the process that listens.
const unlistenMost = 20

// Close ends the connection. A pooler keeps its own connection to the server open, on which the
// subscription would stay: Close takes it back as well as it can.
func (e *Listener) Close(ctx context.Context) error {
	pooled := e.conn.PgConn().PID() != e.backend
	for n := 0; pooled && n < unlistenMost; n++ {
		backend, err := e.onBackend(ctx, "UNLISTEN *")
		if err != nil || backend == e.backend {
			break
		}
	}
	return e.conn.Close(ctx)
}
