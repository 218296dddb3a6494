package worker_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/embedded"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

// outageEnv is how many seconds each outage of TestCase35 lasts; by default as long as it takes to be noticed.
const outageEnv = "JOBLEDGER_OUTAGE_SECONDS"

// load is two workers and an application that enqueues, all through pools of their own.
type load struct {
	server  *embedded.Server
	l       *ledger.Ledger // of the application
	workers []*running
	log     lines
	begin   time.Time

	mu           sync.Mutex
	acknowledged map[uuid.UUID]bool
	open         map[uuid.UUID]bool // enqueued with unknown outcome
	runs         map[uuid.UUID]int
}

// TestCase35_failover: a server turns read-only and back, for all sessions or for those that began meanwhile,
// and stops and starts again, under load. The workers say so in few lines, go on by themselves, and no job
// is lost or run twice.
func TestCase35_failover(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("makes a cluster")
	}
	o := &load{server: pgtest.Exclusive(t), begin: time.Now(),
		acknowledged: map[uuid.UUID]bool{}, open: map[uuid.UUID]bool{}, runs: map[uuid.UUID]int{}}
	o.l = o.ledger(t)
	cfg := brisk()
	cfg.Logger = slog.New(slog.NewTextHandler(&o.log, nil))
	cfg.Lease = 10 * time.Minute // outlives each outage, so that each job runs once
	for range 2 {
		o.workers = append(o.workers, start(t, o.ledger(t), cfg, func(w *worker.Worker) { worker.Handle(w, "load", o.handle) }))
	}
	ctx, stop := context.WithCancel(t.Context())
	feeding := make(chan struct{})
	go func() {
		defer close(feeding)
		o.feed(ctx)
	}()

	o.healthy(t)
	for _, outage := range []struct {
		name, code   string // of the errors that tell that it is there
		begin, relax func()
	}{
		{"all_sessions_read_only", "25006",
			func() { o.admin(t, `ALTER SYSTEM SET default_transaction_read_only = on`, `SELECT pg_reload_conf()`) },
			func() { o.admin(t, `ALTER SYSTEM RESET default_transaction_read_only`, `SELECT pg_reload_conf()`) }},
		{"sessions_that_began_meanwhile_stay_read_only", "25006",
			func() {
				o.admin(t, `ALTER DATABASE `+embedded.DatabaseName+` SET default_transaction_read_only = on`)
				o.restart(t)
			},
			func() { o.admin(t, `ALTER DATABASE `+embedded.DatabaseName+` RESET default_transaction_read_only`) }},
		{"stopped", "", o.server.Stop, func() { o.restart(t) }},
		{"killed", "", o.server.Kill, func() { o.restart(t) }},
	} {
		outage.begin()
		for _, w := range o.workers {
			until(t, outage.name+" is noticed", func() bool {
				err := w.Healthy()
				var pg *pgconn.PgError
				return err != nil && (outage.code == "" || errors.As(err, &pg) && pg.Code == outage.code)
			})
		}
		o.last(t)
		outage.relax()
		o.healthy(t)
		o.progress(t)
	}

	stop()
	<-feeding
	for _, w := range o.workers {
		if err := w.stop(); err != nil {
			t.Errorf("a worker stopped with %v", err)
		}
		// Outages count as one while anything, such as the sign of life, has not been tried again in between.
		if s := w.Stats(); s.Outages < 1 || s.Lost != 0 || s.Refused != 0 {
			t.Errorf("stats are %+v", s)
		}
	}
	o.account(t)
}

func (o *load) pool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := postgres.OpenPool(t.Context(), postgres.PoolConfig{URL: o.server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func (o *load) ledger(t *testing.T) *ledger.Ledger {
	t.Helper()
	l, err := ledger.New(o.pool(t), ledger.Config{Actor: "tester"})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (o *load) handle(_ context.Context, job worker.Job[struct{}]) (struct{}, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.runs[job.ID]++
	return struct{}{}, nil
}

// feed enqueues until ctx ends, one job after the other, and notes what it was told.
func (o *load) feed(ctx context.Context) {
	for ctx.Err() == nil {
		e, err := o.l.Enqueue(ctx, ledger.EnqueueParams{Kind: "load"})
		lost, unknown := errors.AsType[*domain.UnknownOutcomeError](err)
		o.mu.Lock()
		switch {
		case err == nil:
			o.acknowledged[e.JobID] = true
		case unknown:
			o.open[lost.JobIDs[0]] = true
		}
		o.mu.Unlock()
	}
}

// admin runs statements in a session that may write whatever the server's default is.
func (o *load) admin(t *testing.T, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), o.server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, s := range append([]string{`SET default_transaction_read_only = off`}, statements...) {
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func (o *load) restart(t *testing.T) {
	t.Helper()
	if err := o.server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// last waits for as long as the outage is to last.
func (o *load) last(t *testing.T) {
	t.Helper()
	if text := os.Getenv(outageEnv); text != "" {
		seconds, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Duration(seconds) * time.Second)
	}
}

func (o *load) healthy(t *testing.T) {
	t.Helper()
	begin := time.Now()
	until(t, "both workers are healthy", func() bool { return o.workers[0].Healthy() == nil && o.workers[1].Healthy() == nil })
	t.Logf("healthy after %s", time.Since(begin).Round(time.Millisecond))
}

// progress waits until both workers have had jobs again.
func (o *load) progress(t *testing.T) {
	t.Helper()
	before := []int64{o.workers[0].Stats().Succeeded, o.workers[1].Stats().Succeeded}
	until(t, "jobs are done again", func() bool {
		return o.workers[0].Stats().Succeeded > before[0] && o.workers[1].Stats().Succeeded > before[1]
	})
}

// account compares what was told with what is there.
func (o *load) account(t *testing.T) {
	t.Helper()
	pool := o.pool(t)
	rows, err := pool.Query(t.Context(), `SELECT job_id FROM jobledger.job_event WHERE type = 'enqueued'`)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		t.Fatal(err)
	}
	there := map[uuid.UUID]bool{}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range stored {
		if there[id] || !o.acknowledged[id] && !o.open[id] {
			t.Errorf("job %s is there twice, or nobody has enqueued it", id)
		}
		there[id] = true
	}
	for id := range o.acknowledged {
		if !there[id] {
			t.Errorf("job %s was acknowledged and is not there", id)
		}
	}
	for id, n := range o.runs {
		if n != 1 {
			t.Errorf("job %s has run %d times", id, n)
		}
	}
	var ended, reaped int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE type = 'completed'), count(*) FILTER (WHERE type IN ('reaped', 'rejected', 'retried'))
		FROM jobledger.job_event`).Scan(&ended, &reaped); err != nil {
		t.Fatal(err)
	}
	if ended != len(o.runs) || reaped != 0 {
		t.Errorf("%d jobs have run and %d are completed; %d were reaped, rejected or retried", len(o.runs), ended, reaped)
	}
	v, err := o.l.Read().Verify(t.Context(), pool, nil)
	if err != nil || len(v.Findings) > 0 {
		t.Errorf("verify: %v, %+v", err, v.Findings)
	}
	text, lasted := o.log.String(), time.Since(o.begin)
	if n := strings.Count(text, "\n"); float64(n) > 8+lasted.Seconds() {
		t.Errorf("%d lines in %s:\n%s", n, lasted, text)
	}
	t.Logf("%d jobs acknowledged, %d of unknown outcome, %d run, in %s, %d lines of log", len(o.acknowledged), len(o.open), len(o.runs),
		lasted.Round(time.Millisecond), strings.Count(text, "\n"))
}
