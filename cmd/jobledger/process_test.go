package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/projections"
)

// patience bounds every wait in these tests. It is long because the machine may be busy; nobody waits for it in vain.
const patience = time.Minute

// bench is a ledger on a database of its own with worker processes at it.
type bench struct {
	*ledger.Ledger
	db  *pgtest.DB
	env []string // of its processes, beside that of the tests
}

func newBench(t *testing.T) *bench {
	t.Helper()
	db := pgtest.New(t)
	l, err := ledger.New(db.Pool, ledger.Config{Actor: "tester"})
	if err != nil {
		t.Fatal(err)
	}
	return &bench{Ledger: l, db: db, env: []string{"DATABASE_URL=" + db.URL}}
}

func (b *bench) enqueue(t *testing.T, p ledger.EnqueueParams) uuid.UUID {
	t.Helper()
	job, err := b.Enqueue(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return job.JobID
}

func (b *bench) job(t *testing.T, id uuid.UUID) projections.Job {
	t.Helper()
	job, err := b.Job(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// ended waits until a job has its outcome.
func (b *bench) ended(t *testing.T, id uuid.UUID) projections.Job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	job, err := b.Wait(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// seen waits until a worker has shown itself in a state.
func (b *bench) seen(t *testing.T, state ledger.WorkerState) {
	t.Helper()
	b.db.WaitTrue(t, "a worker is "+string(state), `SELECT EXISTS (SELECT FROM jobledger.worker WHERE state = $1)`, string(state))
}

// types are the events of a job.
func (b *bench) types(t *testing.T, id uuid.UUID) string {
	t.Helper()
	events, err := b.History(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var types []string
	for _, e := range events {
		if e.Type != domain.Pinged {
			types = append(types, string(e.Type))
		}
	}
	return strings.Join(types, " ")
}

// verified fails the test if the ledger is not whole.
func (b *bench) verified(t *testing.T) {
	t.Helper()
	v, err := b.Read().Verify(t.Context(), b.db.Pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range v.Findings {
		t.Errorf("verify: job %s version %d: %s", f.JobID, f.Version, f.Problem)
	}
}

// ran is what a call of the program in this process has come to.
type ran struct {
	code           int
	stdout, stderr string
}

// run calls the program in this process, which takes a tenth of the time of a process of its own.
func (b *bench) run(t *testing.T, stdin string, args ...string) ran {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), append([]string{"--database-url", b.db.URL}, args...), strings.NewReader(stdin), &stdout, &stderr)
	return ran{code, stdout.String(), stderr.String()}
}

// stored counts all that a refused call must not have left.
func (b *bench) stored(t *testing.T) (n int) {
	t.Helper()
	const query = `SELECT (SELECT count(*) FROM jobledger.job) + (SELECT count(*) FROM jobledger.job_event)
		+ (SELECT count(*) FROM jobledger.job_payload) + (SELECT count(*) FROM jobledger.idempotency_key)`
	if err := b.db.Pool.QueryRow(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// process is a jobledger process.
type process struct {
	*exec.Cmd
	stdout, stderr bytes.Buffer
	ended          chan struct{} // closed at its end; then err says how
	err            error
}

// work starts a worker process that runs command for jobs of kind run.
func (b *bench) work(t *testing.T, command string, flags ...string) *process {
	t.Helper()
	return b.start(t, append([]string{"work", "--exec", "run=" + command, "--poll", "20ms"}, flags...)...)
}

func (b *bench) start(t *testing.T, args ...string) *process {
	t.Helper()
	p := b.process(args...)
	p.launch(t)
	return p
}

// process is one that has not been started, so that it can be given an input.
func (b *bench) process(args ...string) *process {
	p := &process{Cmd: exec.Command("jobledger", args...), ended: make(chan struct{})}
	p.Env = append(os.Environ(), b.env...)
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	return p
}

// launch starts it; it ends with the test.
func (p *process) launch(t *testing.T) {
	t.Helper()
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		p.err = p.Wait()
	}()
	t.Cleanup(func() {
		p.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("%s printed\n%s%s", p, p.stdout.String(), p.stderr.String())
		}
	})
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.Process.Signal(s); err != nil {
		t.Fatalf("send %s: %v", s, err)
	}
}

// exits waits for the end of the process, and for that exit code.
func (p *process) exits(t *testing.T, want int) {
	t.Helper()
	select {
	case <-p.ended:
		got := 0
		if exit, ok := errors.AsType[*exec.ExitError](p.err); ok {
			got = exit.ExitCode()
		} else if p.err != nil {
			t.Fatal(p.err)
		}
		if got != want {
			t.Errorf("exit code %d, want %d", got, want)
		}
	case <-time.After(patience):
		t.Fatalf("%s has not ended after %s", p, patience)
	}
}

// pipe is a named pipe that commands hold open: what they write arrives as lines, and its end says that all of them,
// with all their children, are gone.
type pipe struct {
	path  string
	lines chan string // closed when all are gone
}

func newPipe(t *testing.T) *pipe {
	t.Helper()
	p := &pipe{path: filepath.Join(t.TempDir(), "pipe"), lines: make(chan string, 100)}
	if err := syscall.Mkfifo(p.path, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.lines)
		f, err := os.Open(p.path) // waits for the first command
		if err != nil {
			return
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			p.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		// If no command ever came, nobody else will free the reader.
		if f, err := os.OpenFile(p.path, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
			f.Close()
		}
	})
	return p
}

// held is a command that holds the pipe open as descriptor 9 and then does something else.
func (p *pipe) held(then string) string { return "exec 9> " + p.path + "; " + then }

// says waits for the next line.
func (p *pipe) says(t *testing.T, want string) {
	t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok || line != want {
			t.Fatalf("the command says %q (%t), want %q", line, ok, want)
		}
	case <-time.After(patience):
		t.Fatalf("the command says nothing after %s, want %q", patience, want)
	}
}

// gone waits until no process holds the pipe any more.
func (p *pipe) gone(t *testing.T) {
	t.Helper()
	select {
	case line, ok := <-p.lines:
		if ok {
			t.Fatalf("the command says %q, want its end", line)
		}
	case <-time.After(patience):
		t.Fatalf("a process of the command lives on after %s", patience)
	}
}
