package executor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/jobledger/jobledger/adapters/executor"
)

// parentEnv makes the test binary a parent that runs this shell command and is killed over it.
const parentEnv = "JOBLEDGER_EXECUTOR_TEST_COMMAND"

func TestMain(m *testing.M) {
	// A process with the race detector in it lingers for a second at its end, and each command has a keeper.
	os.Setenv("GORACE", strings.TrimSpace(os.Getenv("GORACE")+" atexit_sleep_ms=0"))
	if command := os.Getenv(parentEnv); command != "" {
		executor.Run(context.Background(), shell(command))
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func shell(command string) executor.Command {
	return executor.Command{Path: "sh", Args: []string{"-c", command}}
}

// run runs a command to its end.
func run(t *testing.T, c executor.Command) executor.Result {
	t.Helper()
	r, err := executor.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEnd(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, command string
		code          int
		signal        syscall.Signal
		says          string
	}{
		{"success", "exit 0", 0, 0, "exit code 0"},
		{"failure", "exit 1", 1, 0, "exit code 1"},
		{"highest_code", "exit 255", 255, 0, "exit code 255"},
		{"not_executable", "/etc/passwd", 126, 0, "exit code 126 (as a shell says of a command that cannot be executed)"},
		{"not_found", "no-such-command-here", 127, 0, "exit code 127 (as a shell says of a command that was not found)"},
		{"terminated", "kill -TERM $$", -1, unix.SIGTERM, "killed by SIGTERM"},
		{"killed", "kill -KILL $$", -1, unix.SIGKILL, "killed by SIGKILL"},
		{"broken_pipe", "kill -PIPE $$", -1, unix.SIGPIPE, "killed by SIGPIPE"},
		{"crashed", "ulimit -c 0; kill -SEGV $$", -1, unix.SIGSEGV, "killed by SIGSEGV"},
		{"aborted", "ulimit -c 0; kill -ABRT $$", -1, unix.SIGABRT, "killed by SIGABRT"},
		{"inner_command_killed", "sh -c 'kill -KILL $$'; exit $?", 137, 0, "exit code 137 (128+9: probably killed by SIGKILL)"},
		{"inner_command_terminated", "sh -c 'kill -TERM $$'; exit $?", 143, 0, "exit code 143 (128+15: probably killed by SIGTERM)"},
		{"inner_command_crashed", "ulimit -c 0; sh -c 'kill -SEGV $$'; exit $?", 139, 0, "exit code 139 (128+11: probably killed by SIGSEGV)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := run(t, shell(tc.command))
			if r.ExitCode != tc.code || r.Signal != tc.signal || r.Stopped != nil || r.String() != tc.says {
				t.Errorf("ended with code %d, signal %v, stopped %v, says %q; want %d, %v, nil, %q",
					r.ExitCode, r.Signal, r.Stopped, r, tc.code, tc.signal, tc.says)
			}
			if r.Success() != (tc.name == "success") {
				t.Errorf("success is %t", r.Success())
			}
		})
	}
	for _, tc := range []struct {
		name string
		c    executor.Command
		want error
	}{
		{"not_in_the_path", executor.Command{Path: "no-such-command-here"}, exec.ErrNotFound},
		{"no_such_file", executor.Command{Path: "/no/such/command"}, os.ErrNotExist},
		{"a_file_that_is_no_program", executor.Command{Path: "/etc/passwd"}, os.ErrPermission},
		{"too_many_arguments", executor.Command{Path: "true", Args: []string{strings.Repeat("x", 1<<20)}}, unix.E2BIG},
		{"no_such_folder", executor.Command{Path: "true", Dir: "/no/such/folder"}, os.ErrNotExist},
	} {
		t.Run("not_started/"+tc.name, func(t *testing.T) {
			t.Parallel()
			r, err := executor.Run(t.Context(), tc.c)
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v (%+v), want %v", err, r, tc.want)
			}
		})
	}
	t.Run("context_over_before_the_start", func(t *testing.T) {
		t.Parallel()
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		mark := filepath.Join(t.TempDir(), "mark")
		if _, err := executor.Run(ctx, shell("touch "+mark)); !errors.Is(err, why) {
			t.Errorf("got %v, want the cause of the context", err)
		}
		if _, err := os.Stat(mark); err == nil {
			t.Error("the command was run")
		}
	})
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := shell(`pwd; echo "$WORD $HOME"; ps -o pgid= -p $$ | tr -d ' '; echo $$`)
	c.Dir, c.Env = dir, []string{"WORD=hello", "PATH=" + os.Getenv("PATH")}
	lines := strings.Split(string(run(t, c).Stdout), "\n")
	if lines[0] != dir || lines[1] != "hello " {
		t.Errorf("got folder %q and environment %q", lines[0], lines[1])
	}
	if lines[2] != lines[3] || lines[2] == strconv.Itoa(syscall.Getpgrp()) {
		t.Errorf("process %s is in group %s, want one of its own", lines[3], lines[2])
	}
}

