package executor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jobledger/jobledger/adapters/executor"
)

// patience bounds every wait in these tests. It is long because the machine may be busy; nobody waits for it in vain.
const patience = time.Minute

// daemons are the ways in which a command leaves something behind that doesn't want to be found. Each ends in a process
// with the argument $M, after it has written a line into the pipe $P; T is what it does with SIGTERM.
var daemons = []struct{ name, script string }{
	{"in_the_background", `sh -c "$T; echo up > \"$P\"; exec sleep $M" &`},
	{"with_nohup", `nohup sh -c "$T; echo up > \"$P\"; exec sleep $M" > /dev/null 2>&1 &`},
	{"forked_twice", `(sh -c "$T; echo up > \"$P\"; exec sleep $M" & exit) &`},
	{"in_a_session_of_its_own", `setsid sh -c "$T; echo up > \"$P\"; exec sleep $M" &`},
	{"in_a_group_of_its_own", `perl -e 'setpgrp(0, 0); exec "sh", "-c", $ARGV[0]' "$T; echo up > \"$P\"; exec sleep $M" &`},
	{"a_true_daemon", `setsid sh -c '(env -i sh -c "$0" < /dev/null > /dev/null 2>&1 &) & exit' "$T; echo up > \"$P\"; exec sleep $M" &`},
	{"a_chain_of_200_that_fork_and_exit", `export T P M; F='[ $0 -lt 200 ] || { eval "$T"; echo up > "$P"; exec sleep $M; }; sh -c "$1" $(($0 + 1)) "$1" & exit'; setsid sh -c "$F" 0 "$F" &`},
	{"a_tree_of_255", `export T P M; F='[ $0 -lt 7 ] || exec sleep $M; sh -c "$1" $(($0 + 1)) "$1" & sh -c "$1" $(($0 + 1)) "$1" & [ $0 -gt 0 ] || echo up > "$P"; wait'; setsid sh -c "$F" 0 "$F" &`},
}

// marked is a command with a daemon that is marked with an argument of its own, then does the rest.
func marked(t *testing.T, daemon, onTERM, rest string) (c executor.Command, path, mark string) {
	t.Helper()
	path, mark = fifo(t), fmt.Sprintf("6%09d.%09d", rand.N(1_000_000_000), rand.N(1_000_000_000))
	c = shell(fmt.Sprintf("T=%q P=%q M=%s\n%s\n%s", onTERM, path, mark, daemon, rest))
	return c, path, mark
}

