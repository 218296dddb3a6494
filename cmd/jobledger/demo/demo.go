// Package demo is the main job of jobledger on real input: it inspects every Go file of a folder with
// three worker processes, kills one, freezes another beyond its lease, cancels some jobs, and compares
// what the ledger says in the end with counting the files directly.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

const (
	lease     = 3 * time.Second
	deadline  = time.Minute
	canceled  = 25 // jobs canceled while they wait
	pipes     = 3  // jobs that hang until they are canceled
	missing   = 3  // jobs whose path does not exist
	batchSize = 1000
)

// Config is what the demo needs.
type Config struct {
	Ledger *ledger.Ledger
	Pool   *pgxpool.Pool
	Schema string // quoted, for reading the projections
	// Dir holds the Go files, one job each.
	Dir string
	Out io.Writer
	// Start starts a worker process of the given name that calls Work with its standard output.
	Start func(name string, stdout *os.File) (*os.Process, error)
}

// Run does it all and prints what happened. It returns an error if anything is not as it must be: a
// total that differs from the direct count, a job without outcome, a finding of verify, or more than a
// minute.
func Run(ctx context.Context, c Config) error {
	ctx, cancel := context.WithTimeoutCause(ctx, deadline, fmt.Errorf("the demo took longer than %s", deadline))
	defer cancel()
	d := &demo{Config: c, started: time.Now()}
	defer d.killAll()
	for _, step := range []func(context.Context) error{
		d.enqueue, d.cancelWaiting, d.startWorkers, d.killOne, d.freezeOne, d.takeOver, d.thaw, d.cancelRunning, d.stopWorkers, d.report,
	} {
		if err := step(ctx); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return fmt.Errorf("%w: %w", cause, err)
			}
			return err
		}
	}
	return nil
}

type demo struct {
	Config
	started time.Time
	temp    string
	want    map[string]Found // by path: what direct counting says
	doubles []uuid.UUID      // second jobs for some files, canceled while they wait
	hanging []uuid.UUID      // jobs on pipes
	total   int
	workers [3]process // 0 is killed, 1 is frozen, 2 takes over
}

type process struct {
	name string
	*os.Process
	started *ids // what its handlers have begun with
}

// enqueue creates one job per file, some that cannot succeed and some that never end by themselves.
func (d *demo) enqueue(ctx context.Context) error {
	paths, err := sources(d.Dir)
	if err != nil {
		return err
	}
	if len(paths) < canceled {
		return fmt.Errorf("only %d Go files below %s, want at least %d", len(paths), d.Dir, canceled)
	}
	if d.want, err = directly(ctx, paths); err != nil {
		return err
	}
	var jobs []ledger.EnqueueParams
	for _, path := range paths {
		jobs = append(jobs, job(path, 0))
	}
	for i := range missing {
		jobs = append(jobs, job(filepath.Join(d.Dir, fmt.Sprintf("no-such-file-%d.go", i)), 0))
	}
	jobs = append(jobs, job(d.Dir, 0))
	if _, err := d.enqueueAll(ctx, jobs); err != nil {
		return err
	}
	doubles := make([]ledger.EnqueueParams, canceled)
	for i := range doubles {
		doubles[i] = job(paths[i], 0)
	}
	if d.doubles, err = d.enqueueAll(ctx, doubles); err != nil {
		return err
	}
	if d.hanging, err = d.enqueuePipes(ctx); err != nil {
		return err
	}
	d.say("enqueued %d jobs: %d Go files below %s, %d missing paths, 1 folder, %d to be canceled, %d pipes that nobody writes to",
		d.total, len(paths), d.Dir, missing, canceled, pipes)
	return nil
}

// enqueuePipes makes jobs that hang: claimed first, because their priority is higher.
func (d *demo) enqueuePipes(ctx context.Context) ([]uuid.UUID, error) {
	temp, err := os.MkdirTemp("", "jobledger-demo-")
	if err != nil {
		return nil, fmt.Errorf("make folder for pipes: %w", err)
	}
	d.temp = temp
	var jobs []ledger.EnqueueParams
	for i := range pipes {
		path := filepath.Join(temp, fmt.Sprintf("pipe-%d", i))
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			return nil, fmt.Errorf("make pipe: %w", err)
		}
		jobs = append(jobs, job(path, 10))
	}
	return d.enqueueAll(ctx, jobs)
}

func job(path string, priority int) ledger.EnqueueParams {
	return ledger.EnqueueParams{Kind: kind, Tag: tag, Args: Args{Path: path}, Priority: priority, Policy: retryPolicy}
}

func (d *demo) enqueueAll(ctx context.Context, jobs []ledger.EnqueueParams) ([]uuid.UUID, error) {
	var ids []uuid.UUID
	for len(jobs) > 0 {
		n := min(len(jobs), batchSize)
		got, err := d.Ledger.EnqueueMany(ctx, jobs[:n])
		if err != nil {
			return nil, err
		}
		for _, e := range got {
			ids = append(ids, e.JobID)
		}
		jobs = jobs[n:]
	}
	d.total += len(ids)
	return ids, nil
}

func (d *demo) cancelWaiting(ctx context.Context) error {
	answers, err := d.Ledger.CancelMany(ctx, d.doubles, ledger.ByOperator{Reason: "a second job for the same file"})
	if err != nil {
		return err
	}
	for _, a := range answers {
		if a.Event != domain.CanceledEvent {
			return fmt.Errorf("cancel waiting job %s: got %q, want canceled: %w", a.JobID, a.Event, a.Err)
		}
	}
	d.say("canceled %d jobs that were waiting", len(answers))
	return nil
}

