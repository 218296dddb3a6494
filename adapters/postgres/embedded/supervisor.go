package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sys/unix"
)

// supervisorEnv makes this executable a supervisor: it holds a supervisorJob as JSON.
const supervisorEnv = "JOBLEDGER_EMBEDDED_SUPERVISOR"

// The descriptors that the supervisor gets from whoever starts it: a pipe for its report, and supervisor.lock, locked.
// Handed over, the lock has no moment without a holder, in which a second supervisor could come up after the client
// that started the first was killed.
const (
	reportFD = 3
	lifeFD   = 4
)

const (
	// maxRestarts is how often in a row a server that died is started again, with pauses that grow.
	maxRestarts = 5
	// stableAfter is how long a server must have run for its next death to count as the first again.
	stableAfter = time.Minute
	// trimEvery is how often the server's log is looked at.
	trimEvery = time.Minute
)

// supervisorJob is what the supervisor is told.
type supervisorJob struct {
	Detached bool              `json:"detached"` // false in the short-lived process between the client and the supervisor
	DataDir  string            `json:"data_dir"`
	Binaries Binaries          `json:"binaries"`
	TCPPort  int               `json:"tcp_port"`
	NoFsync  bool              `json:"no_fsync"`
	Settings map[string]string `json:"settings"`
}

// supervisorReport is the supervisor's only answer: the server is ready, or why it isn't.
type supervisorReport struct {
	Op    string `json:"op,omitempty"`
	Error string `json:"error,omitempty"`
	Hint  string `json:"hint,omitempty"`
}

// init turns the process into a supervisor if it was started as one. It must happen before main, so that every
// executable that links this package can be its own supervisor, test binaries included.
func init() {
	if body, ok := os.LookupEnv(supervisorEnv); ok {
		os.Exit(supervisorMain(body))
	}
}

func supervisorMain(body string) int {
	os.Unsetenv(supervisorEnv)
	var job supervisorJob
	if err := json.Unmarshal([]byte(body), &job); err != nil {
		slog.Error("supervisor without a job", slog.Any("error", err))
		return 2
	}
	if !job.Detached {
		return detach(job)
	}
	dropInherited()
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With(slog.Int("supervisor", os.Getpid()))
	s := &supervisor{layout: layout{root: job.DataDir}, job: job, log: log}
	if err := s.run(stop); err != nil {
		log.Error("supervisor ends", slog.Any("error", err))
		return 1
	}
	return 0
}

// detach starts the supervisor proper and ends at once, so that it is nobody's child: a client that lives long neither
// has to wait for it nor keeps it as a zombie.
func detach(job supervisorJob) int {
	job.Detached = true
	cmd, err := supervisorCommand(job, os.Stderr, os.NewFile(reportFD, "report"), os.NewFile(lifeFD, "supervisor.lock"))
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		slog.Error("start supervisor", slog.Any("error", err))
		return 1
	}
	return 0
}

