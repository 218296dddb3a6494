package worker_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/embedded"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/ledger"
)

// chaosVariable is how often TestChaos kills Postgres; it kills four workers for each of these.
const chaosVariable = "JOBLEDGER_CHAOS_KILLS"

const (
	chaosWorkers     = 4
	workerKillsEach  = 4
	chaosLease       = 2 * time.Second
	chaosPatience    = 3 * time.Minute // for one wait: a server has to recover, on a machine that may be busy
	chaosStopsPer    = 5               // every so many rounds a worker is held by SIGSTOP until its leases are gone
	chaosDefaultKill = 2
	chaosEnough      = 10      // kills of Postgres that cannot fail to cut off a commit
	feederSpan       = 1 << 24 // numbers of jobs for each sender
)

// TestChaos kills Postgres and worker processes by SIGKILL under load, again and again, and holds
// workers until they are late. Afterwards, and after each recovery, the ledger is whole: what was
// acknowledged is there, once, be it an enqueue or a completion; what a handler wrote in the
// transaction of its completion is there if and only if the job is complete. The counters that it
// prints say that what it provokes did happen; none may be zero.
func TestChaos(t *testing.T) {
	t.Parallel()
	kills := chaosDefaultKill
	if text := os.Getenv(chaosVariable); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil || kills < 1 {
			t.Fatalf("%s: got %q, want how often to kill Postgres", chaosVariable, text)
		}
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := newChaos(t, rand.New(rand.NewPCG(seed, 0)))
	for range chaosWorkers {
		c.spawn(t)
	}
	feeding, stopFeeding := context.WithCancel(t.Context())
	var fed sync.WaitGroup
	for i := range c.feeders {
		fed.Go(func() { c.feeders[i].feed(feeding) })
	}
	t.Cleanup(func() { stopFeeding(); fed.Wait() })

	for round := range kills {
		c.progress(t)
		c.storm.Store(true)
		c.progress(t)
		c.server.Kill()
		c.storm.Store(false)
		c.restart(t)
		for range workerKillsEach {
			c.progress(t)
			c.killWorker(t)
		}
		if round%chaosStopsPer == 0 {
			c.progress(t)
			c.holdWorker(t)
		}
		c.verify(t)
	}
	stopFeeding()
	fed.Wait()
	c.drain(t)
	c.judge(t)
	t.Logf("Postgres killed %d times, workers %d times: %s", kills, kills*workerKillsEach, c.counters(t, kills))
}

// chaos is a ledger on a server that is killed, its senders and its workers.
type chaos struct {
	server  *embedded.Server
	pool    *pgxpool.Pool
	l       *ledger.Ledger
	rand    *rand.Rand
	feeders [3]feeder
	storm   atomic.Bool

	workers []*child
	spawned int
	seen    sayings
}

