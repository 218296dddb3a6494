package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// startTimeout bounds a start. It is long because crash recovery may have gigabytes of log to apply.
	startTimeout = 3 * time.Minute
	// fastStopTimeout bounds a fast shutdown, with its checkpoint; after it the server is stopped without one.
	fastStopTimeout = 45 * time.Second
	// stopGrace bounds each harder way of stopping after that.
	stopGrace = 5 * time.Second
	// readyPoll is how often a starting server is looked at.
	readyPoll = 5 * time.Millisecond
)

// launch is all that is needed to start the server of a cluster.
type launch struct {
	layout   layout
	binaries Binaries
	account  account
	options  Options
}

// postmaster is one run of the server's main process, a child of this one.
type postmaster struct {
	launch    launch
	process   *os.Process
	socketDir string
	exited    chan struct{} // closed when the process has ended and err is set
	err       error         // how it ended, nil for exit status 0
}

// start starts the server and waits until it accepts connections. Nothing of the last run can be alive any more when
// it does: it first takes server.lock, and leaves it to the new server. The caller holds supervisor.lock.
func (ln launch) start(ctx context.Context) (*postmaster, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("no end within %s", startTimeout))
	defer cancel()
	guard, err := ln.takeServerLock(ctx)
	if err != nil {
		return nil, err
	}
	defer guard.close()
	cluster := ln.layout.cluster(ln.binaries.Major)
	socketDir, err := ln.prepareSocketDir()
	if err != nil {
		return nil, err
	}
	if err := clearStale(cluster, socketDir); err != nil {
		return nil, err
	}
	if err := refreshSettings(cluster, ln.account); err != nil {
		return nil, ln.layout.explain("write the server's configuration", err)
	}
	log, err := ln.layout.openLog(ln.layout.serverLog(ln.binaries.Major))
	if err != nil {
		return nil, ln.layout.explain("open the server's log", err)
	}
	defer log.Close()

	cmd := exec.Command(filepath.Join(ln.binaries.Dir, "postgres"), ln.arguments(cluster, socketDir)...)
	cmd.Dir = ln.layout.root
	cmd.Env = cleanEnv()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{guard.file} // all processes of the server inherit it and so hold the lock
	cmd.SysProcAttr = processAttributes(ln.account)
	pm := &postmaster{launch: ln, socketDir: socketDir, exited: make(chan struct{})}
	begin := logSize(log)
	if err := pm.run(cmd); err != nil {
		if errors.Is(err, os.ErrPermission) {
			return nil, ln.layout.unreachable(ln.binaries, ln.account, cluster, err)
		}
		return nil, ln.layout.explain("start Postgres", err)
	}
	if err := pm.waitReady(ctx, log.Name(), begin); err != nil {
		pm.stop()
		return nil, err
	}
	return pm, nil
}

// run starts the process and reports its end through exited. The death signal of a child is sent when the *thread*
// that started it ends, so one goroutine keeps its thread from the start to the end.
func (pm *postmaster) run(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	go onOwnThread(func() error {
		err := cmd.Start()
		started <- err
		if err == nil {
			pm.err = cmd.Wait()
			close(pm.exited)
		}
		return err
	})
	if err := <-started; err != nil {
		return err
	}
	pm.process = cmd.Process
	return nil
}

func (ln launch) arguments(cluster, socketDir string) []string {
	args := []string{"-D", cluster, "-k", socketDir, "-p", strconv.Itoa(portOf(ln.options.TCPPort))}
	set := func(name, value string) { args = append(args, "-c", name+"="+value) }
	if ln.options.TCPPort != 0 {
		set("listen_addresses", "127.0.0.1")
	} else {
		set("listen_addresses", "")
	}
	if ln.options.UnsafeNoFsync {
		set("fsync", "off")
		set("full_page_writes", "off")
	}
	for name, value := range ln.options.Settings {
		set(name, value)
	}
	return args
}

// takeServerLock waits until no process of an earlier server is left. After its supervisor was killed it is on its
// way down already; if not, it is asked to, and killed if it doesn't.
func (ln launch) takeServerLock(ctx context.Context) (*fileLock, error) {
	lock, err := openLock(ln.layout.serverLock())
	if err != nil {
		return nil, ln.layout.explain("open server.lock", err)
	}
	cluster := ln.layout.cluster(ln.binaries.Major)
	for _, way := range []struct {
		signal  syscall.Signal
		timeout time.Duration
	}{{syscall.SIGINT, fastStopTimeout}, {syscall.SIGQUIT, stopGrace}, {syscall.SIGKILL, stopGrace}} {
		free, err := lock.try(unix.LOCK_EX)
		if err != nil || free {
			return lock, err
		}
		// A backend takes SIGINT as "cancel the query", so it may go to all of them.
		for _, pid := range serverProcesses(cluster) {
			syscall.Kill(pid, way.signal)
		}
		wait, cancel := context.WithTimeout(ctx, way.timeout)
		err = lock.wait(wait, unix.LOCK_EX)
		cancel()
		if err == nil {
			return lock, nil
		}
		if ctx.Err() != nil {
			break // whoever called gave up; that is no reason to be harder
		}
	}
	lock.close()
	cause := context.Cause(ctx)
	if cause == nil {
		cause = errors.New("its processes didn't end, not even by SIGKILL")
	}
	return nil, &Error{
		Op:   "wait for the end of an earlier server in " + quote(ln.layout.root),
		Err:  cause,
		Hint: "look for them with: ps -ef | grep postgres",
	}
}

