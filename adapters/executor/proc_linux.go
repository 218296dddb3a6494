package executor

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// proc is a process as /proc shows it.
type proc struct {
	pid, parent, group int
	state              byte
	began              uint64 // in ticks since the system's start: with pid, it names a process for ever
}

// dead: it has ended, though perhaps nobody has reaped it.
func (p proc) dead() bool { return p.state == 'Z' || p.state == 'X' }

// find looks for a process by its id.
func find(pid int) (proc, bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return proc{}, false
	}
	return parseStat(stat)
}

// parseStat reads a line such as "4711 (a name) S 1 4711 ...". The name may contain anything, brackets too.
func parseStat(line []byte) (p proc, ok bool) {
	open, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if open < 0 || end < open {
		return p, false
	}
	fields := bytes.Fields(line[end+1:])
	if len(fields) < 20 {
		return p, false
	}
	var errs [4]error
	p.state = fields[0][0]
	p.pid, errs[0] = strconv.Atoi(string(bytes.TrimSpace(line[:open])))
	p.parent, errs[1] = strconv.Atoi(string(fields[1]))
	p.group, errs[2] = strconv.Atoi(string(fields[2]))
	p.began, errs[3] = strconv.ParseUint(string(fields[19]), 10, 64)
	return p, errors.Join(errs[:]...) == nil
}

// signal sends s to p and to nobody who has got its id meanwhile: the handle is taken first, then it is tested that it
// is of p. Kernels before 5.3 have no such handles.
func (p proc) signal(s syscall.Signal) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if errors.Is(err, unix.ENOSYS) {
		if now, ok := find(p.pid); ok && now.began == p.began {
			_ = syscall.Kill(p.pid, s)
		}
		return
	}
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if now, ok := find(p.pid); ok && now.began == p.began {
		_ = unix.PidfdSendSignal(fd, s, nil, 0)
	}
}
