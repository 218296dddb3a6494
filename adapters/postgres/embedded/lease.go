package embedded

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// connectTimeout bounds one attempt to connect.
const connectTimeout = 10 * time.Second

// Lease is a client's share in a running server. The server runs at least until Close, or until the process ends; keep
// hold of the lease until then, as the garbage collector closes one that nothing refers to.
type Lease struct {
	layout  layout
	state   serverState
	clients *fileLock
	close   sync.Once
}

// URL returns the connection URL of the database: through the socket, without a password.
func (l *Lease) URL() string { return l.state.url(DatabaseName) }

// TCPURL returns the connection URL through TCP, with the password, or "" if the server has no TCP port.
func (l *Lease) TCPURL() (string, error) {
	if l.state.TCPPort == 0 {
		return "", nil
	}
	path := l.layout.password(l.state.Major)
	password, err := os.ReadFile(path)
	if err != nil {
		return "", l.layout.explain("read the password", err)
	}
	address := url.URL{
		Scheme: "postgres",
		User:   url.UserPassword(UserName, strings.TrimSpace(string(password))),
		Host:   net.JoinHostPort("127.0.0.1", strconv.Itoa(l.state.TCPPort)),
		Path:   "/" + DatabaseName,
	}
	return address.String() + "?sslmode=disable", nil
}

// Major returns the server's major version.
func (l *Lease) Major() int { return l.state.Major }

// ServerLog returns the path of the server's log.
func (l *Lease) ServerLog() string { return l.layout.serverLog(l.state.Major) }

// Close gives the share back; the server stops a moment later if it was the last. It may be called more than once.
// Connections must be closed before, else a stopping server cuts them off.
func (l *Lease) Close() error {
	var err error
	l.close.Do(func() { err = l.clients.close() })
	return err
}

// url returns the connection URL of a database through the socket.
func (s serverState) url(database string) string {
	query := url.Values{"host": {s.SocketDir}, "port": {strconv.Itoa(portOf(s.TCPPort))}, "user": {UserName}}
	return "postgres:///" + database + "?" + query.Encode()
}

// answers says whether the server takes connections. A refusal that waiting will not change is an error.
func answers(ctx context.Context, address string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, address)
	if err == nil {
		return true, conn.Close(ctx)
	}
	refusal, isRefusal := errors.AsType[*pgconn.PgError](err)
	switch {
	case !isRefusal:
		return false, nil // nobody listens: it is starting, or has just died
	case refusal.Code == pgerrcode.TooManyConnections:
		return true, nil
	case pgerrcode.IsOperatorIntervention(refusal.Code):
		return false, nil // starting up, recovering or going down
	default:
		return false, err
	}
}

// createDatabase creates our database in a new cluster.
func (pm *postmaster) createDatabase(ctx context.Context) error {
	err := pm.ensureDatabase(ctx)
	if err == nil {
		return nil
	}
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok {
		err = errors.New(refusal.Message) // the rest is how we connected, which nobody has asked for
	}
	return pm.failed("open the database", err)
}

func (pm *postmaster) ensureDatabase(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, pm.state(false).url("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var exists bool
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", DatabaseName).Scan(&exists)
	if err != nil || exists {
		return err
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{DatabaseName}.Sanitize())
	return err
}

// state is what is written down about a running server.
func (pm *postmaster) state(exclusive bool) serverState {
	return serverState{
		SupervisorPID: os.Getpid(),
		ServerPID:     pm.process.Pid,
		Major:         pm.launch.binaries.Major,
		BinDir:        pm.launch.binaries.Dir,
		SocketDir:     pm.socketDir,
		TCPPort:       pm.launch.options.TCPPort,
		NoFsync:       pm.launch.options.UnsafeNoFsync,
		Exclusive:     exclusive,
		StartedAt:     time.Now().UTC(),
	}
}