func (d *demo) startWorkers(context.Context) error {
	for i, name := range []string{"worker-a", "worker-b", "worker-c"} {
		read, write, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
		p, err := d.Start(name, write)
		if err := errors.Join(err, write.Close()); err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
		d.workers[i] = process{name, p, readIDs(read)}
	}
	d.say("started %s, %s and %s (processes %d, %d and %d)", d.workers[0].name, d.workers[1].name, d.workers[2].name,
		d.workers[0].Pid, d.workers[1].Pid, d.workers[2].Pid)
	return nil
}

// killOne kills worker-a in the middle of its work: it gives nothing back and says nothing.
func (d *demo) killOne(ctx context.Context) error {
	if err := d.waitEnded(ctx, len(d.want)/10); err != nil {
		return err
	}
	a := d.workers[0]
	if err := d.waitHolds(ctx, a.name); err != nil {
		return err
	}
	if err := a.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", a.name, err)
	}
	_, _ = a.Wait() // it was killed: its exit status says nothing new
	n, err := d.holds(ctx, a.name)
	if err != nil {
		return err
	}
	d.say("killed %s with SIGKILL; it held %d jobs", a.name, n)
	return nil
}

// freezeOne stops worker-b while its handlers are at work on jobs. What it had sent before the signal
// may still be committed, and a claim may still be on its way to it, so it is looked at again until
// jobs are left in its hands that it had begun with: those it will report, too late.
func (d *demo) freezeOne(ctx context.Context) error {
	b := d.workers[1]
	for {
		if err := d.waitHolds(ctx, b.name); err != nil {
			return err
		}
		if err := b.Signal(syscall.SIGSTOP); err != nil {
			return fmt.Errorf("freeze %s: %w", b.name, err)
		}
		n, err := d.atWork(ctx, b, 200*time.Millisecond)
		if err != nil {
			return err
		}
		if n > 0 {
			d.say("froze %s with SIGSTOP; it had begun %d of the jobs that it holds, lease %s", b.name, n, lease)
			return nil
		}
		if err := b.Signal(syscall.SIGCONT); err != nil {
			return fmt.Errorf("thaw %s: %w", b.name, err)
		}
	}
}

// takeOver waits until nothing is left in the hands of the killed and the frozen worker, and nothing
// but the pipes anywhere else.
func (d *demo) takeOver(ctx context.Context) error {
	for _, w := range d.workers[:2] {
		if err := d.waitFor(ctx, "leases of "+w.name+" to end", func() (bool, error) {
			n, err := d.holds(ctx, w.name)
			return n == 0, err
		}); err != nil {
			return err
		}
	}
	d.say("the leases of %s and %s have ended; %s took their jobs over", d.workers[0].name, d.workers[1].name, d.workers[2].name)
	return d.waitEnded(ctx, d.total-pipes)
}

// thaw lets worker-b go on: it reports what it had in hand, too late.
func (d *demo) thaw(ctx context.Context) error {
	b := d.workers[1]
	if err := b.Signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("thaw %s: %w", b.name, err)
	}
	d.say("thawed %s", b.name)
	return d.waitFor(ctx, "late reports of "+b.name, func() (bool, error) {
		n, err := d.count(ctx, `SELECT count(*) FROM {schema}.job_event WHERE type = 'rejected' AND verb = 'complete'`)
		return n > 0, err
	})
}

func (d *demo) cancelRunning(ctx context.Context) error {
	if err := d.waitFor(ctx, "jobs on pipes to run", func() (bool, error) {
		n, err := d.count(ctx, `SELECT count(*) FROM {schema}.job_runtime WHERE job_id = ANY ($1)`, d.hanging)
		return n == pipes, err
	}); err != nil {
		return err
	}
	answers, err := d.Ledger.CancelMany(ctx, d.hanging, ledger.ByOperator{Reason: "nobody writes to this pipe"})
	if err != nil {
		return err
	}
	for _, a := range answers {
		if a.Event != domain.CancelRequested {
			return fmt.Errorf("cancel running job %s: got %q, want cancel_requested: %w", a.JobID, a.Event, a.Err)
		}
	}
	d.say("asked %d running jobs to stop", len(answers))
	return d.waitEnded(ctx, d.total)
}

func (d *demo) stopWorkers(context.Context) error {
	for _, w := range d.workers[1:] {
		if err := w.Signal(syscall.SIGTERM); err != nil {
			return fmt.Errorf("stop %s: %w", w.name, err)
		}
	}
	for _, w := range d.workers[1:] {
		state, err := w.Wait()
		if err != nil {
			return fmt.Errorf("stop %s: %w", w.name, err)
		}
		if !state.Success() {
			return fmt.Errorf("stop %s: %s, want a clean exit", w.name, state)
		}
	}
	d.say("%s and %s stopped in good order", d.workers[1].name, d.workers[2].name)
	return nil
}

// killAll leaves nothing behind, however the demo ended. Killing a process that has ended is an error
// that does not matter.
func (d *demo) killAll() {
	for _, w := range d.workers {
		if w.Process != nil {
			_ = w.Kill()
			_, _ = w.Wait()
		}
	}
	if d.temp != "" {
		_ = os.RemoveAll(d.temp)
	}
}

func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.Out, "%6.1fs  %s\n", time.Since(d.started).Seconds(), fmt.Sprintf(format, args...))
}
