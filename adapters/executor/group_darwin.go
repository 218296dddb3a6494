package executor

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// processAttributes puts a child in a group of its own, so that it can be signaled with all its children. The system
// has no death signal: children outlive this process if it is killed.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// waitExited waits until the child has ended and leaves it unreaped, so that its id stays its own.
func waitExited(pid int) error {
	const byPID = 1          // P_PID
	var info [128 / 8]uint64 // siginfo_t has 104 bytes
	for {
		_, _, err := syscall.Syscall6(syscall.SYS_WAITID, byPID, uintptr(pid), uintptr(unsafe.Pointer(&info)),
			syscall.WEXITED|syscall.WNOWAIT, 0, 0)
		switch err {
		case 0:
			return nil
		case syscall.EINTR:
		default:
			return err
		}
	}
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
