package executor

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// tree is everything that comes of a command: its keeper is a child subreaper, so that whatever loses its parent, in
// any group or session, becomes a child of the keeper, and so nothing is left when the keeper has no child any more.
type tree struct {
	first  int  // the first process, which leads a group of its own
	ended  bool // the first process has ended
	status syscall.WaitStatus
	empty  bool // nothing is left
	cgroup *cgroup
}

// start starts the first process. Where there is a cgroup for it, but it cannot be entered, it does without, unless
// the cgroup is what limits its memory.
func (t *tree) start(c charge, args []string) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	attr := &syscall.ProcAttr{
		Env:   append(os.Environ(), markTree()...),
		Files: []uintptr{0, 1, 2},
		// The death signal is for the case that somebody kills the keeper.
		Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	}
	var err error
	if c.Cgroup != "" {
		if t.cgroup, err = makeCgroup(c.Cgroup, treeName(), c.Memory); err == nil {
			attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, t.cgroup.fd()
			t.first, err = syscall.ForkExec(args[0], args, attr)
		}
		if err == nil || c.Memory > 0 {
			return plain(err)
		}
		attr.Sys.UseCgroupFD = false
	}
	t.first, err = syscall.ForkExec(args[0], args, attr)
	return err
}

// plain is the number in an error of a system call.
func plain(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// reap takes up what has ended, and reports whether something has. Nobody else in this process may: an id is its own
// until then.
func (t *tree) reap() (some bool) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // ECHILD
			t.empty = true
			return some
		case pid == 0:
			return some
		case pid == t.first:
			t.ended, t.status, some = true, status, true
		default:
			some = true
		}
	}
}

// signal sends s to every process of the tree, once to each.
func (t *tree) signal(s syscall.Signal) {
	if s == unix.SIGKILL {
		t.cgroup.kill()
	}
	if !t.ended {
		_ = syscall.Kill(-t.first, s) // all of the group at the same instant
	}
	for _, p := range descendants(os.Getpid()) {
		if t.ended || p.group != t.first {
			p.signal(s)
		}
	}
}

// outOfMemory reports whether the kernel has killed something of the tree because of its memory limit.
func (t *tree) outOfMemory() bool { return t.cgroup.outOfMemory() }

// close clears up.
func (t *tree) close() { t.cgroup.remove() }

// descendants are the living processes below parent. Who begins or ends meanwhile may be missing or be there.
func descendants(parent int) []proc {
	all := processes()
	below := map[int]bool{parent: true}
	var found []proc
	// A child may stand before its parent, once ids have wrapped around: as many rounds as bring something new.
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if below[p.parent] && !below[p.pid] {
				below[p.pid], grown = true, true
				if !p.dead() {
					found = append(found, p)
				}
			}
		}
	}
	return found
}

// processes are all processes of this system that can be seen.
func processes() []proc {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	var all []proc
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		// One that ends meanwhile has no file any more.
		if stat, err := os.ReadFile(filepath.Join("/proc", name, "stat")); err == nil {
			if p, ok := parseStat(stat); ok {
				all = append(all, p)
			}
		}
	}
	return all
}