// prepareSocketDir makes the folder of the socket, open to the server's user (and root) alone.
func (ln launch) prepareSocketDir() (string, error) {
	dir := ln.layout.socketDir(ln.account)
	err := os.Mkdir(dir, 0o700)
	existed := errors.Is(err, os.ErrExist)
	if err == nil || existed && filepath.Dir(dir) == ln.layout.root {
		err = ln.account.own(dir)
	}
	if err != nil && !existed {
		return "", ln.layout.explain("create folder "+quote(dir), err)
	}
	// Below /tmp somebody else could have made it first.
	info, err := os.Lstat(dir)
	if err != nil {
		return "", ln.layout.explain("look at folder "+quote(dir), err)
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(owner.Uid) != ln.account.uid || info.Mode().Perm() != 0o700 {
		return "", &Error{
			Op:   "use folder " + quote(dir) + " for the socket",
			Err:  fmt.Errorf("it is not a folder of user %s with mode 0700", ln.account.name),
			Hint: "remove it, or choose a shorter --data-dir, which needs no such folder",
		}
	}
	return dir, nil
}

// waitReady returns once the server answers on its socket, or with the reason why it never will.
func (pm *postmaster) waitReady(ctx context.Context, log string, begin int64) error {
	cluster := pm.launch.layout.cluster(pm.launch.binaries.Major)
	err := poll(ctx, readyPoll, func() (bool, error) {
		select {
		case <-pm.exited:
			return false, pm.ended(log, begin)
		default:
		}
		file, err := readPIDFile(cluster)
		return err == nil && file.pid == pm.process.Pid && file.ready, nil
	})
	if err != nil {
		return pm.failed("start Postgres", err)
	}
	return nil
}

// ended says why a server that was to start has ended.
func (pm *postmaster) ended(log string, begin int64) error {
	if exit, ok := errors.AsType[*exec.ExitError](pm.err); ok {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return fmt.Errorf("it was ended from outside (%s)", exit)
		}
	}
	return errors.New("it ended: " + logReason(log, begin))
}

// failed makes an Error of what Postgres has said.
func (pm *postmaster) failed(op string, err error) error {
	l, major := pm.launch.layout, pm.launch.binaries.Major
	return &Error{Op: op + " in " + quote(l.root), Err: err, Hint: l.hintFor(err.Error(), major, pm.launch.account.name, "read {log}")}
}

// stop ends the server, gently at first: fast shutdown, then without a checkpoint, then by SIGKILL.
func (pm *postmaster) stop() {
	select {
	case <-pm.exited:
		return
	default:
	}
	for _, way := range []struct {
		signal  syscall.Signal
		timeout time.Duration
	}{{syscall.SIGINT, fastStopTimeout}, {syscall.SIGQUIT, stopGrace}} {
		pm.process.Signal(way.signal)
		select {
		case <-pm.exited:
			return
		case <-time.After(way.timeout):
		}
	}
	pm.kill()
}

// kill ends every process of the server at once, as a crash would. The main process goes first, so that it starts no
// more; a backend that is busy would otherwise live on until it next looks.
func (pm *postmaster) kill() {
	pm.process.Kill()
	<-pm.exited
	for _, pid := range serverProcesses(pm.launch.layout.cluster(pm.launch.binaries.Major)) {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

// pidFile is what the server writes down about itself in postmaster.pid.
type pidFile struct {
	pid   int
	ready bool
}

func readPIDFile(cluster string) (pidFile, error) {
	body, err := os.ReadFile(filepath.Join(cluster, "postmaster.pid"))
	if err != nil {
		return pidFile{}, err
	}
	lines := strings.Split(string(body), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || pid <= 0 {
		return pidFile{}, fmt.Errorf("read postmaster.pid: no process id in %q", lines[0])
	}
	// The eighth line is the state: starting, stopping, ready, standby.
	ready := len(lines) >= 8 && strings.TrimSpace(lines[7]) == "ready"
	return pidFile{pid: pid, ready: ready}, nil
}

// clearStale removes what a killed server left behind. The caller holds server.lock, so no server of ours is alive; a
// process id in postmaster.pid that exists all the same was given to another program, for which Postgres would refuse
// to start, unless somebody has started this cluster by hand.
func clearStale(cluster, socketDir string) error {
	sockets, _ := filepath.Glob(filepath.Join(socketDir, ".s.PGSQL.*"))
	for _, socket := range sockets {
		os.Remove(socket)
	}
	file, err := readPIDFile(cluster)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil && slices.Contains(serverProcesses(cluster), file.pid) {
		return &Error{
			Op:   "start Postgres in " + quote(cluster),
			Err:  fmt.Errorf("a server that jobledger has not started runs there (process %d)", file.pid),
			Hint: "stop it with: pg_ctl stop -D " + cluster,
		}
	}
	if err == nil && errors.Is(syscall.Kill(file.pid, 0), syscall.ESRCH) {
		// Postgres clears this away itself, after a check of the shared memory that is worth having.
		return nil
	}
	return os.Remove(filepath.Join(cluster, "postmaster.pid"))
}

// onOwnThread runs f in a goroutine that shares its thread with no other.
func onOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- f()
	}()
	return <-done
}