// living are the processes with mark in their arguments, but for zombies, which have none any more.
func living(t *testing.T, mark string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && bytes.Contains(text, []byte(mark)) {
			pid, _ := strconv.Atoi(strings.Split(file, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}

// containments are what the tests run with: the keeper alone, which every Linux has, and what is there besides.
func containments(t *testing.T) map[string]executor.Containment {
	t.Helper()
	with := map[string]executor.Containment{"keeper": {}}
	if c := executor.Detect(false); c.Cgroup != "" {
		with["cgroup"] = c
	}
	return with
}

// However a command tries to leave something behind, and however it ends: nothing is left when Run returns.
func TestCase55_NothingSurvivesItsCommand(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("perl"); err != nil {
		t.Skip("perl, for setpgrp:", err)
	}
	ends := []struct {
		name, onTERM, rest string
		stop, kill         bool
		right              func(executor.Result) bool
	}{
		{"ends", ":", `read up < "$P"; exit 0`, false, false, executor.Result.Success},
		{"ends_and_its_child_ignores_SIGTERM", "trap '' TERM HUP", `read up < "$P"; exit 0`, false, false, executor.Result.Success},
		{"fails", ":", `read up < "$P"; exit 3`, false, false, func(r executor.Result) bool { return r.ExitCode == 3 && r.Stopped == nil }},
		{"stopped", ":", `sleep $M`, true, false, func(r executor.Result) bool { return r.Stopped != nil && r.Signal == syscall.SIGTERM }},
		{"stopped_and_its_child_ignores_SIGTERM", "trap '' TERM HUP", `sleep $M`, true, false, func(r executor.Result) bool { return r.Stopped != nil && r.Killed }},
		{"killed", ":", `sleep $M`, false, true, func(r executor.Result) bool { return r.Stopped == executor.ErrKilled && r.Killed }},
	}
	for kind, containment := range containments(t) {
		for i, end := range ends {
			if kind == "cgroup" && i%2 == 0 {
				continue // it is the same keeper; the other half is enough
			}
			t.Run(kind+"/"+end.name, func(t *testing.T) {
				t.Parallel()
				for _, daemon := range daemons {
					if daemon.name == "a_tree_of_255" && strings.Contains(end.name, "ignores") {
						continue // its processes don't
					}
					c, path, mark := marked(t, daemon.script, end.onTERM, end.rest)
					c.Containment, c.Grace = containment, time.Minute
					if strings.Contains(end.name, "ignores") || daemon.name == "a_tree_of_255" {
						c.Grace = 50 * time.Millisecond // the tree grows meanwhile, and who comes late has not got SIGTERM
					}
					kill := make(chan struct{})
					c.Kill = kill
					ctx, cancel := context.WithCancelCause(t.Context())
					if end.stop || end.kill {
						go func() {
							_, _ = os.ReadFile(path)
							if end.kill {
								close(kill)
								return
							}
							cancel(errors.New("enough"))
						}()
					}
					r, err := executor.Run(ctx, c)
					cancel(nil)
					if left := living(t, mark); err != nil || !end.right(r) || r.Survived || len(left) > 0 {
						t.Errorf("%s: %v left behind; %v, %+v", daemon.name, left, err, r)
					}
				}
			})
		}
	}
}

// Whoever is killed, the worker, a keeper or both: nothing of the command is there when it is begun again.
func TestCase55_KilledWorkerAndKeeper(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name           string
		parent, keeper bool
	}{{"worker", true, false}, {"keeper", false, true}, {"both", true, true}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, daemon := range daemons {
				if tc.keeper && daemon.name == "a_true_daemon" {
					continue // it has no environment; see the next test
				}
				c, path, mark := marked(t, daemon.script, "trap '' TERM HUP", `sleep $M`)
				parent := exec.Command("/proc/self/exe")
				parent.Env = append(os.Environ(), parentEnv+"="+c.Args[1])
				if err := parent.Start(); err != nil {
					t.Fatal(err)
				}
				_, _ = os.ReadFile(path)
				if tc.parent {
					send(t, parent.Process.Pid, syscall.SIGSTOP) // else it would sweep, once its keeper is killed
				}
				if tc.keeper {
					keeper := keeperOf(t, parent.Process.Pid)
					send(t, keeper, syscall.SIGKILL)
					waitFor(func() bool { return !alive(t, strconv.Itoa(keeper)) })
				}
				if tc.parent {
					send(t, parent.Process.Pid, syscall.SIGKILL)
				}
				_ = parent.Wait() // says that it was killed
				if tc.parent && tc.keeper {
					if _, err := (executor.Containment{}).Sweep(); err != nil {
						t.Errorf("%s: %v", daemon.name, err)
					}
				}
				if !tc.keeper {
					waitFor(func() bool { return len(living(t, mark)) == 0 }) // the keeper does it, but nobody is left to wait for the keeper
				}
				if left := living(t, mark); len(left) > 0 {
					t.Errorf("%s: %v live on", daemon.name, left)
				}
			}
		})
	}
}

