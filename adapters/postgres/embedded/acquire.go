package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"
)

const (
	// acquireTimeout bounds Acquire as a whole. It is long because another client may be downloading.
	acquireTimeout = fetchTimeout + initTimeout + startTimeout
	// maxLaunches bounds how often Acquire starts a supervisor, should it end before it can be used.
	maxLaunches = 3
)

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
	for launches := 0; launches < maxLaunches; {
		life, err := openLock(l.supervisorLock())
		if err != nil {
			return serverState{}, l.explain("open supervisor.lock", err)
		}
		free, err := life.try(unix.LOCK_EX)
		if err == nil && free {
			launches++
			err = l.launchSupervisor(ctx, o, life)
		}
		life.close()
		if err != nil {
			return serverState{}, err
		}
		state, ended, err := l.waitAnswer(ctx)
		if err != nil {
			hint := "it may still be recovering from a crash: read {log} and try again"
			if refusal, ok := errors.AsType[*pgconn.PgError](err); ok {
				err = errors.New(refusal.Message)
				hint = "read {log}"
			}
			return state, &Error{Op: "wait for Postgres in " + quote(l.root), Err: err, Hint: l.hintFor(err.Error(), state.Major, "", hint)}
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
		o.Notice(fmt.Sprintf("Creating a new, empty cluster of Postgres %d in %s.", b.Major, l.root))
		return b, who, l.createCluster(ctx, b, who, o.UnsafeNoFsync)
	}
	version, err := l.clusterVersion(l.cluster(major))
	if err != nil {
		return b, who, err
	}
	if version != b.Major {
		return b, who, mismatch(o, version, []string{fmt.Sprintf("%d in %s", b.Major, b.Dir)})
	}
	return b, who, nil
}

// launchSupervisor starts the supervisor, hands supervisor.lock over to it, and waits for its report.
func (l layout) launchSupervisor(ctx context.Context, o Options, life *fileLock) error {
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
	}, log, report, life.file)
	if err == nil {
		err = cmd.Run()
	}
	report.Close()
	life.close() // from here on it tells whether the supervisor lives, not whether this process does
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
		return nil // it was killed; the caller sees by its lock that it is gone, and tries again
	case ctx.Err() != nil:
		return &Error{Op: "start Postgres", Err: context.Cause(ctx), Hint: "it may need longer: try again, and read " + log.Name()}
	default:
		return l.explain("read the supervisor's report", err)
	}
}
