package executor

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tree is the process group of a command: this system has no subreaper, no cgroup and no death signal.
type tree struct {
	first  int  // the first process, which leads the group
	ended  bool // the first process has ended; it is reaped last, so that the group's id stays its own
	status syscall.WaitStatus
	empty  bool // nothing is left
	left   int  // how many there were when we last looked
}

func (t *tree) start(_ charge, args []string) (err error) {
	t.first, err = syscall.ForkExec(args[0], args, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setpgid: true}})
	return err
}

// reap takes note of what has ended, and reports whether something has.
func (t *tree) reap() (some bool) {
	t.ended = t.ended || exited(t.first)
	left := len(members(t.first))
	some, t.left = left < t.left, left
	if !t.ended || t.empty || left > 0 {
		return some
	}
	for {
		if _, err := syscall.Wait4(t.first, &t.status, 0, nil); err != syscall.EINTR {
			t.empty = true
			return true
		}
	}
}

// signal sends s to every process of the group. There may be none left, and that is no error.
func (t *tree) signal(s syscall.Signal) { _ = syscall.Kill(-t.first, s) }

func (t *tree) outOfMemory() bool { return false }
func (t *tree) close()            {}

// exited reports whether a child has ended, and leaves it unreaped.
func exited(pid int) bool {
	const byPID = 1          // P_PID
	var info [128 / 8]uint64 // siginfo_t has 104 bytes; its first word stays 0 where nothing has happened
	_, _, err := syscall.Syscall6(syscall.SYS_WAITID, byPID, uintptr(pid), uintptr(unsafe.Pointer(&info)),
		syscall.WEXITED|syscall.WNOWAIT|syscall.WNOHANG, 0, 0)
	return err == 0 && info[0] != 0
}

// zombie is the state of a process that has ended but is not reaped (SZOMB).
const zombie = 5

// members returns the processes of a group that are alive, which those that nobody has reaped are not.
func members(group int) []int {
	processes, err := unix.SysctlKinfoProcSlice("kern.proc.pgrp", group)
	if err != nil {
		return nil
	}
	var pids []int
	for _, p := range processes {
		if p.Proc.P_stat != zombie {
			pids = append(pids, int(p.Proc.P_pid))
		}
	}
	return pids
}

// Detect finds nothing on this system.
func Detect(bool) Containment { return Containment{} }

// Sweep finds nothing on this system: what outlives its keeper is not known.
func (Containment) Sweep() (killed int, err error) { return 0, nil }
