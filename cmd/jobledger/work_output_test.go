package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// fifo makes a named pipe by which a command is told to go on.
func fifo(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// tell writes a line into a named pipe.
func tell(t *testing.T, path, line string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(line+"\n"), 0); err != nil {
		t.Fatal(err)
	}
}

// TestCase56_FloodsDelayNoPing: commands that print without an end hold up neither the pings of their own jobs nor those
// of a quiet one beside them, on a slow database, too; memory stays flat, and the last line is not lost.
func TestCase56_FloodsDelayNoPing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	proxy := pgtest.NewProxy(t, b.db.URL)
	proxy.SetDelay(100 * time.Millisecond)
	floods := map[string]string{
		"words":     `yes >&2`,
		"empty":     `yes '' >&2`,
		"sequences": `yes "$(printf '\033]0;title\007\033[2J\033[31m')" >&2`,
		"line":      `tr '\0' x < /dev/zero >&2`,
		"quiet":     `sleep 600`,
	}
	pipe := newPipe(t)
	args := []string{"work", "--database-url", proxy.URL, "--poll", "20ms", "--lease", "5s", "--drain"}
	goOn, ids := map[string]string{}, map[string]uuid.UUID{}
	for kind, flood := range floods {
		goOn[kind] = fifo(t)
		args = append(args, "--exec", kind+"="+pipe.held(fmt.Sprintf("%s & echo started >&9; read x < %s; kill $!; wait $!; echo; echo the last line >&2; exit 1", flood, goOn[kind])))
		ids[kind] = b.enqueue(t, ledger.EnqueueParams{Kind: kind, Policy: once})
	}
	w := b.start(t, args...)
	for range floods {
		pipe.says(t, "started")
	}
	before := peakMemory(t, w)
	b.db.WaitTrue(t, "each job was pinged three times",
		`SELECT count(*) = 5 FROM (SELECT FROM jobledger.job_event WHERE type = 'pinged' GROUP BY job_id HAVING count(*) >= 3) AS pinged`)
	grown := peakMemory(t, w) - before
	t.Logf("the worker has grown by %d MiB", grown>>20)
	if grown > 32<<20 {
		t.Error("memory is not flat")
	}
	for _, path := range goOn {
		tell(t, path, "go on")
	}
	w.exits(t, 0)
	for kind, id := range ids {
		if types := b.types(t, id); types != "enqueued claimed failed" {
			t.Errorf("%s: events are %s, want no lease lost", kind, types)
		}
		if job := b.job(t, id); !strings.HasSuffix(job.Error, "the last line") || len(job.Error) > 20<<10 || kind != "quiet" && !strings.Contains(job.Error, " bytes left out ...]") {
			t.Errorf("%s: an error of %d bytes that ends with %.30q", kind, len(job.Error), job.Error[max(0, len(job.Error)-30):])
		}
	}
	b.verified(t)
}

// peakMemory is the most memory that a process has had, 0 where nobody tells.
func peakMemory(t *testing.T, p *process) int {
	t.Helper()
	if runtime.GOOS != "linux" {
		return 0
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(peak)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// TestCase56_DatabaseDown: a command goes on printing, and comes to its end, while the database is away; its output is
// stored when it is there again.
func TestCase56_DatabaseDown(t *testing.T) {
	t.Parallel()
	b, pipe, goOn := newBench(t), newPipe(t), fifo(t)
	proxy := pgtest.NewProxy(t, b.db.URL)
	id := b.enqueue(t, ledger.EnqueueParams{Kind: "run"})
	w := b.work(t, pipe.held("echo started >&9; read x < "+goOn+"; head -c 10000000 /dev/zero | tr '\\0' x; echo printed >&9; echo last"), "--database-url", proxy.URL, "--lease", "10m", "--drain")
	pipe.says(t, "started")
	proxy.Set(pgtest.Closed)
	tell(t, goOn, "go on")
	pipe.says(t, "printed")
	pipe.gone(t)
	<-proxy.Lost()
	if job := b.job(t, id); job.State != domain.Running {
		t.Errorf("the job is %s although nobody could have told", job.State)
	}
	proxy.Set(pgtest.Open)
	w.exits(t, 0)
	if job := b.job(t, id); job.Outcome != domain.Success || !strings.HasSuffix(string(job.Result), `xlast"`) {
		t.Errorf("ended with %s and a result of %d bytes", job.Outcome, len(job.Result))
	}
	b.verified(t)
}