// Sweep leaves alone what has a keeper, and finds by its cgroup what has hidden its environment.
func TestSweep(t *testing.T) {
	t.Parallel()
	for kind, containment := range containments(t) {
		t.Run("leaves_commands_alone/"+kind, func(t *testing.T) {
			t.Parallel()
			c, path, _ := marked(t, daemons[5].script, ":", `read x < "$P.end"; exit 0`)
			c.Containment = containment
			if err := syscall.Mkfifo(path+".end", 0o600); err != nil {
				t.Fatal(err)
			}
			go func() {
				_, _ = os.ReadFile(path)
				if _, err := containment.Sweep(); err != nil {
					t.Error(err)
				}
				_ = os.WriteFile(path+".end", []byte("x\n"), 0)
			}()
			if r := run(t, c); !r.Success() {
				t.Errorf("%+v", r)
			}
		})
	}
	t.Run("finds_by_cgroup", func(t *testing.T) {
		t.Parallel()
		containment := containments(t)["cgroup"]
		if containment.Cgroup == "" {
			t.Skip("no cgroup can be had here")
		}
		c, path, mark := marked(t, daemons[5].script, "trap '' TERM HUP", `sleep $M`)
		c.Containment = containment
		go func() {
			_, _ = os.ReadFile(path)
			// The command's first process is among them, and its parent is the keeper.
			for _, pid := range living(t, mark) {
				if group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err == nil && !strings.Contains(string(group), "/jobledger-") {
					send(t, pid, syscall.SIGKILL)
				}
			}
		}()
		// Run has lost the keeper, and sweeps.
		if _, err := executor.Run(t.Context(), c); !errors.Is(err, executor.ErrKeeperLost) {
			t.Errorf("got %v, want a lost keeper", err)
		}
		if left := living(t, mark); len(left) > 0 {
			t.Errorf("%v live on", left)
		}
		if dirs, _ := filepath.Glob(filepath.Join(containment.Cgroup, "jobledger-*")); len(dirs) > 100 {
			t.Errorf("cgroups are left behind: %v", dirs)
		}
	})
}

// keeperOf finds the only child of a process.
func keeperOf(t *testing.T, parent int) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		stat, _ := os.ReadFile(file)
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(strings.Split(file, "/")[2])
			return pid
		}
	}
	t.Fatalf("process %d has no child", parent)
	return 0
}

func send(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Errorf("%s to %d: %v", s, pid, err)
	}
}

// waitFor waits until done, or for as long as anybody would.
func waitFor(done func() bool) {
	gave := time.After(patience)
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for !done() {
		select {
		case <-gave:
			return
		case <-look.C:
		}
	}
}

// A command that has ended when the order to stop comes was not stopped, however late its keeper hears of both.
func TestStopThatComesTooLate(t *testing.T) {
	t.Parallel()
	for range 8 { // which of both the keeper hears of first is a matter of chance
		path := fifo(t)
		if err := syscall.Mkfifo(path+".go", 0o600); err != nil {
			t.Fatal(err)
		}
		c := shell(`echo $$ $PPID > $0; read x < $0.go; exit 0`)
		c.Args = append(c.Args, path)
		ctx, cancel := context.WithCancel(t.Context())
		resumed := make(chan struct{})
		go func() {
			defer close(resumed)
			text, _ := os.ReadFile(path)
			command, keeper, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
			pid, _ := strconv.Atoi(keeper)
			send(t, pid, syscall.SIGSTOP)
			_ = os.WriteFile(path+".go", []byte("x\n"), 0)
			waitFor(func() bool { return !alive(t, command) })
			cancel()
			send(t, pid, syscall.SIGCONT)
		}()
		r, err := executor.Run(ctx, c)
		<-resumed
		if err != nil || !r.Success() {
			t.Errorf("%v, %+v", err, r)
		}
	}
}

// A limit by address space, where no cgroup can limit memory.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	c := shell(`ulimit -v; x=$(head -c 200000000 /dev/zero | tr '\0' x); echo $?`)
	c.Memory = 100 << 20
	r := run(t, c)
	if kib, _, _ := strings.Cut(string(r.Stdout), "\n"); kib != "102400" || r.Success() || r.OutOfMemory {
		t.Errorf("the limit is %s KiB, and the command ended with %s: %s", kib, r, r.Stderr)
	}
	c = executor.Command{Path: "printf", Args: []string{"%s|", "two words", "$x 'y'"}, Memory: 100 << 20}
	if r := run(t, c); string(r.Stdout) != "two words|$x 'y'|" {
		t.Errorf("arguments became %q", r.Stdout)
	}
}