func TestStdin(t *testing.T) {
	t.Parallel()
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for _, tc := range []struct {
		name, command string
		in            []byte
		want          string
	}{
		{"read", "cat", []byte(`{"a":1}`), `{"a":1}`},
		{"none", "cat", nil, ""},
		{"larger_than_the_pipe", "wc -c | tr -d ' \n'", big, "1048576"},
		{"not_read", "echo done", big, "done\n"},
		{"closed", "exec <&-; echo done", big, "done\n"},
		{"read_in_part", "head -c 3", big, "012"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := shell(tc.command)
			c.Stdin = tc.in
			if r := run(t, c); string(r.Stdout) != tc.want || !r.Success() {
				t.Errorf("got %q (%s), want %q", r.Stdout, r, tc.want)
			}
		})
	}
}

// TestCase56_OutputLargerThanThePipe: no output holds the command up, its beginning and its end are kept, and what is
// held in memory is bounded. Lines are of no consequence: all of it is one.
func TestCase56_OutputLargerThanThePipe(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 64 << 10, 64<<10 + 1, 1 << 20, 1<<20 + 1, 10 << 20, 50 << 20} {
		for _, to := range []string{"stdout", "stderr"} {
			t.Run(fmt.Sprintf("%d_bytes_to_%s", n, to), func(t *testing.T) {
				t.Parallel()
				c := shell(fmt.Sprintf("{ echo first; head -c %d /dev/zero | tr '\\0' x; echo; echo last; } >&%d", n, map[string]int{"stdout": 1, "stderr": 2}[to]))
				c.StderrLimit = c.StdoutLimit
				r := run(t, c)
				text, cut, limit := string(r.Stdout), r.StdoutCut, executor.DefaultStdoutLimit
				if to == "stderr" {
					text, cut, limit = string(r.Stderr), r.StderrCut, executor.DefaultStderrLimit
				}
				total := len("first\n") + n + len("\nlast\n")
				if !strings.HasPrefix(text, "first\n") || !strings.HasSuffix(text, "\nlast\n") {
					t.Fatalf("first or last line are lost: %d bytes", len(text))
				}
				if wantCut := max(0, total-limit); int(cut) != wantCut {
					t.Fatalf("%d bytes were left out, want %d", cut, wantCut)
				}
				if cut > 0 && !strings.Contains(text, fmt.Sprintf("\n[... %d bytes left out ...]\n", cut)) {
					t.Error("no mark says what is left out")
				}
			})
		}
	}
	t.Run("10_MB_to_both_in_turn", func(t *testing.T) {
		t.Parallel()
		c := shell(`x=$(head -c 65536 /dev/zero | tr '\0' x); i=0; while [ $i -lt 160 ]; do echo $i$x; echo $i$x >&2; i=$((i+1)); done`)
		r := run(t, c)
		for _, s := range []struct {
			text  []byte
			cut   int64
			limit int
		}{{r.Stdout, r.StdoutCut, executor.DefaultStdoutLimit}, {r.Stderr, r.StderrCut, executor.DefaultStderrLimit}} {
			if total := 10*2 + 90*3 + 60*4 + 160*65536; s.cut != int64(total-s.limit) || !bytes.HasPrefix(s.text, []byte("0x")) || !bytes.HasSuffix(s.text, []byte("xx\n")) {
				t.Errorf("%d bytes are kept and %d left out of %d", len(s.text), s.cut, total)
			}
		}
	})
	t.Run("a_million_empty_lines", func(t *testing.T) {
		t.Parallel()
		if r := run(t, shell(`yes '' | head -n 1000000; echo last`)); r.StdoutCut != 0 || len(r.Stdout) != 1_000_005 || !bytes.HasSuffix(r.Stdout, []byte("\nlast\n")) {
			t.Errorf("%d bytes are kept and %d left out", len(r.Stdout), r.StdoutCut)
		}
	})
	t.Run("both_at_once", func(t *testing.T) {
		t.Parallel()
		r := run(t, shell(`i=0; while [ $i -lt 2000 ]; do echo "out $i"; echo "err $i" >&2; i=$((i+1)); done`))
		var want strings.Builder
		for i := range 2000 {
			fmt.Fprintf(&want, "out %d\n", i)
		}
		if string(r.Stdout) != want.String() || !strings.HasSuffix(string(r.Stderr), "err 1998\nerr 1999\n") {
			t.Errorf("the order of %d and %d bytes was not kept", len(r.Stdout), len(r.Stderr))
		}
	})
}

