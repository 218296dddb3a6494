package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stopTimeout bounds Stop: a fast shutdown and both harder ways after it.
const stopTimeout = fastStopTimeout + 2*stopGrace + 10*time.Second

// Status is what is known about the server of a data directory without disturbing it.
type Status struct {
	DataDir       string
	ClusterDir    string // "" if there is no cluster yet
	Major         int    // 0 if there is no cluster yet
	Running       bool
	Exclusive     bool      // run by one process for itself, see StartExclusive
	PID           int       // of the server's main process; this and what follows only while it runs
	SupervisorPID int       // of the process that stops it when nobody needs it any more
	StartedAt     time.Time // of the server, after a crash the last one
	URL           string    // of the database, through the socket
	SocketDir     string
	TCPPort       int    // 0 if it listens on no TCP port
	NoFsync       bool   // started for tests: a crash of the machine loses data
	Clients       int    // leases that are held, -1 where the system doesn't tell
	ServerLog     string // what the server writes
	SupervisorLog string // starts, restarts with their reasons, stops
}

// ReadStatus says whether a server runs in the data directory, and where. A directory that doesn't exist has none; that
// is no error, and nothing is created. It returns an *Error if the directory cannot be read.
func ReadStatus(o Options) (Status, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Status{}, err
	}
	l := layout{root: o.DataDir}
	status := Status{DataDir: l.root, Clients: -1}
	if status.Major, err = l.major(); err != nil || status.Major == 0 {
		return status, err
	}
	status.ClusterDir = l.cluster(status.Major)
	status.ServerLog = l.serverLog(status.Major)
	status.SupervisorLog = l.supervisorLog()
	if status.Running, err = locked(l.supervisorLock()); err != nil {
		return status, l.explain("look at supervisor.lock", err)
	}
	if !status.Running {
		return status, nil
	}
	state, err := l.readState()
	if errors.Is(err, os.ErrNotExist) {
		// It is starting, or stopping: not of use to anybody.
		status.Running = false
		return status, nil
	}
	if err != nil {
		return status, l.explain("read the server's state", err)
	}
	status.Exclusive = state.Exclusive
	status.PID = state.ServerPID
	status.SupervisorPID = state.SupervisorPID
	status.StartedAt = state.StartedAt
	status.URL = state.url(DatabaseName)
	status.SocketDir = state.SocketDir
	status.TCPPort = state.TCPPort
	status.NoFsync = state.NoFsync
	if count, known := countSharedLocks(l.clientsLock()); known {
		status.Clients = count
	}
	return status, nil
}

// Stop stops the server of the data directory, also while clients hold a lease: their connections break, and the next
// Acquire starts it again. It says whether one was running, and returns when no process of it is left. It returns an
// *Error if an exclusive server runs there, which belongs to the process that started it.
func Stop(ctx context.Context, o Options) (wasRunning bool, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return false, err
	}
	l := layout{root: o.DataDir}
	if _, err := os.Stat(l.startLock()); errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, stopTimeout, fmt.Errorf("no end within %s", stopTimeout))
	defer cancel()
	start, err := takeLock(ctx, l.startLock(), unix.LOCK_EX)
	if err != nil {
		return false, l.explain("wait for another process that starts or stops the server", err)
	}
	defer start.close()
	wasRunning, err = locked(l.supervisorLock())
	if err != nil {
		return false, l.explain("look at supervisor.lock", err)
	}
	if wasRunning {
		if err := l.endSupervisor(ctx); err != nil {
			return true, err
		}
	}
	// Without a supervisor there may still be a server whose supervisor was killed.
	orphan, err := locked(l.serverLock())
	if err != nil || !orphan {
		return wasRunning, err
	}
	major, err := l.major()
	if err != nil {
		return wasRunning, err
	}
	guard, err := launch{layout: l, binaries: Binaries{Major: major}}.takeServerLock(ctx)
	if err != nil {
		return true, err
	}
	return true, guard.close()
}

// endSupervisor tells the supervisor to stop and waits for its end. The caller holds start.lock, so no other takes its
// place meanwhile.
func (l layout) endSupervisor(ctx context.Context) error {
	var state serverState
	told := false
	err := poll(ctx, lockPoll, func() (bool, error) {
		running, err := locked(l.supervisorLock())
		if err != nil || !running {
			return true, err
		}
		if told {
			return false, nil
		}
		// As long as it starts, it has written down nothing yet.
		if state, err = l.readState(); err != nil {
			return false, nil
		}
		if state.Exclusive {
			return false, fmt.Errorf("process %d has it for itself", state.SupervisorPID)
		}
		told = true
		return false, syscall.Kill(state.SupervisorPID, syscall.SIGTERM)
	})
	if err != nil {
		return &Error{Op: "stop Postgres in " + quote(l.root), Err: err, Hint: "read " + l.supervisorLog()}
	}
	return nil
}

// Psql returns the path of psql for the server of this data directory: beside the binaries that it runs with, or would
// run with, else the one in PATH. It returns an *Error whose hint is the command that installs it.
func Psql(ctx context.Context, o Options) (string, error) {
	status, err := ReadStatus(o)
	if err != nil {
		return "", err
	}
	if status.Running {
		state, err := layout{root: status.DataDir}.readState()
		if err == nil {
			return Binaries{Dir: state.BinDir, Major: state.Major}.Tool("psql")
		}
	}
	b, err := FindBinaries(ctx, o)
	if err != nil {
		return "", err
	}
	return b.Tool("psql")
}
