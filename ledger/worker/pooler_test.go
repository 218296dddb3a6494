package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
	"github.com/jobledger/jobledger/projections"
)

// pooledClients is how many clients share the two connections of the pooler.
const pooledClients = 50

// pooledBy are the ways that docs/OPERATING.md names to reach a ledger through a transaction pooler, and one without a
// pooler in which a session forgets everything between two uses.
var pooledBy = map[string]func(t *testing.T, db *pgtest.DB) (*pgxpool.Pool, error){
	"open_pool": func(t *testing.T, db *pgtest.DB) (*pgxpool.Pool, error) {
		return postgres.OpenPool(t.Context(), postgres.PoolConfig{URL: db.PgBouncer(t), MaxConns: pooledClients})
	},
	"exec":            ownPool(pgx.QueryExecModeExec),
	"simple_protocol": ownPool(pgx.QueryExecModeSimpleProtocol),
	"discard_all": func(t *testing.T, db *pgtest.DB) (*pgxpool.Pool, error) {
		cfg, err := pgxpool.ParseConfig(db.URL)
		if err != nil {
			return nil, err
		}
		cfg.MaxConns, cfg.AfterRelease = 8, pgtest.DiscardAll
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		return pgxpool.NewWithConfig(t.Context(), cfg)
	},
}

func ownPool(mode pgx.QueryExecMode) func(*testing.T, *pgtest.DB) (*pgxpool.Pool, error) {
	return func(t *testing.T, db *pgtest.DB) (*pgxpool.Pool, error) {
		cfg, err := pgxpool.ParseConfig(db.PgBouncer(t))
		if err != nil {
			return nil, err
		}
		cfg.MaxConns, cfg.ConnConfig.DefaultQueryExecMode = pooledClients, mode
		return pgxpool.NewWithConfig(t.Context(), cfg)
	}
}

// TestCase31_TransactionPooler: fifty clients go through every verb, and two workers run jobs, over two connections
// that change hands after each transaction, while columns are added and the functions are put in place again. Every
// answer is right, and none is an error.
func TestCase31_TransactionPooler(t *testing.T) {
	t.Parallel()
	for name, open := range pooledBy {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			pool, err := open(t, db)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			l, err := ledger.New(pool, ledger.Config{Actor: "tester"})
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				start(t, l, brisk(), func(w *worker.Worker) {
					worker.Handle(w, "work", func(ctx context.Context, job worker.Job[int]) (int, error) {
						if job.Attempt == 1 && job.Args%3 == 0 {
							return 0, worker.Retry(errors.New("not yet"), time.Millisecond)
						}
						return 2 * job.Args, job.SetProgress(job.Args)
					})
				})
			}
			altered := make(chan struct{})
			go alter(t, db, altered)
			var clients sync.WaitGroup
			for n := range pooledClients {
				clients.Go(func() {
					c := client{t: t, l: l, pool: pool, name: fmt.Sprintf("client-%d", n)}
					for round, left := 0, 1; left > 0 && !t.Failed(); round++ {
						c.allVerbs(round)
						select {
						case <-altered:
							left--
						default:
						}
					}
				})
			}
			clients.Wait()
			verified(t, l, db)
			db.WaitTrue(t, "no lock of a session is left", `SELECT count(*) = 0 FROM pg_locks l JOIN pg_database d ON d.oid = l.database
				WHERE l.locktype = 'advisory' AND d.datname = current_database()`)
		})
	}
}

// TestCase31_PreparedStatements: the driver's default mode keeps statements in a session that is another one next time.
// The error says what to do.
func TestCase31_PreparedStatements(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool, err := ownPool(pgx.QueryExecModeCacheStatement)(t, db)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	l, err := ledger.New(pool, ledger.Config{})
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, pooledClients)
	for n := range pooledClients {
		go func() {
			var err error
			for range 20 {
				_, failed := l.Claim(t.Context(), ledger.ClaimParams{Worker: fmt.Sprintf("client-%d", n)})
				err = errors.Join(err, failed)
			}
			errs <- err
		}()
	}
	var all error
	for range pooledClients {
		all = errors.Join(all, <-errs)
	}
	if all == nil || !strings.Contains(all.Error(), "QueryExecModeCacheDescribe") {
		t.Errorf("got %v, want an error that names the mode to use", all)
	}
}

// alter changes the tables under the clients' feet and puts the functions in place again.
func alter(t *testing.T, db *pgtest.DB, altered chan<- struct{}) {
	defer close(altered)
	for _, text := range []string{
		`ALTER TABLE jobledger.job_queue ADD COLUMN later integer`,
		`ALTER TABLE jobledger.job_runtime ADD COLUMN later text DEFAULT 'x'`,
		`ALTER TABLE jobledger.job_completed ADD COLUMN later integer`,
		`ALTER TABLE jobledger.policy ADD COLUMN later integer`,
		`BEGIN; SET LOCAL search_path = jobledger, pg_temp; ` + ledger.Functions() + `; COMMIT`,
		`ALTER TABLE jobledger.job_queue DROP COLUMN later`,
	} {
		if _, err := db.Pool.Exec(t.Context(), text); err != nil {
			t.Errorf("%.40s: %v", text, err)
		}
	}
}

// client is one of many who use the ledger at once, each with a tag of its own.
type client struct {
	t    *testing.T
	l    *ledger.Ledger
	pool *pgxpool.Pool
	name string
}