// supervisorCommand is this executable again. On Linux /proc/self/exe works even if its file was deleted or replaced,
// as go test and upgrades do.
func supervisorCommand(job supervisorJob, log, report, life *os.File) (*exec.Cmd, error) {
	body, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	self := "/proc/self/exe"
	if _, err := os.Lstat(self); err != nil {
		if self, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command(self)
	cmd.Args = []string{"jobledger: supervisor of Postgres in " + job.DataDir}
	cmd.Dir = job.DataDir
	// A binary built with -race would sleep for a second before each exit.
	cmd.Env = append(cleanEnv(), supervisorEnv+"="+string(body), "GORACE=atexit_sleep_ms=0")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{report, life} // reportFD, lifeFD
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, nil
}

// dropInherited closes the descriptors that came from the client's own parents: a caller in a pipe would wait for the
// end of it as long as the server runs. Go's own have the close-on-exec flag, these don't.
func dropInherited() {
	const most = 1024
	for fd := lifeFD + 1; fd < most; fd++ {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
	unix.CloseOnExec(reportFD)
	unix.CloseOnExec(lifeFD)
}

// supervisor is the process that owns a shared server.
type supervisor struct {
	layout   layout
	job      supervisorJob
	log      *slog.Logger
	pm       *postmaster
	restarts restartBudget

	// The locks are kept until the process ends; a lock that nothing refers to would be closed by the garbage collector.
	life           *os.File
	clients, start *fileLock
}

// run starts the server, reports, and keeps it until no client is left, it is told to stop, or the server is stopped by
// somebody else.
func (s *supervisor) run(stop context.Context) error {
	defer runtime.KeepAlive(s)
	report := os.NewFile(reportFD, "report")
	err := s.begin(stop)
	answer(report, err)
	report.Close()
	if err != nil {
		return err
	}
	s.log.Info("server started", slog.Int("pid", s.pm.process.Pid), slog.String("version", s.job.Binaries.Version))

	idle := make(chan error, 1)
	go func() { idle <- s.waitIdle() }()
	trim := time.NewTicker(trimEvery)
	defer trim.Stop()
	for {
		select {
		case <-stop.Done():
			s.log.Info("told to stop")
			return s.end()
		case err := <-idle:
			s.log.Info("no client is left")
			return errors.Join(err, s.end())
		case <-trim.C:
			if err := trimLog(s.layout.serverLog(s.job.Binaries.Major)); err != nil {
				s.log.Warn("server log not trimmed", slog.Any("error", err))
			}
		case <-s.pm.exited:
			if s.pm.err == nil {
				s.log.Info("the server was stopped by somebody else")
				return s.end()
			}
			s.log.Warn("the server died", slog.Any("error", s.pm.err))
			if err := s.restart(stop); err != nil {
				return errors.Join(err, s.end())
			}
		}
	}
}

// begin starts the server.
func (s *supervisor) begin(ctx context.Context) (err error) {
	s.life = os.NewFile(lifeFD, "supervisor.lock")
	if s.clients, err = openLock(s.layout.clientsLock()); err != nil {
		return s.layout.explain("open clients.lock", err)
	}
	if s.start, err = openLock(s.layout.startLock()); err != nil {
		return s.layout.explain("open start.lock", err)
	}
	owner, err := s.layout.owner(s.job.Binaries.Major)
	if err != nil {
		return err
	}
	account, err := chooseAccount(owner)
	if err != nil {
		return err
	}
	ln := launch{layout: s.layout, binaries: s.job.Binaries, account: account, options: Options{
		TCPPort: s.job.TCPPort, UnsafeNoFsync: s.job.NoFsync, Settings: s.job.Settings,
	}}
	if s.pm, err = ln.start(ctx); err != nil {
		return err
	}
	if err := s.pm.createDatabase(ctx); err != nil {
		s.pm.stop()
		return err
	}
	return s.layout.writeState(s.pm.state(false))
}

// waitIdle returns when no client is left, and then holds start.lock and clients.lock until the process ends, so that
// the next client waits until the server is down. Only under start.lock may it be stopped: a client may have come in
// between, which holds start.lock while it takes its share of clients.lock.
func (s *supervisor) waitIdle() error {
	for {
		if err := errors.Join(s.clients.block(unix.LOCK_EX), s.clients.unlock(), s.start.block(unix.LOCK_EX)); err != nil {
			return err
		}
		if alone, err := s.clients.try(unix.LOCK_EX); alone || err != nil {
			return err
		}
		if err := s.start.unlock(); err != nil {
			return err
		}
	}
}

// restart starts a server that died anew, after a pause, unless that has been tried too often.
func (s *supervisor) restart(stop context.Context) error {
	for {
		pause, ok := s.restarts.next(time.Now())
		if !ok {
			return fmt.Errorf("restart Postgres: it died %d times in a row", maxRestarts+1)
		}
		select {
		case <-stop.Done():
			return context.Cause(stop)
		case <-time.After(pause):
		}
		pm, err := s.pm.launch.start(stop)
		if err != nil {
			s.log.Warn("the server didn't start again", slog.Any("error", err))
			continue
		}
		s.pm = pm
		s.log.Info("server started again", slog.Int("pid", pm.process.Pid))
		return s.layout.writeState(pm.state(false))
	}
}

// end stops the server and removes what said that it runs.
func (s *supervisor) end() error {
	s.pm.stop()
	if filepath.Dir(s.pm.socketDir) != s.layout.root {
		os.Remove(s.pm.socketDir) // one in /tmp isn't ours to keep
	}
	return os.Remove(s.layout.stateFile())
}

// answer tells the client how the start went.
func answer(report *os.File, err error) {
	var r supervisorReport
	if e, ok := errors.AsType[*Error](err); ok {
		r = supervisorReport{Op: e.Op, Error: e.Err.Error(), Hint: e.Hint}
	} else if err != nil {
		r = supervisorReport{Op: "start Postgres", Error: err.Error()}
	}
	if json.NewEncoder(report).Encode(r) != nil {
		return // the client is gone; the lock on clients.lock tells whether there are others
	}
}

// restartBudget bounds how often a dying server is started again.
type restartBudget struct {
	pauses *backoff.ExponentialBackOff
	count  int
	last   time.Time
}

// next returns the pause before the next start, or false if there were too many. A start after which the server ran
// for stableAfter is forgotten.
func (b *restartBudget) next(now time.Time) (time.Duration, bool) {
	if b.pauses == nil || now.Sub(b.last) > stableAfter {
		b.count = 0
		b.pauses = backoff.NewExponentialBackOff()
		b.pauses.InitialInterval = 50 * time.Millisecond
	}
	b.count++
	b.last = now
	return b.pauses.NextBackOff(), b.count <= maxRestarts
}
