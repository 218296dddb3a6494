package executor_test

import (
	"os"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A command must not outlive the process that would hear of its end.
func TestParentKilled(t *testing.T) {
	t.Parallel()
	path := fifo(t)
	parent, err := os.StartProcess("/proc/self/exe", []string{"parent"}, &os.ProcAttr{
		Env:   append(os.Environ(), parentEnv+"=echo $$ > "+path+"; exec sleep 600"),
		Files: []*os.File{nil, os.Stderr, os.Stderr},
	})
	if err != nil {
		t.Fatal(err)
	}
	child := said(t, path)
	pid, err := strconv.Atoi(child)
	if err != nil {
		t.Fatal(err)
	}
	// A descriptor for the child: it becomes readable when the child ends, whoever reaps it.
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := parent.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := parent.Wait(); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 30_000); n != 1 {
		syscall.Kill(pid, syscall.SIGKILL)
		t.Errorf("the child lives on: %v", err)
	}
}
