package executor

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupPrefix is how the names of our cgroups begin; the name of the tree follows.
const cgroupPrefix = "jobledger-"

// Detect looks for a cgroup (version 2) below which this process may make others: its own, or the one above it where
// systemd has delegated that (Delegate= with DelegateSubgroup=). With memory, a place where memory can be limited is
// preferred, and the controller is switched on there if need be. The zero Containment means that there is none.
func Detect(memory bool) Containment {
	own := ownCgroup("/proc/self/mountinfo", "/proc/self/cgroup")
	if own == "" {
		return Containment{}
	}
	best := Containment{}
	for _, dir := range []string{own, filepath.Dir(own)} {
		if dir != own && !delegated(dir) {
			continue
		}
		c := probeCgroup(dir, memory)
		if c.Memory || best.Cgroup == "" {
			best = c
		}
		if c.Memory {
			break
		}
	}
	return best
}

// ownCgroup is the folder of the cgroup that this process is in, "" where there is no hierarchy of version 2.
func ownCgroup(mountinfo, membership string) string {
	path := ""
	eachLine(membership, func(line string) {
		if p, ok := strings.CutPrefix(line, "0::"); ok {
			path = p
		}
	})
	if path == "" {
		return ""
	}
	folder := ""
	eachLine(mountinfo, func(line string) {
		before, after, _ := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if !strings.HasPrefix(after, "cgroup2 ") || len(fields) < 5 || folder != "" {
			return
		}
		// A mount may show a part of the hierarchy only: its root is that part's path.
		if inside, ok := strings.CutPrefix(path, strings.TrimSuffix(fields[3], "/")); ok {
			folder = filepath.Join(fields[4], inside)
		}
	})
	return folder
}

func eachLine(file string, f func(line string)) {
	opened, err := os.Open(file)
	if err != nil {
		return
	}
	defer opened.Close()
	for lines := bufio.NewScanner(opened); lines.Scan(); {
		f(lines.Text())
	}
}

// delegated reports whether systemd has given dir away: it marks it so.
func delegated(dir string) bool {
	buf := make([]byte, 8)
	n, err := unix.Getxattr(dir, "user.delegate", buf)
	return err == nil && string(buf[:n]) == "1"
}

// probeCgroup tries what a command needs.
func probeCgroup(dir string, memory bool) Containment {
	if memory {
		// Not allowed where processes are in dir itself; the file that is looked for below tells.
		_ = write(dir, "cgroup.subtree_control", "+memory")
	}
	c, err := makeCgroup(dir, fmt.Sprintf("%s-%x", treeName(), rand.Uint32()), 0)
	if err != nil {
		return Containment{}
	}
	defer c.remove()
	if unix.Access(filepath.Join(c.dir, "cgroup.kill"), unix.W_OK) != nil { // since Linux 5.14
		return Containment{}
	}
	return Containment{Cgroup: dir, Memory: unix.Access(filepath.Join(c.dir, "memory.max"), unix.W_OK) == nil}
}

// cgroup is that of one command. A nil cgroup does nothing.
type cgroup struct {
	dir    string
	handle *os.File
}

// makeCgroup makes one below base for a tree, with at most memory bytes where that isn't 0.
func makeCgroup(base, name string, memory int64) (*cgroup, error) {
	c := &cgroup{dir: filepath.Join(base, cgroupPrefix+name)}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return nil, err
	}
	err := c.limit(memory)
	if err == nil {
		c.handle, err = os.Open(c.dir)
	}
	if err != nil {
		c.remove()
		return nil, err
	}
	return c, nil
}

// limit bounds the memory of the cgroup. When it is used up, all of the command is killed and not a part of it; where
// there is swap space, it isn't used in its place.
func (c *cgroup) limit(memory int64) error {
	if memory == 0 {
		return nil
	}
	_ = write(c.dir, "memory.oom.group", "1") // since Linux 4.19
	_ = write(c.dir, "memory.swap.max", "0")  // only where swap is accounted
	return write(c.dir, "memory.max", strconv.FormatInt(memory, 10))
}

func (c *cgroup) fd() int { return int(c.handle.Fd()) }

// kill kills whatever is in it at this instant.
func (c *cgroup) kill() {
	if c != nil {
		_ = write(c.dir, "cgroup.kill", "1")
	}
}

// outOfMemory reports whether the kernel has killed something in it for want of memory.
func (c *cgroup) outOfMemory() bool {
	killed := false
	if c != nil {
		eachLine(filepath.Join(c.dir, "memory.events"), func(line string) {
			if n, ok := strings.CutPrefix(line, "oom_kill "); ok && n != "0" {
				killed = true
			}
		})
	}
	return killed
}

// remove removes it. The kernel may need a moment after the last process has been reaped.
func (c *cgroup) remove() {
	if c == nil {
		return
	}
	if c.handle != nil {
		c.handle.Close()
	}
	for deadline := time.Now().Add(goneTimeout / 4); unix.Rmdir(c.dir) == unix.EBUSY && time.Now().Before(deadline); {
		time.Sleep(sweepPoll)
	}
}

// sweepCgroups kills and removes the cgroups of trees whose keeper is gone.
func (c Containment) sweepCgroups(space string) {
	if c.Cgroup == "" {
		return
	}
	dirs, err := filepath.Glob(filepath.Join(c.Cgroup, cgroupPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		if lost(strings.TrimPrefix(filepath.Base(dir), cgroupPrefix), space) {
			left := &cgroup{dir: dir}
			left.kill()
			left.remove()
		}
	}
}

func write(dir, file, text string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err = fmt.Fprint(f, text); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
