package executor

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Result is how a command ended and what it printed.
type Result struct {
	// ExitCode is what it exited with, -1 if a signal ended it.
	ExitCode int
	// Signal is what ended it, 0 if it exited by itself. Core says that the system dumped its memory.
	Signal syscall.Signal
	Core   bool
	// Stopped is why we stopped it, the cause of Run's context; nil if it ended by itself. A command may exit with 0
	// after SIGTERM: that says that it has cleared up, not that it has done what it was for.
	Stopped error
	// Killed: SIGTERM was not enough, or not waited for: what was left got SIGKILL.
	Killed bool
	// Survived: something of it could not be killed, such as a process that hangs in the kernel.
	Survived bool
	// OutOfMemory: the kernel killed something of it because it used more than Command.Memory. It is known only where
	// Containment.Memory is true.
	OutOfMemory bool
	// Stdout and Stderr are what it printed, StdoutCut and StderrCut how many bytes were left out of their middle.
	Stdout, Stderr       []byte
	StdoutCut, StderrCut int64
	// Elapsed is the time from the start to the end of the last process.
	Elapsed time.Duration
}

// Success reports whether the command ended by itself with exit code 0.
func (r Result) Success() bool { return r.Stopped == nil && r.Signal == 0 && r.ExitCode == 0 }

// String says how the command ended, in words without line breaks: "exit code 3", "killed by SIGSEGV (core dumped)",
// "job was canceled: stopped by SIGTERM", "out of memory: killed by SIGKILL".
func (r Result) String() string {
	if r.OutOfMemory {
		r.OutOfMemory = false
		return "out of memory: " + r.String()
	}
	switch {
	case r.Stopped != nil && r.Killed && errors.Is(r.Stopped, ErrKilled):
		return fmt.Sprintf("%s: stopped by SIGKILL", r.Stopped)
	case r.Stopped != nil && r.Killed:
		return fmt.Sprintf("%s: stopped by SIGKILL, since it did not end after SIGTERM", r.Stopped)
	case r.Stopped != nil:
		return fmt.Sprintf("%s: stopped by SIGTERM", r.Stopped)
	case r.Signal != 0 && r.Core:
		return fmt.Sprintf("killed by %s (core dumped)", signalName(r.Signal))
	case r.Signal != 0:
		return "killed by " + signalName(r.Signal)
	}
	// A shell reports the death of the command in it as 128 and the signal's number.
	if inner := syscall.Signal(r.ExitCode - 128); inner > 0 && unix.SignalName(inner) != "" {
		return fmt.Sprintf("exit code %d (128+%d: probably killed by %s)", r.ExitCode, int(inner), signalName(inner))
	}
	switch r.ExitCode {
	case 126:
		return "exit code 126 (as a shell says of a command that cannot be executed)"
	case 127:
		return "exit code 127 (as a shell says of a command that was not found)"
	}
	return fmt.Sprintf("exit code %d", r.ExitCode)
}

// signalName is SIGTERM rather than 15; signals without a name keep their number.
func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(s))
}