func newChaos(t *testing.T, random *rand.Rand) *chaos {
	t.Helper()
	c := &chaos{server: pgtest.Exclusive(t), rand: random, seen: newSayings()}
	var err error
	if c.pool, err = postgres.OpenPool(t.Context(), postgres.PoolConfig{URL: c.server.URL(), MaxConns: 6}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.pool.Close)
	if c.l, err = ledger.New(c.pool, ledger.Config{Actor: "tester"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.pool.Exec(t.Context(), `CREATE TABLE effect (job_id uuid NOT NULL, generation integer NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	for i := range c.feeders {
		c.feeders[i] = feeder{l: c.l, pool: c.pool, storm: &c.storm, next: i * feederSpan, rand: rand.New(rand.NewPCG(random.Uint64(), 1))}
	}
	return c
}

// spawn starts a worker and listens to it until its end.
func (c *chaos) spawn(t *testing.T) {
	c.spawned++
	p := spawn(t, childConfig{URL: c.server.URL(), Name: fmt.Sprint("chaos-", c.spawned), Lease: chaosLease, Chaos: true})
	c.workers = append(c.workers, p)
	c.seen.listen(p)
}

// progress waits until some more runs have begun.
func (c *chaos) progress(t *testing.T) {
	t.Helper()
	goal := c.seen.runs() + 20 + c.rand.IntN(80)
	c.wait(t, "more runs", func() bool { return c.seen.runs() >= goal })
}

// restart starts the server again, which recovers from its log.
func (c *chaos) restart(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), chaosPatience)
	defer cancel()
	if err := c.server.Restart(ctx); err != nil {
		t.Fatal(err)
	}
}

// killWorker kills one worker and starts another.
func (c *chaos) killWorker(t *testing.T) {
	t.Helper()
	i := c.rand.IntN(len(c.workers))
	c.workers[i].signal(t, syscall.SIGKILL)
	receive(t, "the end of a killed worker", c.workers[i].gone)
	c.workers = append(c.workers[:i], c.workers[i+1:]...)
	c.spawn(t)
}

// holdWorker stops a worker that runs jobs until others have taken them over, and lets it go on: what
// it reports then is late. It does so until the ledger has refused a late report.
func (c *chaos) holdWorker(t *testing.T) {
	t.Helper()
	before := c.count(t, `SELECT count(*) FROM jobledger.job_event WHERE type = 'rejected'`)
	c.wait(t, "a late report is refused", func() bool {
		i := c.rand.IntN(len(c.workers))
		c.workers[i].signal(t, syscall.SIGSTOP)
		c.wait(t, "the leases of a stopped worker are over", func() bool {
			return c.holds(t, `SELECT NOT EXISTS (SELECT FROM jobledger.job_runtime r JOIN jobledger.worker w ON w.worker = r.worker WHERE w.pid = $1)`,
				c.workers[i].cmd.Process.Pid)
		})
		c.workers[i].signal(t, syscall.SIGCONT)
		goal := c.seen.runs() + 50
		c.wait(t, "more runs", func() bool { return c.seen.runs() >= goal })
		return c.count(t, `SELECT count(*) FROM jobledger.job_event WHERE type = 'rejected'`) > before
	})
}

// drain waits until every job has ended and stops the workers.
func (c *chaos) drain(t *testing.T) {
	t.Helper()
	c.wait(t, "every job has ended", func() bool {
		return c.holds(t, `SELECT NOT EXISTS (SELECT FROM jobledger.job_queue) AND NOT EXISTS (SELECT FROM jobledger.job_runtime)`)
	})
	for _, p := range c.workers {
		p.signal(t, syscall.SIGTERM)
	}
	for _, p := range c.workers {
		receive(t, "the end of a worker", p.gone)
		if !p.cmd.ProcessState.Success() {
			t.Errorf("a worker ended with %s", p.cmd.ProcessState)
		}
	}
	c.seen.wait()
}

// verify fails the test if the ledger is not whole.
func (c *chaos) verify(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), chaosPatience)
	defer cancel()
	v, err := c.l.Read().Verify(ctx, c.pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range v.Findings {
		t.Errorf("verify: job %s version %d %s", f.JobID, f.Version, f.Problem)
	}
}

// judge compares what senders and handlers were told with what is in the ledger.
func (c *chaos) judge(t *testing.T) {
	t.Helper()
	c.verify(t)
	stored := c.stored(t)
	for i := range c.feeders {
		c.feeders[i].judge(t, stored)
	}
	if n := c.count(t, `SELECT count(*) FROM jobledger.job_completed WHERE outcome <> 'success'`); n > 0 {
		t.Errorf("%d jobs did not end with success", n)
	}
	if n := c.count(t, `SELECT count(*) FROM (SELECT FROM jobledger.job_event WHERE type = 'completed' GROUP BY job_id HAVING count(*) > 1) twice`); n > 0 {
		t.Errorf("%d jobs were completed twice", n)
	}
	if n := c.count(t, `SELECT count(*) FROM effect x FULL JOIN jobledger.job_event e USING (job_id, generation)
			WHERE (e.job_id IS NULL OR (e.type = 'completed' AND x.job_id IS NULL))
			AND coalesce((SELECT kind FROM jobledger.job_completed j WHERE j.job_id = coalesce(e.job_id, x.job_id)), 'tx') = 'tx'`); n > 0 {
		t.Errorf("%d jobs have an effect without its completion, or the other way round", n)
	}
	for r := range c.seen.committed {
		if n := c.count(t, `SELECT count(*) FROM jobledger.job_event WHERE job_id = $1 AND generation = $2 AND type = 'completed'`, r.id, r.generation); n != 1 {
			t.Errorf("job %s: the completion under generation %d was acknowledged and is there %d times", r.id, r.generation, n)
		}
	}
	for r, times := range c.seen.ran {
		if times > 1 {
			t.Errorf("job %s: generation %d ran %d times", r.id, r.generation, times)
		}
	}
}

// stored are the jobs in the ledger, by the number in their args.
func (c *chaos) stored(t *testing.T) map[int][]uuid.UUID {
	t.Helper()
	rows, err := c.pool.Query(t.Context(), `SELECT e.job_id, (b.body::json->>'n')::integer
		FROM jobledger.job_event e JOIN jobledger.job_payload b ON b.job_id = e.job_id AND b.version = 1 WHERE e.type = 'enqueued'`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	stored := map[int][]uuid.UUID{}
	for rows.Next() {
		var id uuid.UUID
		var n int
		if err := rows.Scan(&id, &n); err != nil {
			t.Fatal(err)
		}
		stored[n] = append(stored[n], id)
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	return stored
}

// counters say what was provoked; none may be zero.
func (c *chaos) counters(t *testing.T, kills int) string {
	t.Helper()
	reaped := c.count(t, `SELECT count(*) FROM jobledger.job_event WHERE type = 'reaped'`)
	rejected := c.count(t, `SELECT count(*) FROM jobledger.job_event WHERE type = 'rejected'`)
	var acknowledged, carriedOut, notCarriedOut, rolledBack int
	for _, f := range c.feeders {
		acknowledged, carriedOut, notCarriedOut, rolledBack = acknowledged+f.acknowledged, carriedOut+f.carriedOut, notCarriedOut+f.notCarriedOut, rolledBack+f.rolledBack
	}
	unknown := carriedOut + notCarriedOut
	if reaped == 0 || rejected == 0 || unknown == 0 && kills >= chaosEnough {
		t.Errorf("%d leases reaped, %d late reports refused, %d commits of unknown outcome: want none to be zero", reaped, rejected, unknown)
	}
	return fmt.Sprintf("%d jobs, %d runs; %d enqueues and %d completions in handlers' transactions acknowledged; %d leases reaped, %d late reports refused; "+
		"%d commits of unknown outcome (%d carried out), %d enqueues cut off before their commit; %d outcomes whose first report had got through without its answer",
		c.count(t, `SELECT count(*) FROM jobledger.job_completed`), len(c.seen.ran), acknowledged, len(c.seen.committed), reaped, rejected,
		unknown, carriedOut, rolledBack, c.seen.repeated)
}

// count asks the server, which is up.
func (c *chaos) count(t *testing.T, sql string, args ...any) (n int) {
	t.Helper()
	// A connection from before a crash may be in the pool: ask again.
	c.wait(t, "the server answers", func() bool { return c.pool.QueryRow(t.Context(), sql, args...).Scan(&n) == nil })
	return n
}

func (c *chaos) holds(t *testing.T, sql string, args ...any) (yes bool) {
	t.Helper()
	return c.pool.QueryRow(t.Context(), sql, args...).Scan(&yes) == nil && yes
}

// wait is until with more patience.
func (c *chaos) wait(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(chaosPatience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited too long: %s", what)
		}
	}
}
