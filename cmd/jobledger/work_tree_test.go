//go:build linux

package main

import (
	"bytes"
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
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// brood is a command that leaves six processes behind, each in a way of its own and deaf to SIGTERM, and then waits to
// be told how to end. All of them hold the pipe, and have a mark as their argument.
type brood struct {
	*pipe
	command, mark, ending string
}

// broodScript is its shell script. When the job runs again it looks for what is left of the first run.
const broodScript = `
[ $JOBLEDGER_GENERATION = 1 ] || { echo "\"left: $(grep -lzf %[2]s /proc/[0-9]*/cmdline)\""; exit 0; }
exec 9> %[1]s
D="trap '' TERM HUP; echo up >&9; exec sleep $(cat %[2]s)"; export D
nohup sh -c "$D" > /dev/null 2>&1 &
(sh -c "$D" & exit) &
setsid sh -c "$D" &
perl -e 'setpgrp(0, 0); exec "sh", "-c", $ARGV[0]' "$D" &
setsid sh -c '(%[4]s sh -c "$0" < /dev/null > /dev/null 2>&1 &) & exit' "$D" &
F='[ $0 -lt 200 ] || eval "$D"; sh -c "$1" $(($0 + 1)) "$1" & exit'
setsid sh -c "$F" 0 "$F" &
read code < %[3]s
exit $code`

// newBrood makes one; hidden, one of its processes has an empty environment.
func newBrood(t *testing.T, hidden bool) *brood {
	t.Helper()
	if _, err := exec.LookPath("perl"); err != nil {
		t.Skip("perl, for setpgrp:", err)
	}
	dir := t.TempDir()
	b := &brood{pipe: newPipe(t), ending: filepath.Join(dir, "ending"), mark: fmt.Sprintf("6%09d.%09d", rand.N(1_000_000_000), rand.N(1_000_000_000))}
	script, mark, env := filepath.Join(dir, "script"), filepath.Join(dir, "mark"), "env"
	if hidden {
		env = "env -i"
	}
	text := fmt.Sprintf(broodScript, b.path, mark, b.ending, env)
	if err := syscall.Mkfifo(b.ending, 0o600); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{script: text, mark: b.mark} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b.command = "sh " + script
	return b
}

// up waits until all six are there.
func (b *brood) up(t *testing.T) {
	t.Helper()
	for range 6 {
		b.says(t, "up")
	}
}

// allGone waits until no process holds the pipe, and looks for the mark.
func (b *brood) allGone(t *testing.T) {
	t.Helper()
	b.gone(t)
	if left := b.living(t); len(left) > 0 {
		t.Errorf("%v live on", left)
	}
}

func (b *brood) living(t *testing.T) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && bytes.Contains(text, []byte(b.mark)) {
			pids = append(pids, strings.Split(file, "/")[2])
		}
	}
	return pids
}

// TestCase55_DaemonsEndWithTheirJob: whatever ends a run, and however its processes have hidden, they are gone with it.
func TestCase55_DaemonsEndWithTheirJob(t *testing.T) {
	t.Parallel()
	for _, end := range []struct {
		name   string
		flags  []string
		policy domain.Policy
		happen func(t *testing.T, b *bench, brood *brood, w *process)
		exits  int
		events string
	}{
		{"success", nil, once, ends("0"), 0, "enqueued claimed completed"},
		{"failure", nil, once, ends("3"), 0, "enqueued claimed failed"},
		{"time_out", []string{"--grace", "100ms"}, domain.Policy{MaxAttempts: 1, Timeout: 5 * time.Second}, nil, 0, "enqueued claimed failed"},
		{"cancel", []string{"--lease", "6s", "--grace", "100ms"}, once, func(t *testing.T, b *bench, _ *brood, _ *process) {
			if err := b.cancelAll(t); err != nil {
				t.Fatal(err)
			}
		}, 0, "enqueued claimed cancel_requested canceled"},
		{"lease_lost", []string{"--lease", "6s", "--grace", "100ms"}, once, func(t *testing.T, b *bench, brood *brood, _ *process) {
			b.cutOff(t, brood)
		}, 0, ""}, // given back or taken back, whichever comes first when the database is there again
		{"stop", []string{"--stop-timeout", "1ms", "--grace", "100ms"}, once, func(t *testing.T, _ *bench, _ *brood, w *process) {
			w.signal(t, syscall.SIGTERM)
		}, exitCut, "enqueued claimed released"},
		{"killed_worker", nil, once, func(t *testing.T, _ *bench, _ *brood, w *process) {
			w.signal(t, syscall.SIGKILL)
		}, -1, "enqueued claimed"},
	} {
		t.Run(end.name, func(t *testing.T) {
			t.Parallel()
			b, brood := newBench(t), newBrood(t, true)
			id := b.enqueue(t, ledger.EnqueueParams{Kind: "run", Policy: end.policy})
			w := b.work(t, brood.command, append([]string{"--drain", "--cgroup", "off"}, end.flags...)...)
			brood.up(t)
			if end.happen != nil {
				end.happen(t, b, brood, w)
			}
			brood.allGone(t)
			w.exits(t, end.exits)
			if types := b.types(t, id); types != end.events && end.events != "" {
				t.Errorf("events are %s, want %s", types, end.events)
			}
			b.verified(t)
		})
	}
}

