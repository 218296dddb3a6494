package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"
)

const (
	// acquireTimeout bounds Acquire as a whole. It is long because another client may be downloading.
	acquireTimeout = fetchTimeout + initTimeout + startTimeout
	// maxLaunches bounds how often Acquire starts a supervisor, should it end before it can be used.
	maxLaunches = 3
	// connectTimeout bounds one attempt to connect.
	connectTimeout = 10 * time.Second
)

// Lease is a client's share in a running server. The server runs at least until Close, or until the process ends.
type Lease struct {
	layout  layout
	state   serverState
	clients *fileLock
	close   sync.Once
}

// Acquire returns a share in the server of the data directory, starting it, and creating its cluster, if need be. It
// takes about 1.2 s the first time, 0.2 s if the server isn't running and a few milliseconds if it is. Close the lease
// at the end; if the process is killed, the kernel does.
//
// Errors are *Error, with a hint: no binaries, a cluster of another major version, a folder that the server's user
// cannot enter, a server that runs with other terms (exclusive, without fsync, without the TCP port asked for), or the
// end of ctx.
func Acquire(ctx context.Context, o Options) (*Lease, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, acquireTimeout, fmt.Errorf("no end within %s", acquireTimeout))
	defer cancel()
	l := layout{root: o.DataDir}
	if err := l.create(); err != nil {
		return nil, err
	}
	start, err := takeLock(ctx, l.startLock(), unix.LOCK_EX)
	if err != nil {
		return nil, l.explain("wait for another process that starts or stops the server", err)
	}
	defer start.close()
	clients, err := takeLock(ctx, l.clientsLock(), unix.LOCK_SH)
	if err != nil {
		return nil, l.explain("lock clients.lock", err)
	}
	state, err := l.share(ctx, o)
	if err != nil {
		clients.close()
		return nil, err
	}
	return &Lease{layout: l, state: state, clients: clients}, nil
}

// share returns the state of a server that answers: of the one that runs, or of a new one. The caller holds start.lock
// and a share of clients.lock, so the server neither starts nor stops meanwhile, except to recover from a crash.
func (l layout) share(ctx context.Context, o Options) (serverState, error) {
	for range maxLaunches {
		running, err := locked(l.supervisorLock())
		if err != nil {
			return serverState{}, l.explain("look at supervisor.lock", err)
		}
		if !running {
			if err := l.launchSupervisor(ctx, o); err != nil {
				return serverState{}, err
			}
		}
		state, ended, err := l.waitAnswer(ctx)
		if err != nil {
			return state, &Error{
				Op:   "wait for Postgres in " + quote(l.root),
				Err:  err,
				Hint: "it may still be recovering from a crash: read " + filepath.Join(l.root, "pg*.log") + " and try again",
			}
		}
		if !ended {
			return state, o.accepts(state)
		}
	}
	return serverState{}, &Error{
		Op:   "start Postgres in " + quote(l.root),
		Err:  fmt.Errorf("its supervisor ended %d times", maxLaunches),
		Hint: "read " + l.supervisorLog(),
	}
}

// waitAnswer waits until the server answers on its socket. It reports ended if its supervisor has ended instead.
func (l layout) waitAnswer(ctx context.Context) (state serverState, ended bool, err error) {
	err = poll(ctx, lockPoll, func() (bool, error) {
		running, err := locked(l.supervisorLock())
		if err != nil || !running {
			ended = true
			return true, err
		}
		if state, err = l.readState(); err != nil {
			return false, nil // it is about to be written
		}
		if state.Exclusive {
			return true, nil // its owner may have stopped it on purpose
		}
		return answers(ctx, state.url(DatabaseName))
	})
	return state, ended, err
}

// accepts says whether the server that runs will do.
func (o Options) accepts(state serverState) error {
	op := "share the Postgres that runs in " + quote(o.DataDir)
	const hint = "stop it first; the next client starts it as wanted"
	switch {
	case state.Exclusive:
		return &Error{Op: op, Err: fmt.Errorf("process %d has it for itself", state.SupervisorPID), Hint: "choose another --data-dir"}
	case state.NoFsync && !o.UnsafeNoFsync:
		return &Error{Op: op, Err: errors.New("it was started for tests, without fsync"), Hint: hint}
	case o.TCPPort != 0 && o.TCPPort != state.TCPPort:
		return &Error{Op: op, Err: fmt.Errorf("it doesn't listen on TCP port %d", o.TCPPort), Hint: hint}
	default:
		return nil
	}
}

// prepare finds the binaries and creates the cluster if there is none. The caller holds start.lock.
func (l layout) prepare(ctx context.Context, o Options) (Binaries, account, error) {
	major, err := l.major()
	if err != nil {
		return Binaries{}, account{}, err
	}
	owner, err := l.owner(major)
	if err != nil {
		return Binaries{}, account{}, err
	}
	who, err := chooseAccount(owner)
	if err != nil {
		return Binaries{}, who, err
	}
	b, err := findBinaries(ctx, o, major, who)
	if err != nil {
		return b, who, err
	}
	if major == 0 {
		return b, who, l.createCluster(ctx, b, who, o.UnsafeNoFsync)
	}
	version, err := clusterVersion(l.cluster(major))
	if err != nil {
		return b, who, l.explain("read the version of the cluster", err)
	}
	if version != b.Major {
		return b, who, mismatch(o, version, []string{fmt.Sprintf("%d in %s", b.Major, b.Dir)})
	}
	return b, who, nil
}

// launchSupervisor starts the supervisor and waits for its report.
func (l layout) launchSupervisor(ctx context.Context, o Options) error {
	b, _, err := l.prepare(ctx, o)
	if err != nil {
		return err
	}
	// What an earlier supervisor wrote would be taken for the new one's.
	if err := os.Remove(l.stateFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return l.explain("remove an old state", err)
	}
	log, err := l.openLog(l.supervisorLog())
	if err != nil {
		return l.explain("open the supervisor's log", err)
	}
	defer log.Close()
	reports, report, err := os.Pipe()
	if err != nil {
		return l.explain("open a pipe to the supervisor", err)
	}
	defer reports.Close()
	cmd, err := supervisorCommand(supervisorJob{
		DataDir: o.DataDir, Binaries: b, TCPPort: o.TCPPort, NoFsync: o.UnsafeNoFsync, Settings: o.Settings,
	}, log, report)
	if err == nil {
		err = cmd.Run()
	}
	report.Close()
	if err != nil {
		return &Error{Op: "start the supervisor of Postgres", Err: err, Hint: "read " + log.Name()}
	}
	// The end of ctx ends the wait, not the start: it may serve the next client.
	defer context.AfterFunc(ctx, func() { reports.SetReadDeadline(time.Unix(1, 0)) })()
	var answer supervisorReport
	switch err := json.NewDecoder(reports).Decode(&answer); {
	case err == nil && answer.Error == "":
		return nil
	case err == nil:
		return &Error{Op: answer.Op, Err: errors.New(answer.Error), Hint: answer.Hint}
	case errors.Is(err, io.EOF):
		return &Error{Op: "start Postgres", Err: errors.New("its supervisor ended without a word"), Hint: "read " + log.Name()}
	case ctx.Err() != nil:
		return &Error{Op: "start Postgres", Err: context.Cause(ctx), Hint: "it may need longer: try again, and read " + log.Name()}
	default:
		return l.explain("read the supervisor's report", err)
	}
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
	conn, err := pgx.Connect(ctx, pm.state(false).url("postgres"))
	if err != nil {
		return fmt.Errorf("connect to the new server: %w", err)
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
