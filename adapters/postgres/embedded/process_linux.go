package embedded

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// processAttributes puts a child in a session of its own, so that a terminal's ^C doesn't reach it, as the account,
// and lets the kernel interrupt it when the thread that started it ends: for Postgres that is a fast shutdown.
func processAttributes(a account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: a.credential(), Pdeathsig: syscall.SIGINT}
}

// serverProcesses returns the processes of the server of this cluster: they are called postgres and work in its
// folder. It sees those whose parent is gone, too.
func serverProcesses(cluster string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	if real, err := filepath.EvalSymlinks(cluster); err == nil {
		cluster = real
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		process := filepath.Join("/proc", entry.Name())
		if cwd, err := os.Readlink(filepath.Join(process, "cwd")); err != nil || cwd != cluster {
			continue
		}
		name, err := os.ReadFile(filepath.Join(process, "comm"))
		if err == nil && strings.TrimSpace(string(name)) == "postgres" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// countSharedLocks returns how many open files hold a shared flock on the file at path, by what the kernel lists.
func countSharedLocks(path string) (int, bool) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	body, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0, false
	}
	count := 0
	for line := range strings.Lines(string(body)) {
		// A line reads "1: FLOCK ADVISORY READ 4711 fe:00:12345 0 EOF"; a waiting one has "->" as its second word.
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[3] != "READ" {
			continue
		}
		if strings.HasSuffix(fields[5], ":"+strconv.FormatUint(stat.Ino, 10)) {
			count++
		}
	}
	return count, true
}
