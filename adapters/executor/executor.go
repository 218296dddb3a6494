// Package executor runs one command: in a process group of its own, with output that is bounded whatever the command
// prints, until no process of the group is left. It knows nothing of jobs.
//
// What it promises when Run has returned:
//   - every process of the command's group is gone, those in the background included: the first process is the
//     command, and what it leaves behind is killed as soon as it has ended;
//   - no goroutine and no descriptor is left, also where a process that has left the group holds the pipes;
//   - Result says how the command ended: its exit code, or the signal, and whether it was us who stopped it.
//
// What it does not promise: a process that moves to a group or session of its own (setsid) is no longer seen.
package executor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// The defaults of a Command.
const (
	DefaultGrace       = 5 * time.Second
	DefaultStdoutLimit = 1 << 20
	DefaultStderrLimit = 16 << 10
)

// ErrKilled is why a command was stopped by Command.Kill.
var ErrKilled = errors.New("killed at once")

// Command is a program to run once.
type Command struct {
	// Path is the program: a path, or a name that is looked up in PATH.
	Path string
	// Args are its arguments, without its own name.
	Args []string
	// Dir is its working directory. Default: that of this process.
	Dir string
	// Env is its whole environment, as name=value. Default: that of this process.
	Env []string
	// Stdin is what it reads; after that, or if nil, it finds the end of its input. It needn't read it.
	Stdin []byte
	// Grace is how long it may take to end after SIGTERM before its group gets SIGKILL. Default 5 s.
	Grace time.Duration
	// Kill, when closed, ends the group by SIGKILL at once, also in the middle of the grace. Default: never.
	Kill <-chan struct{}
	// Guard kills the group when this process dies. Default: none; on Linux the first process then dies alone.
	Guard *Guard
	// StdoutLimit and StderrLimit are how many bytes of its output are kept: of longer output the first and the last
	// half, with a mark between them. Default 1 MiB and 16 KiB.
	StdoutLimit, StderrLimit int
}

// Run runs the command and waits for its end. When ctx ends first, the group gets SIGTERM, and SIGKILL after the
// grace; Result.Stopped is then the cause of ctx, or ErrKilled where Command.Kill came first.
//
// However the command ended, the error is nil: it tells only of a command that could not be started, or not be waited
// for. A ctx that is over before the start is such an error, with its cause.
func Run(ctx context.Context, c Command) (Result, error) {
	if ctx.Err() != nil {
		return Result{}, fmt.Errorf("run %s: %w", c.Path, context.Cause(ctx))
	}
	// The death signal of a child is sent when the thread that started it ends, so the thread must outlive the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin := time.Now()
	p, err := start(c.withDefaults())
	if err != nil {
		return Result{}, fmt.Errorf("run %s: %w", c.Path, err)
	}
	settled := p.stopAfter(ctx, c.Kill)
	err = waitExited(p.cmd.Process.Pid)
	result := p.finish(settled)
	result.Elapsed = time.Since(begin)
	if err != nil {
		return result, fmt.Errorf("run %s: wait: %w", c.Path, err)
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
	cmd     *exec.Cmd
	group   group
	guard   *Guard
	streams []*stream // stdin, stdout, stderr
	stdout  *excerpt
	stderr  *excerpt
}

// start starts the command with pipes of our own: those of os/exec would make Wait hang, or cut what is in them.
func start(c Command) (_ *process, err error) {
	p := &process{
		cmd:    exec.Command(c.Path, c.Args...),
		guard:  c.Guard,
		stdout: &excerpt{limit: c.StdoutLimit},
		stderr: &excerpt{limit: c.StderrLimit},
	}
	var pipes pipes
	defer func() { pipes.close(err != nil) }()
	var open *os.File
	if p.guard != nil {
		if p.cmd, err = gated(c); err != nil {
			return nil, err
		}
		if open, err = pipes.toChild(&p.cmd.ExtraFiles); err != nil {
			return nil, err
		}
	}
	p.cmd.Dir, p.cmd.Env, p.cmd.SysProcAttr = c.Dir, c.Env, processAttributes()
	if err := p.connect(&pipes); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.group = group{id: p.cmd.Process.Pid, grace: c.Grace}
	if p.guard != nil {
		p.guard.add(p.group.id)
		_, _ = open.WriteString("\n") // a command that was killed already is waited for as any other
		open.Close()
	}
	p.streams[0].write(bytes.NewReader(c.Stdin))
	p.streams[1].read(p.stdout)
	p.streams[2].read(p.stderr)
	return p, nil
}

// connect makes the three standard streams.
func (p *process) connect(pipes *pipes) error {
	var theirs []*os.File
	in, err := pipes.toChild(&theirs)
	if err != nil {
		return err
	}
	p.streams = append(p.streams, &stream{ours: in})
	for range 2 {
		out, err := pipes.fromChild(&theirs)
		if err != nil {
			return err
		}
		p.streams = append(p.streams, &stream{ours: out})
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = theirs[0], theirs[1], theirs[2]
	return nil
}

// stopAfter stops the group when ctx ends, and kills it when kill is closed. The function that it returns waits until
// nothing of that is under way.
func (p *process) stopAfter(ctx context.Context, kill <-chan struct{}) (settled func()) {
	ended := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-ended:
				return
			case <-ctx.Done():
				p.group.stop(context.Cause(ctx))
				ctx = context.WithoutCancel(ctx) // once is enough
			case <-kill:
				p.group.killNow()
				return
			}
		}
	})
	return func() {
		close(ended)
		watch.Wait()
	}
}

// finish clears up after the first process has ended, and says how. The order matters: as long as that process isn't
// reaped, nobody else can get its id, so that signals to the group reach nobody else.
func (p *process) finish(settled func()) Result {
	r := Result{}
	r.Stopped, r.Killed = p.group.end()
	settled()
	p.guard.remove(p.group.id)
	// Wait returns how the process ended as an error too; what counts is in ProcessState.
	_ = p.cmd.Wait()
	r.Survived = !p.group.gone()
	for _, s := range p.streams {
		s.finish()
	}
	r.Stdout, r.StdoutCut = p.stdout.bytes()
	r.Stderr, r.StderrCut = p.stderr.bytes()
	r.ExitCode = p.cmd.ProcessState.ExitCode()
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		r.Signal, r.Core = status.Signal(), status.CoreDump()
	}
	return r
}
