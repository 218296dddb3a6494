package executor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// treeEnv is the mark that every process of a command inherits: which keeper it belongs to. With the id and the start
// time of the keeper stands the namespace in which the id means something: containers may see each other's processes.
const treeEnv = "JOBLEDGER_TREE"

// sweepPoll is how often Sweep looks whether what it killed is gone.
const sweepPoll = 5 * time.Millisecond

// treeName names the tree whose keeper this process is, "" where /proc doesn't tell.
func treeName() string {
	self, ok := find(os.Getpid())
	space := pidNamespace()
	if !ok || space == "" {
		return ""
	}
	return fmt.Sprintf("%s-%d-%d", space, self.pid, self.began)
}

func markTree() []string {
	if name := treeName(); name != "" {
		return []string{treeEnv + "=" + name}
	}
	return nil
}

// pidNamespace is the number of the namespace of process ids that we are in.
func pidNamespace() string {
	link, err := os.Readlink("/proc/self/ns/pid") // pid:[4026531836]
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(strings.TrimPrefix(link, "pid:["), "]")
}

// lost reports whether a tree is of this namespace and its keeper doesn't live any more.
func lost(tree, space string) bool {
	parts := strings.Split(tree, "-")
	if len(parts) < 3 || parts[0] != space || space == "" {
		return false
	}
	pid, err := strconv.Atoi(parts[1])
	began, err2 := strconv.ParseUint(parts[2], 10, 64)
	if err != nil || err2 != nil {
		return false
	}
	p, ok := find(pid)
	return !ok || p.began != began || p.dead()
}

// Sweep kills what is left of commands whose keeper was killed, by whatever worker of this machine they were started.
// A process is known by its environment, and by its cgroup where there are cgroups; one that has neither, because it
// was started with an empty environment on a machine without cgroups, is not found. It returns how many it killed, and
// an error if some of them would not go.
func (c Containment) Sweep() (killed int, err error) {
	space := pidNamespace()
	c.sweepCgroups(space)
	seen := map[proc]bool{}
	patience, before := newPatience(), 0
	for ; ; time.Sleep(sweepPoll) {
		left := orphans(space)
		if len(left) == 0 {
			return len(seen), nil
		}
		progress := len(left) != before
		before = len(left)
		if patience.over(progress) {
			return len(seen), fmt.Errorf("sweep: %d processes of commands without a keeper could not be killed", len(left))
		}
		for _, p := range left {
			p.signal(syscall.SIGKILL)
			p.state, p.parent, p.group = 0, 0, 0 // they change; the rest is its name
			seen[p] = true
		}
	}
}

// orphans are the living processes whose mark names a keeper that is gone.
func orphans(space string) []proc {
	var found []proc
	for _, p := range processes() {
		if p.dead() {
			continue
		}
		// Of processes of other users we see nothing, and could not kill them.
		environ, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.pid), "environ"))
		if err != nil {
			continue
		}
		for entry := range bytes.SplitSeq(environ, []byte{0}) {
			if tree, ok := bytes.CutPrefix(entry, []byte(treeEnv+"=")); ok && lost(string(tree), space) {
				found = append(found, p)
				break
			}
		}
	}
	return found
}
