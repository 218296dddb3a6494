//go:build unix && !linux

package embedded

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// processAttributes puts a child in a session of its own, as the account. There is no signal at the parent's death
// here, so a server whose supervisor was killed lives on until the next Acquire, which stops it and starts anew.
func processAttributes(a account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: a.credential()}
}

// serverProcesses returns the main process alone; the others end by themselves once it is gone. Its id may have been
// given to another program since, which is not called postgres.
func serverProcesses(cluster string) []int {
	file, err := readPIDFile(cluster)
	if err != nil {
		return nil
	}
	name, err := exec.Command("ps", "-o", "comm=", "-p", strconv.Itoa(file.pid)).Output()
	if err != nil || !strings.HasSuffix(strings.TrimSpace(string(name)), "postgres") {
		return nil
	}
	return []int{file.pid}
}

// countSharedLocks reports that the number is not known: this system doesn't list its locks.
func countSharedLocks(string) (int, bool) { return 0, false }
