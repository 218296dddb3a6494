package executor

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// processAttributes puts a child in a group of its own, so that it can be signaled with all its children, and lets the
// kernel kill it when this process dies: nobody would hear of its end.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// waitExited waits until the child has ended and leaves it unreaped, so that its id stays its own.
func waitExited(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// members returns the processes of a group that are alive, which those that nobody has reaped are not.
func members(group int) []int {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil
	}
	var pids []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		// One that ends meanwhile has no file any more.
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		if state, of := parseStat(stat); of == group && state != 'Z' && state != 'X' {
			pids = append(pids, pid)
		}
	}
	return pids
}

// parseStat reads state and process group from a line such as "4711 (a name) S 1 4711 ...". The name may contain
// anything, brackets too.
func parseStat(line []byte) (state byte, group int) {
	fields := bytes.Fields(line[bytes.LastIndexByte(line, ')')+1:])
	if len(fields) < 3 {
		return 0, 0
	}
	group, err := strconv.Atoi(string(fields[2]))
	if err != nil {
		return 0, 0
	}
	return fields[0][0], group
}
