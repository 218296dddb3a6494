package executor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// fakeCgroups is a folder that looks as the kernel's do. What the kernel makes of the files is not tested with it.
func fakeCgroups(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, file := range files {
		fill(t, filepath.Join(dir, file), "")
	}
	return dir
}

func fill(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestOwnCgroup(t *testing.T) {
	t.Parallel()
	const v2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	for _, tc := range []struct{ name, mounts, membership, want string }{
		{"service", v2, "0::/system.slice/jobledger.service\n", "/sys/fs/cgroup/system.slice/jobledger.service"},
		{"container", v2, "0::/\n", "/sys/fs/cgroup"},
		{"hybrid", "30 29 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			"4:memory:/a\n0::/user.slice\n", "/sys/fs/cgroup/unified/user.slice"},
		{"part_of_the_hierarchy", "29 23 0:26 /pods/p1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/pods/p1/c1\n", "/sys/fs/cgroup/c1"},
		{"another_part", "29 23 0:26 /pods/p1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/pods/p2\n", ""},
		{"version_1_only", "30 29 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", "4:memory:/a\n", ""},
		{"not_mounted", "", "0::/a\n", ""},
		{"nothing", "", "", ""},
	} {
		dir := t.TempDir()
		mounts, membership := filepath.Join(dir, "mountinfo"), filepath.Join(dir, "cgroup")
		fill(t, mounts, tc.mounts)
		fill(t, membership, tc.membership)
		if got := ownCgroup(mounts, membership); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// A memory limit is written where the kernel looks for it, and its use is read from where the kernel tells it.
func TestCgroupMemory(t *testing.T) {
	t.Parallel()
	dir := fakeCgroups(t, "memory.max", "memory.oom.group", "memory.swap.max")
	c := &cgroup{dir: dir}
	if err := c.limit(512 << 20); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"memory.max": "536870912", "memory.oom.group": "1", "memory.swap.max": "0"} {
		if text, err := os.ReadFile(filepath.Join(dir, file)); string(text) != want {
			t.Errorf("%s is %q (%v), want %q", file, text, err, want)
		}
	}
	for events, want := range map[string]bool{
		"low 0\nhigh 0\nmax 12\noom 1\noom_kill 0\noom_group_kill 0\n": false,
		"low 0\nhigh 0\nmax 12\noom 1\noom_kill 2\noom_group_kill 1\n": true,
		"": false,
	} {
		fill(t, filepath.Join(dir, "memory.events"), events)
		if got := c.outOfMemory(); got != want {
			t.Errorf("%q: out of memory is %t", events, got)
		}
	}
	if err := (&cgroup{dir: t.TempDir()}).limit(1 << 20); err == nil {
		t.Error("a limit that cannot be written was taken for set")
	}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	rest := strings.Repeat(" 0", 15)
	for line, want := range map[string]proc{
		"4711 (sh) S 1 4711 4711" + rest + " 99 0": {pid: 4711, parent: 1, group: 4711, state: 'S', began: 99},
		"12 (a) R 5 (b) Z 1 42 9" + rest + " 7":    {pid: 12, parent: 1, group: 42, state: 'Z', began: 7}, // a name with brackets
		"":                                         {},
		"4711 (sh) S":                              {},
		"4711 (sh":                                 {},
	} {
		if p, ok := parseStat([]byte(line)); p != want || ok != (want.pid != 0) {
			t.Errorf("%q is %+v (%t), want %+v", line, p, ok, want)
		}
	}
}

// Only a tree of this machine's view whose keeper is certainly gone is lost.
func TestLost(t *testing.T) {
	t.Parallel()
	space := pidNamespace()
	self, ok := find(os.Getpid())
	if !ok {
		t.Fatal("this process is not in /proc")
	}
	for tree, want := range map[string]bool{
		treeName():           false, // lives
		treeName() + "-a0b1": false,
		fmt.Sprintf("%s-%d-%d", space, self.pid, self.began+1): true, // its id is another's by now
		fmt.Sprintf("%s-%d-%d", space, 1<<30, 1):               true,
		fmt.Sprintf("%s0-%d-%d", space, 1<<30, 1):              false, // of another container
		fmt.Sprintf("%s-%d", space, 1<<30):                     false,
		fmt.Sprintf("%s-x-y", space):                           false,
		"":                                                     false,
	} {
		if got := lost(tree, space); got != want {
			t.Errorf("%q: lost is %t", tree, got)
		}
	}
}

// A handle of a process is of no other that has got its id.
func TestSignalToAnotherProcess(t *testing.T) {
	t.Parallel()
	self, _ := find(os.Getpid())
	self.began--
	self.signal(syscall.SIGKILL) // else the test would not go on
}
