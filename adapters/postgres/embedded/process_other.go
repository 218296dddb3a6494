//go:build unix && !linux

package embedded

import "syscall"

// processAttributes puts a child in a session of its own, as the account. There is no signal at the parent's death
// here, so a server whose supervisor was killed lives on until the next Acquire, which stops it and starts anew.
func processAttributes(a account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: a.credential()}
}

// serverProcesses returns the main process alone; the others end by themselves once it is gone.
func serverProcesses(cluster string) []int {
	file, err := readPIDFile(cluster)
	if err != nil || syscall.Kill(file.pid, 0) != nil {
		return nil
	}
	return []int{file.pid}
}

// countSharedLocks reports that the number is not known: this system doesn't list its locks.
func countSharedLocks(string) (int, bool) { return 0, false }