// fifo makes a named pipe, through which a command says that it has come to a point.
func fifo(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// alive says whether a process runs; one that nobody has reaped doesn't.
func alive(t *testing.T, pid string) bool {
	t.Helper()
	if _, err := strconv.Atoi(pid); err != nil {
		t.Fatalf("no process id: %q", pid)
	}
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// stopped runs a command, stops it once it has said something through its pipe, and returns what it said. The path of
// the pipe is its first argument ($0).
func stopped(t *testing.T, grace time.Duration, command string) (executor.Result, string) {
	t.Helper()
	path := fifo(t)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	word := make(chan string, 1)
	go func() {
		text, _ := os.ReadFile(path)
		word <- strings.TrimSpace(string(text))
		cancel(why)
	}()
	c := shell(command)
	c.Args = append(c.Args, path)
	c.Grace = grace
	r, err := executor.Run(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(r.Stopped, why) || r.Success() {
		t.Errorf("stopped is %v, success %t; want the cause of the context, and no success", r.Stopped, r.Success())
	}
	return r, <-word
}

func TestStop(t *testing.T) {
	t.Parallel()
	t.Run("ends_with_SIGTERM", func(t *testing.T) {
		t.Parallel()
		r, _ := stopped(t, time.Minute, `echo ready > $0; sleep 600`)
		if r.Signal != unix.SIGTERM || r.Killed || r.String() != "enough: stopped by SIGTERM" {
			t.Errorf("%+v", r)
		}
	})
	t.Run("clears_up_and_exits_with_0_which_is_no_success", func(t *testing.T) {
		t.Parallel()
		r, _ := stopped(t, time.Minute, `trap 'echo cleared; exit 0' TERM; echo ready > $0; while :; do sleep 0.02; done`)
		if r.ExitCode != 0 || string(r.Stdout) != "cleared\n" || r.Killed {
			t.Errorf("%+v", r)
		}
	})
	t.Run("ignores_SIGTERM", func(t *testing.T) {
		t.Parallel()
		r, child := stopped(t, 50*time.Millisecond, `trap '' TERM; sleep 600 & echo $! > $0; wait`)
		if r.Signal != unix.SIGKILL || !r.Killed || alive(t, child) {
			t.Errorf("child alive: %t; %+v", alive(t, child), r)
		}
	})
	t.Run("a_child_may_clear_up_after_the_shell_has_ended", func(t *testing.T) {
		t.Parallel()
		// The shell dies of SIGTERM at once; its child needs a moment more.
		r, child := stopped(t, time.Minute, `sh -c 'trap "echo cleared; exit" TERM; echo $$ > '$0'; while :; do sleep 0.02; done' & wait`)
		if r.Signal != unix.SIGTERM || string(r.Stdout) != "cleared\n" || alive(t, child) {
			t.Errorf("child alive: %t; %+v", alive(t, child), r)
		}
	})
	t.Run("a_child_that_ignores_SIGTERM_is_killed_after_the_shell_has_ended", func(t *testing.T) {
		t.Parallel()
		r, child := stopped(t, 50*time.Millisecond, `sh -c 'trap "" TERM; echo $$ > '$0'; while :; do sleep 0.02; done' & wait`)
		if r.Signal != unix.SIGTERM || !r.Killed || alive(t, child) {
			t.Errorf("child alive: %t; %+v", alive(t, child), r)
		}
	})
	t.Run("is_held_by_SIGSTOP", func(t *testing.T) {
		t.Parallel()
		r, _ := stopped(t, time.Minute, `echo ready > $0; kill -STOP $$; sleep 600`)
		if r.Signal != unix.SIGTERM || r.Killed {
			t.Errorf("%+v", r)
		}
	})
}

func TestKill(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, command string }{
		{"a_command_that_runs", `echo $$ > $0; sleep 600`},
		{"a_command_in_its_grace", `trap 'echo $$ > $0.term' TERM; echo $$ > $0; while :; do sleep 0.02; done`},
		{"what_is_left_in_the_grace_after_the_shell_has_ended", `sh -c 'trap "echo \$\$ > '$0.term'" TERM; echo $$ > '$0'; while :; do sleep 0.02; done' & wait`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			path, kill := fifo(t), make(chan struct{})
			inGrace := strings.Contains(tc.command, "$0.term")
			if inGrace {
				if err := unix.Mkfifo(path+".term", 0o600); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			child := make(chan string, 1)
			go func() {
				pid, _ := os.ReadFile(path)
				if inGrace {
					cancel()
					pid, _ = os.ReadFile(path + ".term")
				}
				child <- strings.TrimSpace(string(pid))
				close(kill)
			}()
			c := shell(tc.command)
			c.Args, c.Grace, c.Kill = append(c.Args, path), time.Hour, kill
			r, err := executor.Run(ctx, c)
			if err != nil {
				t.Fatal(err)
			}
			want := executor.ErrKilled
			if inGrace {
				want = context.Canceled
			}
			if pid := <-child; !errors.Is(r.Stopped, want) || !r.Killed || alive(t, pid) {
				t.Errorf("child alive: %t; %+v", alive(t, pid), r)
			}
		})
	}
}

func TestGrandchild(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, command string }{
		{"holds_the_pipes", `sleep 600 & echo $!`},
		{"ignores_SIGTERM", `(trap "" TERM HUP; exec sleep 600) & echo $!`},
		{"is_left_by_a_subshell", `sh -c 'nohup sleep 600 & echo $!'`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := run(t, shell(tc.command))
			if child := strings.TrimSpace(string(r.Stdout)); alive(t, child) || !r.Success() || r.Survived {
				t.Errorf("child alive: %t; %+v", alive(t, child), r)
			}
		})
	}
}
