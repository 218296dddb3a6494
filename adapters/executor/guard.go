package executor

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// guardEnv makes this executable a guard.
const guardEnv = "JOBLEDGER_EXECUTOR_GUARD"

// Guard is a small process beside this one that kills the groups of the commands under way when this process dies,
// however it dies. The kernel's death signal reaches only the first process of a command, and a shell is seldom the one
// that does the work.
//
// It is this very executable, started again, and knows of our end by the end of a pipe.
type Guard struct {
	mu     sync.Mutex
	cmd    *exec.Cmd
	pipe   io.WriteCloser
	groups map[int]bool
}

// init turns the process into a guard if it was started as one. It must happen before main, so that every executable
// that links this package can be its own guard, test binaries included.
func init() {
	if os.Getenv(guardEnv) != "" {
		// Who stops this process stops us too, mostly; but we are needed until the end of the pipe.
		signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		guard(os.Stdin, func(group int) { _ = syscall.Kill(-group, syscall.SIGKILL) })
		os.Exit(0)
	}
}

// guard reads +ID when a group begins and -ID when it has ended, and kills what is left at the end.
func guard(from io.Reader, kill func(group int)) {
	groups := map[int]bool{}
	for lines := bufio.NewScanner(from); lines.Scan(); {
		id, err := strconv.Atoi(lines.Text())
		if err != nil || id == 0 {
			continue // a line that was cut off in the middle
		}
		if id > 0 {
			groups[id] = true
		} else {
			delete(groups, -id)
		}
	}
	for id := range groups {
		kill(id)
	}
}

// StartGuard starts a guard. Close it when no command is under way any more.
func StartGuard() (*Guard, error) {
	g := &Guard{groups: map[int]bool{}}
	if err := g.launch(); err != nil {
		return nil, fmt.Errorf("start guard: %w", err)
	}
	return g, nil
}

func (g *Guard) launch() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if runtime.GOOS == "linux" {
		self = "/proc/self/exe" // there even if the file was replaced, as upgrades do
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), guardEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a terminal's ^C is not for it
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	g.cmd, g.pipe = cmd, pipe
	for id := range g.groups {
		fmt.Fprintf(pipe, "%+d\n", id)
	}
	return nil
}

// gate is a shell script that runs its arguments in its place as soon as a line arrives on descriptor 3, and not at all
// if the pipe ends before: a command must not do anything before the guard knows of it.
const gate = `read -r _ <&3 || exit 1; exec 3<&-; exec "$@"`

// gated is the command behind the gate. Its first file is to be the gate's pipe.
func gated(c Command) (*exec.Cmd, error) {
	path := c.Path
	if !strings.Contains(path, "/") {
		var err error
		if path, err = exec.LookPath(path); err != nil {
			return nil, err
		}
	}
	return exec.Command("/bin/sh", append([]string{"-c", gate, "sh", path}, c.Args...)...), nil
}

// add enters a group. A nil Guard guards nothing.
func (g *Guard) add(group int) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.groups[group] = true
	g.tell(group)
}

// remove takes a group out. Its first process must not have been reaped yet, so that its id is still its own.
func (g *Guard) remove(group int) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.groups, group)
	g.tell(-group)
}

// tell writes to the guard. One that somebody has killed is replaced by another, once for each change.
func (g *Guard) tell(change int) {
	if _, err := fmt.Fprintf(g.pipe, "%+d\n", change); err != nil {
		g.end()
		if g.launch() != nil {
			g.pipe = nowhere{}
		}
	}
}

// Close ends the guard, which kills what is still entered.
func (g *Guard) Close() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end()
	g.pipe = nowhere{}
}

// end closes the pipe and waits for the guard's end.
func (g *Guard) end() {
	_ = g.pipe.Close()
	if g.cmd != nil {
		_ = g.cmd.Wait() // how a guard ended matters to nobody
		g.cmd = nil
	}
}

// nowhere stands for a guard that could not be started: the next change tries again.
type nowhere struct{}

func (nowhere) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
func (nowhere) Close() error              { return nil }