// want notes an answer that is not the expected one.
func (c client) want(what string, ok bool, got ...any) {
	c.t.Helper()
	if !ok {
		c.t.Errorf("%s: %s: got %+v", c.name, what, got)
	}
}

// claim takes the client's next job.
func (c client) claim(want uuid.UUID) ledger.Held {
	c.t.Helper()
	claims, err := c.l.Claim(c.t.Context(), ledger.ClaimParams{Worker: c.name, Tags: []string{c.name}, Lease: time.Hour})
	c.want("claim", err == nil && len(claims.Jobs) == 1 && claims.Jobs[0].JobID == want, claims, err)
	if len(claims.Jobs) == 0 {
		return ledger.Held{JobID: want}
	}
	return claims.Jobs[0].Held
}

// allVerbs goes through every verb and every way to read.
func (c client) allVerbs(round int) {
	ctx, l := c.t.Context(), c.l
	key := fmt.Sprintf("%s-%d", c.name, round)
	p := ledger.EnqueueParams{Kind: "own", Tag: c.name, Args: map[string]int{"round": round}, Key: key, Labels: map[string]string{"client": c.name},
		Policy: domain.Policy{MaxAttempts: 1, Timeout: time.Hour + time.Duration(round)*time.Second}, Origin: domain.Origin{ParentID: uuid.UUID{1}}}
	first, err := l.Enqueue(ctx, p)
	c.want("enqueue", err == nil && !first.Replayed, first, err)
	again, err := l.Enqueue(ctx, p)
	c.want("enqueue again", err == nil && again.Replayed && again.JobID == first.JobID, again, err)

	held := c.claim(first.JobID)
	pings, err := l.Ping(ctx, ledger.PingParams{Worker: c.name, Lease: time.Hour, Pings: []ledger.Ping{{Held: held, Progress: round}}})
	c.want("ping", err == nil && len(pings) == 1 && pings[0].Event == domain.Pinged, pings, err)
	failed, err := l.Fail(ctx, c.name, ledger.Failure{Held: held, Class: domain.ClassTransient, Error: "it\nbroke"})
	c.want("fail", err == nil && failed.Event == domain.Failed, failed, err)
	redriven, err := l.Redrive(ctx, first.JobID, ledger.ByOperator{Reason: "once more"})
	c.want("redrive", err == nil && redriven.Event == domain.Redriven, redriven, err)
	held = c.claim(first.JobID)
	snoozed, err := l.Snooze(ctx, c.name, ledger.Snooze{Held: held, Reason: "later"})
	c.want("snooze", err == nil && len(snoozed) == 1 && snoozed[0].Event == domain.Snoozed, snoozed, err)
	held = c.claim(first.JobID)
	released, err := l.Release(ctx, c.name, held)
	c.want("release", err == nil && len(released) == 1 && released[0].Event == domain.Released, released, err)

	held = c.claim(first.JobID)
	var work []ledger.Enqueued
	err = pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) (err error) {
		if work, err = l.EnqueueTx(ctx, tx, ledger.EnqueueParams{Kind: "work", Args: round}, ledger.EnqueueParams{Kind: "own", Tag: c.name}); err != nil {
			return err
		}
		_, err = l.CompleteTx(ctx, tx, c.name, ledger.Completion{Held: held, Result: round})
		return err
	})
	c.want("complete in a transaction", err == nil && len(work) == 2, work, err)
	late, err := l.Complete(ctx, c.name, ledger.Completion{Held: held, Result: round + 1})
	c.want("complete late", errors.Is(err, domain.ErrEnded), late, err)
	canceled, err := l.Cancel(ctx, work[1].JobID, ledger.ByOperator{Reason: "enough"})
	c.want("cancel", err == nil && canceled.Outcome == domain.Canceled, canceled, err)
	reaped, err := l.Reap(ctx, ledger.ReapParams{Actor: c.name, Tags: []string{c.name}})
	c.want("reap", err == nil && len(reaped) == 0, reaped, err)
	c.want("extend events", l.ExtendEvents(ctx) == nil)
	c.want("worker seen", l.WorkerSeen(ctx, ledger.WorkerSeen{Worker: c.name, Host: "here", Tags: []string{c.name}, Kinds: []string{"own"}, State: ledger.Working}) == nil)
	c.want("worker gone", l.WorkerGone(ctx, c.name) == nil)
	c.reads(round, first.JobID, work[0].JobID)
}

// reads asks for what allVerbs has left.
func (c client) reads(round int, own, work uuid.UUID) {
	ctx, l := c.t.Context(), c.l
	job, err := l.Job(ctx, own)
	c.want("job", err == nil && job.Outcome == domain.Success && string(job.Result) == fmt.Sprint(round) && string(job.Progress) == fmt.Sprint(round) &&
		job.Policy.Timeout == time.Hour+time.Duration(round)*time.Second && job.Error == "it\nbroke", job, err)
	events, err := l.History(ctx, own)
	c.want("history", err == nil && len(events) == 12, len(events), err)
	jobs, err := l.Read().List(ctx, projections.Filter{Label: "client=" + c.name, Limit: 1000})
	c.want("list", err == nil && len(jobs) == round+1, len(jobs), err)
	_, err = l.Read().Workers(ctx)
	c.want("workers", err == nil, err)
	_, err = l.Read().Counts(ctx)
	c.want("counts", err == nil, err)
	job, err = l.Wait(ctx, work)
	c.want("wait", err == nil && job.Outcome == domain.Success && string(job.Result) == fmt.Sprint(2*round), job, err)
}
