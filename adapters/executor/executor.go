// Package executor runs one command and everything that comes of it, with output that is bounded whatever the command
// prints, until no process of it is left. It knows nothing of jobs.
//
// Each command has a keeper: this very executable, started again as the parent of the command (keeper.go). On Linux the
// keeper is a child subreaper, so that what a command puts into the background, whether it forks twice, changes its group
// or opens a session of its own, stays below the keeper and is known as that command's. Where a cgroup can be had it
// is used besides (cgroup_linux.go).
//
// What it promises when Run has returned:
//   - every process of the command is gone, those in the background included: the first process is the command, and
//     what it leaves behind is killed as soon as it has ended;
//   - no goroutine and no descriptor is left, also where a process that could not be killed holds the pipes;
//   - Result says how the command ended: its exit code, or the signal, and whether it was us who stopped it.
//
// When this process is killed, each keeper kills what it keeps. When a keeper is killed, the kernel kills the first
// process, and the worker the rest; when both are, the rest is there until somebody calls Containment.Sweep.
//
// What it does not promise: on macOS only the process group of a command is known, and what leaves it is not seen.
// Processes that run as another user, whom this one may not signal, are not killed (Result.Survived).
package executor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The defaults of a Command.
const (
	DefaultGrace       = 5 * time.Second
	DefaultStdoutLimit = 1 << 20
	DefaultStderrLimit = 16 << 10
)

var (
	// ErrKilled is why a command was stopped by Command.Kill.
	ErrKilled = errors.New("killed at once")
	// ErrKeeperLost says that the keeper of a command ended before the command, as when somebody kills it. The command
	// is gone; how it ended nobody knows.
	ErrKeeperLost = errors.New("the keeper of the command was lost")
)

// Command is a program to run once.
type Command struct {
	// Path is the program: a path, or a name that is looked up in PATH.
	Path string
	// Args are its arguments, without its own name.
	Args []string
	// Dir is its working directory. Default: that of this process.
	Dir string
	// Env is its whole environment, as name=value. Default: that of this process. On Linux a mark is added by which
	// Containment.Sweep knows its processes.
	Env []string
	// Stdin is what it reads; after that, or if nil, it finds the end of its input. It needn't read it.
	Stdin []byte
	// Grace is how long it may take to end after SIGTERM before what is left gets SIGKILL. Default 5 s.
	Grace time.Duration
	// Kill, when closed, ends everything by SIGKILL at once, also in the middle of the grace. Default: never.
	Kill <-chan struct{}
	// Containment is what Detect found. Default: the keeper alone.
	Containment Containment
	// Memory is how many bytes of memory it may use: all its processes together where the Containment can limit
	// that, else each of them as address space (RLIMIT_AS), which is more than it uses. Default: no limit. On macOS
	// there is none, and a command that asks for one is not started.
	Memory int64
	// StdoutLimit and StderrLimit are how many bytes of its output are kept: of longer output the first and the last
	// half, with a mark between them. Default 1 MiB and 16 KiB.
	StdoutLimit, StderrLimit int
}

// Run runs the command and waits for its end. When ctx ends first, every process of it gets SIGTERM, and SIGKILL after
// the grace; Result.Stopped is then the cause of ctx, or ErrKilled where Command.Kill came first.
//
// However the command ended, the error is nil: it tells only of a command that could not be started, or whose keeper
// was lost (ErrKeeperLost). A ctx that is over before the start is such an error, with its cause.
func Run(ctx context.Context, c Command) (Result, error) {
	if ctx.Err() != nil {
		return Result{}, fmt.Errorf("run %s: %w", c.Path, context.Cause(ctx))
	}
	begin := time.Now()
	p, err := start(c.withDefaults())
	if err != nil {
		return Result{}, fmt.Errorf("run %s: %w", c.Path, err)
	}
	stopping := p.stopAfter(ctx, c.Kill)
	told, err := p.await()
	cause := stopping()
	if err == nil {
		err = told.err(c.Path)
	} else {
		// Its first process dies with the keeper; the others have nobody any more.
		_, swept := c.Containment.Sweep()
		err = errors.Join(err, swept)
	}
	result := p.finish(told)
	result.Elapsed = time.Since(begin)
	if told.Stopped {
		result.Stopped = cause
	}
	if err != nil {
		return result, fmt.Errorf("run %s: %w", c.Path, err)
	}
	return result, nil
}

func (c Command) withDefaults() Command {
	if c.Grace <= 0 {
		c.Grace = DefaultGrace
	}
	if c.StdoutLimit <= 0 {
		c.StdoutLimit = DefaultStdoutLimit
	}
	if c.StderrLimit <= 0 {
		c.StderrLimit = DefaultStderrLimit
	}
	return c
}

// process is a command that has been started.
type process struct {
	keeper  *exec.Cmd
	grace   time.Duration
	orders  *os.File  // to the keeper
	reports *os.File  // from the keeper
	streams []*stream // stdin, stdout, stderr
	stdout  *excerpt
	stderr  *excerpt
}

