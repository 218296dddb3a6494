package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// TestCase57_DeathBySignal: completed is a true exit code 0 and nothing else, and what stands with the job is what has
// happened.
func TestCase57_DeathBySignal(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cases := []workCase{{kind: "exit_0", command: "exit 0", outcome: domain.Success}}
	fails := func(kind, command string, class domain.Class, says string) {
		cases = append(cases, workCase{kind: kind, command: command, outcome: domain.Failure, class: class, reason: domain.ReasonAttemptsExhausted, says: says})
	}
	for _, signal := range []string{"TERM", "KILL", "SEGV", "ABRT", "PIPE", "HUP"} {
		fails("itself_"+signal, "ulimit -c 0; kill -"+signal+" $$", domain.ClassCrash, "killed by SIG"+signal)
		number := map[string]int{"TERM": 15, "KILL": 9, "SEGV": 11, "ABRT": 6, "PIPE": 13, "HUP": 1}[signal]
		fails("inner_"+signal, "ulimit -c 0; sh -c 'kill -"+signal+" $$'; exit $?", domain.ClassTransient,
			fmt.Sprintf("exit code %d (128+%d: probably killed by SIG%s)", 128+number, number, signal))
	}
	for _, code := range []int{1, 2, 125, 128, 255} {
		fails(fmt.Sprintf("exit_%d", code), fmt.Sprintf("exit %d", code), domain.ClassTransient, fmt.Sprintf("exit code %d", code))
	}
	fails("not_found", "no-such-command-here", domain.ClassTransient, "exit code 127 (as a shell says of a command that was not found)")
	fails("not_executable", "/etc/passwd", domain.ClassTransient, "exit code 126 (as a shell says of a command that cannot be executed)")
	fails("no_interpreter", program, domain.ClassTransient, "exit code 12") // 126 or 127, as the shell sees it
	flags := []string(nil)
	if runtime.GOOS == "linux" {
		fails("memory", "head -c 2000000000 /dev/zero | tail -c 1500000000 | wc -c; exit 9", domain.ClassTransient, "exit code 9\nstderr:\n")
		flags = []string{"--memory", "200MiB", "--cgroup", "off"}
	}
	w := b.workCases(t, cases, flags...)
	if said := strings.Contains(w.stderr.String(), "limits the address space of each process"); said != (flags != nil) {
		t.Errorf("it says that the limit is of address space: %t", said)
	}
	b.verified(t)
}

// TestCase57_OurOwnKill: what we have stopped is not taken for a crash of the command.
func TestCase57_OurOwnKill(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	canceled := b.enqueue(t, ledger.EnqueueParams{Kind: "run", Policy: once})
	late := b.enqueue(t, ledger.EnqueueParams{Kind: "run", Policy: domain.Policy{MaxAttempts: 1, Timeout: 4 * time.Second}})
	stopped := b.enqueue(t, ledger.EnqueueParams{Kind: "run", Policy: once})
	pipe := newPipe(t)
	w := b.work(t, pipe.held("echo started >&9; sleep 600 & wait"), "--lease", "6s", "--stop-timeout", "1ms")
	for range 3 {
		pipe.says(t, "started")
	}
	if _, err := b.Cancel(t.Context(), canceled, ledger.ByOperator{Reason: "no more"}); err != nil {
		t.Fatal(err)
	}
	if job := b.ended(t, canceled); job.Outcome != domain.Canceled || job.CancelReason != "no more" || job.Class == domain.ClassCrash || job.Error != "job was canceled: stopped by SIGTERM" {
		t.Errorf("the canceled one ended with %s, class %s, error %q", job.Outcome, job.Class, job.Error)
	}
	if job := b.ended(t, late); job.Outcome != domain.Failure || job.Class != domain.ClassTimeout {
		t.Errorf("the late one ended with %s, class %s, error %q", job.Outcome, job.Class, job.Error)
	}
	w.signal(t, syscall.SIGTERM)
	w.exits(t, exitCut)
	if job := b.job(t, stopped); job.State != domain.Waiting || job.Attempt != 0 || job.Class != "" || job.Error != "" {
		t.Errorf("the stopped one is %s with attempt %d, class %q, error %q", job.State, job.Attempt, job.Class, job.Error)
	}
	for id, why := range map[string]string{canceled.String(): "job was canceled: ", late.String(): "attempt timed out: ", stopped.String(): "worker is stopping: "} {
		if !strings.Contains(w.stderr.String(), fmt.Sprintf(`job_id=%s kind=run generation=1 attempt=1 end="%sstopped by SIGTERM"`, id, why)) {
			t.Errorf("the log does not say %sstopped by SIGTERM of %s", why, id)
		}
	}
	b.verified(t)
}
