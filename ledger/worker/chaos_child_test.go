package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

// chaosKinds are the kinds of jobs of TestChaos: a short and a long run that the worker reports, both
// deaf to their context, and one that completes in its own transaction with what it writes there.
var chaosKinds = []string{"short", "long", "tx"}

// chaosMain is a worker process of TestChaos. It runs until SIGTERM and says on standard output what
// it knows, one line each, written at once:
//
//	run ID GENERATION       a handler begins
//	committed ID GENERATION a handler's own transaction has committed
//	stats REPEATED          at a graceful end
func chaosMain(c childConfig) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pool, err := postgres.OpenPool(ctx, postgres.PoolConfig{URL: c.URL, MaxConns: 6})
	if err != nil {
		return complain(err)
	}
	defer pool.Close()
	l, err := ledger.New(pool, ledger.Config{})
	if err != nil {
		return complain(err)
	}
	cfg := brisk()
	cfg.Name, cfg.Lease, cfg.Concurrency, cfg.Logger = c.Name, c.Lease, 8, slog.New(slog.DiscardHandler)
	w, err := worker.New(l, cfg)
	if err != nil {
		return complain(err)
	}
	var out sync.Mutex
	say := func(words ...any) {
		out.Lock()
		defer out.Unlock()
		fmt.Println(words...)
	}
	busy := func(job worker.Info, most time.Duration) {
		say("run", job.ID, job.Generation)
		timer := time.NewTimer(rand.N(most))
		<-timer.C
	}
	worker.Handle(w, "short", func(_ context.Context, job worker.Job[chaosArgs]) (chaosArgs, error) {
		busy(job.Info, 5*time.Millisecond)
		return job.Args, nil
	})
	worker.Handle(w, "long", func(_ context.Context, job worker.Job[chaosArgs]) (chaosArgs, error) {
		busy(job.Info, 200*time.Millisecond)
		return job.Args, nil
	})
	worker.Handle(w, "tx", func(ctx context.Context, job worker.Job[chaosArgs]) (struct{}, error) {
		busy(job.Info, 5*time.Millisecond)
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO effect (job_id, generation) VALUES ($1, $2)`, job.ID, job.Generation); err != nil {
				return err
			}
			return job.CompleteTx(ctx, tx, job.Args)
		})
		if err == nil {
			say("committed", job.ID, job.Generation)
		}
		return struct{}{}, err
	})
	err = w.Run(ctx)
	say("stats", w.Stats().Repeated)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// chaosArgs number the jobs of TestChaos as their sender does.
type chaosArgs struct {
	N int `json:"n"`
}