// ends lets the command end with that code.
func ends(code string) func(*testing.T, *bench, *brood, *process) {
	return func(t *testing.T, _ *bench, brood *brood, _ *process) {
		if err := os.WriteFile(brood.ending, []byte(code+"\n"), 0); err != nil {
			t.Fatal(err)
		}
	}
}

func (b *bench) cancelAll(t *testing.T) error {
	t.Helper()
	var id [16]byte
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT job_id FROM jobledger.job_runtime`).Scan(&id); err != nil {
		return err
	}
	_, err := b.Cancel(t.Context(), id, ledger.ByOperator{Reason: "no more"})
	return err
}

// cutOff keeps workers from the database until the brood is gone.
func (b *bench) cutOff(t *testing.T, brood *brood) {
	t.Helper()
	ours := b.db.Connect(t)
	b.allowConnections(t, false)
	if _, err := ours.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'jobledger'`); err != nil {
		t.Fatal(err)
	}
	brood.allGone(t)
	b.allowConnections(t, true)
}

// TestCase55_KilledNode: where the worker is killed and what keeps its commands, too, nothing can clear up at once. It
// is done before the job runs again on this machine, by a worker that starts or one that has been there. Without
// cgroups a process that has given up its environment is not found.
func TestCase55_KilledNode(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, cgroup  string
		there, hidden bool
	}{{"worker_that_starts", "off", false, false}, {"worker_that_is_there", "off", true, false}, {"cgroup", "auto", false, true}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if tc.cgroup == "auto" && executor.Detect(false).Cgroup == "" {
				t.Skip("no cgroup can be had here")
			}
			b, brood := newBench(t), newBrood(t, tc.hidden)
			id := b.enqueue(t, ledger.EnqueueParams{Kind: "run"})
			w := b.work(t, brood.command, "--lease", "4s", "--cgroup", tc.cgroup)
			brood.up(t)
			next := func() *process { return b.work(t, brood.command, "--drain", "--cgroup", tc.cgroup) }
			var second *process
			if tc.there {
				second = next()
				b.db.WaitTrue(t, "another worker is there", `SELECT count(*) = 2 FROM jobledger.worker`)
			}
			w.signal(t, syscall.SIGSTOP)
			keepers := childrenOf(t, w.Process.Pid)
			for _, keeper := range keepers {
				// Stopped first, neither can clear up behind the other.
				if err := errors.Join(syscall.Kill(keeper, syscall.SIGSTOP), syscall.Kill(keeper, syscall.SIGKILL)); err != nil {
					t.Fatal(err)
				}
			}
			w.signal(t, syscall.SIGKILL)
			w.exits(t, -1)
			if len(keepers) != 1 {
				t.Errorf("the worker has the children %v, want one keeper", keepers)
			}
			if !tc.there { // by now another test's worker may have cleared up, since that is about the machine
				second = next()
			}
			second.exits(t, 0)
			brood.allGone(t)
			if job := b.job(t, id); string(job.Result) != `"left: "` || job.Restarts != 1 {
				t.Errorf("ended with %s, result %s, %d restarts", job.Outcome, job.Result, job.Restarts)
			}
		})
	}
}

// childrenOf finds the children of a process.
func childrenOf(t *testing.T, parent int) (pids []int) {
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
			pids = append(pids, pid)
		}
	}
	return pids
}
