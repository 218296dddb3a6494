package executor_test

import (
	"bufio"
	"errors"
	"io"
	"os"
	"testing"
	"time"
)

// A command must not outlive the process that would hear of its end.
func TestParentKilled(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, command string }{
		{"takes_the_first_process_along", `echo started >&9; exec sleep 600`},
		{"takes_the_whole_group_along", `trap "" TERM INT HUP; sleep 600 & echo started >&9; wait`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			path := fifo(t)
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			parent, err := os.StartProcess(self, []string{"parent"}, &os.ProcAttr{
				Env:   append(os.Environ(), parentEnv+"=exec 9> "+path+"; "+tc.command),
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
