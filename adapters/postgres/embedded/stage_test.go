package embedded

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// supervisors are the processes that supervise a server in dir, by the name that they show.
func supervisors(dir string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		name, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(bytes.TrimRight(name, "\x00"), []byte("jobledger: supervisor of Postgres in "+dir)) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestKilledAtEachStage kills the client, the supervisor or the server by SIGKILL as soon as a start has come to a certain
// point. Whoever comes next gets a server, with the data if there were any, and nothing is left of the one before.
func TestKilledAtEachStage(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/cmdline"); err != nil {
		t.Skip("this system doesn't list its processes in /proc")
	}
	exists := func(pattern string) bool {
		found, err := filepath.Glob(pattern)
		return err == nil && len(found) > 0
	}
	for _, c := range []struct {
		name    string
		cold    bool // there is no cluster yet
		reached func(dir string) bool
		victim  string
	}{
		{"client_while_the_cluster_is_made", true, func(dir string) bool { return exists(dir + "/pg*.init-*/global") }, "client"},
		{"client_as_soon_as_there_is_one", true, func(dir string) bool { return exists(dir+"/pg*/PG_VERSION") && !exists(dir+"/pg*.init-*") }, "client"},
		{"supervisor_as_soon_as_it_is_there", false, func(dir string) bool { return len(supervisors(dir)) > 0 }, "supervisor"},
		{"supervisor_while_the_server_starts", false, func(dir string) bool { return exists(dir + "/pg*/postmaster.pid") }, "supervisor"},
		{"all_while_the_server_starts", false, func(dir string) bool { return exists(dir + "/pg*/postmaster.pid") }, "all"},
		{"all_when_it_has_just_started", false, func(dir string) bool { return exists(dir + "/run/server.json") }, "all"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := dataDir(t)
			if !c.cold {
				stopped(t, dir)
			}
			before := supervisors(dir)
			client := spawn(t, "acquire", dir)
			err := poll(bounded(t), readyPoll/5, func() (bool, error) { return c.reached(dir), nil })
			if err != nil || len(before) > 0 {
				t.Fatalf("the start didn't come to this point: %v (there were the supervisors %v)", err, before)
			}
			if c.victim == "client" || c.victim == "all" {
				client.kill()
			}
			if c.victim == "supervisor" || c.victim == "all" {
				killAll(supervisors(dir))
			}
			if c.victim == "all" {
				killServer(dir)
			}
			if c.victim == "supervisor" {
				client.ready(t) // it tries again by itself
				client.kill()
			}
			if c.cold {
				acquire(t, testOptions(dir)).Close()
				waitGone(t, dir)
			} else {
				kept(t, dir)
			}
			if exists(dir+"/pg*.init-*") || exists(dir+"/pg*/postmaster.pid") || len(supervisors(dir)) > 0 {
				t.Errorf("left over: %s, supervisors %v", names(t, dir), supervisors(dir))
			}
		})
	}
}

// TestServerKilledWhileItStarts: there is somebody whom it can be told, and no reason to believe that it would go better the
// next time without a word.
func TestServerKilledWhileItStarts(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	stopped(t, dir)
	got := make(chan error)
	go func() {
		lease, err := Acquire(bounded(t), testOptions(dir))
		if err == nil {
			err = lease.Close()
		}
		got <- err
	}()
	if err := poll(bounded(t), readyPoll/5, func() (bool, error) { return killServer(dir), nil }); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil { // else it had just become ready, and is started again
		refused(t, err, "it was ended from outside (signal: killed)", "try again")
	}
	kept(t, dir)
}

// killServer kills the main process of the server in dir, and says whether there was one.
func killServer(dir string) bool {
	files, err := filepath.Glob(dir + "/pg*/postmaster.pid")
	if err != nil || len(files) != 1 {
		return false
	}
	file, err := readPIDFile(filepath.Dir(files[0]))
	if err != nil {
		return false
	}
	killAll([]int{file.pid})
	return true
}

func killAll(pids []int) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
}

// TestColdStartsAtOnce: twenty processes find nothing there and want a server.
func TestColdStartsAtOnce(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	var clients []*client
	for range 20 {
		clients = append(clients, spawn(t, "acquire", dir))
	}
	for _, c := range clients {
		if c.ready(t); c.server != clients[0].server {
			t.Errorf("servers %d and %d", clients[0].server, c.server)
		}
	}
	if status, err := ReadStatus(testOptions(dir)); err != nil || !status.Running || status.PID != clients[0].server {
		t.Errorf("status: %+v, %v", status, err)
	}
	execute(t, acquire(t, testOptions(dir)).URL(), `CREATE TABLE kept AS SELECT 'still here' AS word`)
}
