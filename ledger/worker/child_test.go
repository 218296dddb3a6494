package worker_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

// childEnv makes the test binary a worker process: its value is a childConfig as JSON.
const childEnv = "JOBLEDGER_WORKER_TEST_CHILD"

type childConfig struct {
	URL, Name string
	Lease     time.Duration
	Chaos     bool // it is a worker of TestChaos
}

// childMain runs a worker with one slot until SIGTERM. Its kinds: "kill" kills the process, "quick"
// does nothing, "wait" prints the job's id and runs until it is told to stop, or, from the third
// generation on, succeeds.
func childMain(what string) int {
	var c childConfig
	if err := json.Unmarshal([]byte(what), &c); err != nil {
		return complain(err)
	}
	if c.Chaos {
		return chaosMain(c)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, c.URL)
	if err != nil {
		return complain(err)
	}
	defer pool.Close()
	l, err := ledger.New(pool, ledger.Config{})
	if err != nil {
		return complain(err)
	}
	cfg := brisk()
	cfg.Name, cfg.Lease, cfg.Concurrency, cfg.StopTimeout = c.Name, c.Lease, 1, time.Millisecond
	w, err := worker.New(l, cfg)
	if err != nil {
		return complain(err)
	}
	worker.Handle(w, "kill", func(context.Context, worker.Job[struct{}]) (struct{}, error) {
		return struct{}{}, syscall.Kill(os.Getpid(), syscall.SIGKILL)
	})
	worker.Handle(w, "quick", func(context.Context, worker.Job[struct{}]) (struct{}, error) { return struct{}{}, nil })
	worker.Handle(w, "wait", func(ctx context.Context, job worker.Job[struct{}]) (struct{}, error) {
		fmt.Println(job.ID)
		if job.Generation >= 3 {
			return struct{}{}, nil
		}
		<-ctx.Done()
		return struct{}{}, context.Cause(ctx)
	})
	if err := w.Run(ctx); err != nil {
		return complain(err)
	}
	return 0
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// child is a worker process.
type child struct {
	cmd   *exec.Cmd
	lines chan string   // what it prints
	gone  chan struct{} // closed when it has ended; then cmd.ProcessState tells how
}

// spawn starts a worker process; it is killed at the end of the test if it still runs.
func spawn(t testing.TB, c childConfig) *child {
	t.Helper()
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+string(b))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &child{cmd: cmd, lines: make(chan string, 100), gone: make(chan struct{})}
	go func() {
		defer close(p.gone)
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- strings.TrimSpace(s.Text())
		}
		_ = cmd.Wait() // ProcessState tells
	}()
	t.Cleanup(func() {
		p.signal(t, syscall.SIGKILL)
		<-p.gone
	})
	return p
}

// signal sends a signal to the process, if it is there.
func (p *child) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	select {
	case <-p.gone:
	default:
		if err := p.cmd.Process.Signal(s); err != nil && err != os.ErrProcessDone {
			t.Errorf("signal %s: %v", s, err)
		}
	}
}