// start starts the keeper, which starts the command. The pipes are our own: those of os/exec would make Wait hang, or
// cut what is in them.
func start(c Command) (_ *process, err error) {
	p := &process{grace: c.Grace, stdout: &excerpt{limit: c.StdoutLimit}, stderr: &excerpt{limit: c.StderrLimit}}
	if p.keeper, err = keeperOf(c); err != nil {
		return nil, err
	}
	var pipes pipes
	defer func() { pipes.close(err != nil) }()
	if err := p.connect(&pipes); err != nil {
		return nil, err
	}
	if err := p.keeper.Start(); err != nil {
		return nil, fmt.Errorf("start its keeper: %w", err)
	}
	p.streams[0].write(bytes.NewReader(c.Stdin))
	p.streams[1].read(p.stdout)
	p.streams[2].read(p.stderr)
	return p, nil
}

// keeperOf is the keeper of a command: what it keeps are its own arguments, environment and folder.
func keeperOf(c Command) (*exec.Cmd, error) {
	path := c.Path
	if !strings.Contains(path, "/") {
		var err error
		if path, err = exec.LookPath(path); err != nil {
			return nil, err
		}
	}
	args := append([]string{path}, c.Args...)
	charge := charge{Grace: c.Grace, Cgroup: c.Containment.Cgroup}
	switch {
	case c.Memory > 0 && runtime.GOOS != "linux":
		return nil, errors.New("this system has no memory limit")
	case c.Memory > 0 && c.Containment.Memory:
		charge.Memory = c.Memory
	case c.Memory > 0:
		args = append([]string{"/bin/sh", "-c", limited, strconv.FormatInt(max(c.Memory>>10, 1), 10)}, args...)
	}
	self := "/proc/self/exe" // there even if the file was replaced, as upgrades do
	if runtime.GOOS != "linux" {
		var err error
		if self, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	env := c.Env
	if env == nil {
		env = os.Environ()
	}
	return &exec.Cmd{Path: self, Args: args, Dir: c.Dir, Env: append(env[:len(env):len(env)], keeperEnv+"="+charge.String()),
		SysProcAttr: &syscall.SysProcAttr{Setsid: true}}, nil // a terminal's ^C is not for it
}

// limited is a shell script that runs its arguments in its place, with a limit in KiB for the address space.
const limited = `ulimit -v "$0" && exec "$@"`

// connect makes the three standard streams and the two that go to the keeper itself.
func (p *process) connect(pipes *pipes) (err error) {
	var theirs []*os.File
	for i := range 3 {
		s := &stream{}
		if i == 0 {
			s.ours, err = pipes.toChild(&theirs)
		} else {
			s.ours, err = pipes.fromChild(&theirs)
		}
		if err != nil {
			return err
		}
		p.streams = append(p.streams, s)
	}
	if p.orders, err = pipes.toChild(&theirs); err != nil {
		return err
	}
	if p.reports, err = pipes.fromChild(&theirs); err != nil {
		return err
	}
	p.keeper.Stdin, p.keeper.Stdout, p.keeper.Stderr, p.keeper.ExtraFiles = theirs[0], theirs[1], theirs[2], theirs[3:]
	return nil
}

// stopAfter orders the end when ctx ends, and at once when kill is closed. The function that it returns waits until
// nothing of that is under way; it returns why the command was to be stopped, nil if it was not.
func (p *process) stopAfter(ctx context.Context, kill <-chan struct{}) (stopping func() error) {
	ended, cause := make(chan struct{}), make(chan error, 1)
	go func() {
		var why error
		defer func() { cause <- why }()
		var overdue <-chan time.Time
		done := ctx.Done()
		for {
			select {
			case <-ended:
				return
			case <-done:
				why, done = context.Cause(ctx), nil
				p.order(orderStop)
				overdue = time.After(p.grace + goneLongest + goneTimeout)
			case <-kill:
				if why == nil {
					why = ErrKilled
				}
				kill, done = nil, nil
				p.order(orderKill)
				overdue = time.After(goneLongest + goneTimeout)
			case <-overdue:
				// It doesn't do its part: somebody has stopped it.
				_ = p.keeper.Process.Kill()
			}
		}
	}()
	return func() error {
		close(ended)
		return <-cause
	}
}

// order tells the keeper. One that has ended by itself meanwhile needs no orders.
func (p *process) order(o byte) { _, _ = p.orders.Write([]byte{o}) }

// await waits for the keeper's report, and for its end.
func (p *process) await() (told report, err error) {
	decodeErr := json.NewDecoder(p.reports).Decode(&told)
	p.reports.Close()
	err = p.keeper.Wait()
	p.orders.Close()
	if decodeErr == nil {
		return told, nil
	}
	if err == nil {
		err = decodeErr
	}
	return report{}, fmt.Errorf("%w: %w", ErrKeeperLost, err)
}

// finish collects the output, and says how the command ended.
func (p *process) finish(told report) Result {
	r := Result{Killed: told.Killed, Survived: told.Survived, OutOfMemory: told.OutOfMemory}
	for _, s := range p.streams {
		s.finish()
	}
	r.Stdout, r.StdoutCut = p.stdout.bytes()
	r.Stderr, r.StderrCut = p.stderr.bytes()
	if r.ExitCode = told.Status.ExitStatus(); told.Status.Signaled() {
		r.Signal, r.Core = told.Status.Signal(), told.Status.CoreDump()
	}
	return r
}
