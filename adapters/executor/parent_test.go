package executor_test

import (
	"bufio"
	"errors"
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/jobledger/jobledger/adapters/executor"
)

// A command must not outlive the process that would hear of its end.
func TestParentKilled(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, command string
		env           []string
		only          string
	}{
		{"takes_the_first_process_along", `echo started >&9; exec sleep 600`, nil, "linux"},
		{"takes_the_whole_group_along_where_it_is_guarded", `trap "" TERM INT HUP; sleep 600 & echo started >&9; wait`, []string{guardedEnv + "=1"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if tc.only != "" && tc.only != runtime.GOOS {
				t.Skip("only " + tc.only + " has a death signal")
			}
			path := fifo(t)
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			parent, err := os.StartProcess(self, []string{"parent"}, &os.ProcAttr{
				Env:   append(append(os.Environ(), parentEnv+"=exec 9> "+path+"; "+tc.command), tc.env...),
				Files: []*os.File{nil, os.Stderr, os.Stderr},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer parent.Kill()
			// Every process of the command holds the pipe open as descriptor 9, so its end is the end of the last one.
			held, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer held.Close()
			lines := bufio.NewReader(held)
			if line, err := lines.ReadString('\n'); line != "started\n" {
				t.Fatalf("the command says %q, %v", line, err)
			}
			if err := parent.Kill(); err != nil {
				t.Fatal(err)
			}
			if _, err := parent.Wait(); err != nil {
				t.Fatal(err)
			}
			if err := held.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if line, err := lines.ReadString('\n'); !errors.Is(err, io.EOF) {
				t.Errorf("a process of the command lives on: %q, %v", line, err)
			}
		})
	}
}

// Guarded commands end as others do, and leave no guard behind.
func TestGuarded(t *testing.T) {
	t.Parallel()
	g, err := executor.StartGuard()
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for range 3 {
		c := shell("echo done")
		c.Guard = g
		if r := run(t, c); string(r.Stdout) != "done\n" || !r.Success() {
			t.Errorf("%+v", r)
		}
	}
	if r := run(t, executor.Command{Path: "printf", Args: []string{"%s|", "two words", "$x 'y'"}, Guard: g}); string(r.Stdout) != "two words|$x 'y'|" {
		t.Errorf("arguments became %q", r.Stdout)
	}
	if r := run(t, executor.Command{Path: "sh", Args: []string{"-c", "cat; cat <&3"}, Stdin: []byte("in"), Guard: g}); string(r.Stdout) != "in" || r.Success() {
		t.Errorf("standard input became %q, and descriptor 3 is open: %t", r.Stdout, r.Success())
	}
	if _, err := executor.Run(t.Context(), executor.Command{Path: "no-such-command-here", Guard: g}); err == nil {
		t.Error("a command that there isn't was started")
	}
	g.Close()
	c := shell("echo done")
	c.Guard = g // closed: the next command starts another
	if r := run(t, c); !r.Success() {
		t.Errorf("%+v", r)
	}
}
