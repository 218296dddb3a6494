package worker_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/ledgertest"
	"github.com/jobledger/jobledger/ledger/worker"
)

// Report is the args of an hourly job: the hour that it is about.
type Report struct {
	Hour time.Time `json:"hour"`
}

// A job for every hour: each run enqueues the next one in the transaction in which it completes, so that the chain
// neither breaks nor forks. The key is the hour's own, so that every replica may start the chain, at every start.
func Example_everyHour() {
	ctx := context.Background()
	l := ledgertest.MustOpen()
	defer l.Close()

	enqueue := func(tx pgx.Tx, hour time.Time) error {
		_, err := l.EnqueueTx(ctx, tx, ledger.EnqueueParams{
			Kind: "report", Args: Report{hour}, ScheduledFor: hour, Key: "report/" + hour.Format(time.RFC3339),
		})
		return err
	}
	w, err := worker.New(l.Ledger, worker.Config{})
	if err != nil {
		panic(err)
	}
	worker.Handle(w, "report", func(ctx context.Context, job worker.Job[Report]) (struct{}, error) {
		return struct{}{}, pgx.BeginFunc(ctx, l.Pool, func(tx pgx.Tx) error {
			fmt.Println("report of", job.Args.Hour.Format(time.Kitchen)) // what it writes to tx is part of it too
			if err := enqueue(tx, job.Args.Hour.Add(time.Hour)); err != nil {
				return err
			}
			return job.CompleteTx(ctx, tx, nil)
		})
	})

	// Two replicas start, and four hours pass: in an application by w.Run, here by the clock of the test kit.
	t := &testing.T{}
	first := time.Date(2030, 1, 1, 9, 0, 0, 0, time.UTC)
	l.SetClock(t, first)
	for range 2 {
		if err := pgx.BeginFunc(ctx, l.Pool, func(tx pgx.Tx) error { return enqueue(tx, first) }); err != nil {
			panic(err)
		}
	}
	runs := l.RunFor(t, 3*time.Hour, w)
	fmt.Println(len(runs), "runs")
	// Output:
	// report of 9:00AM
	// report of 10:00AM
	// report of 11:00AM
	// report of 12:00PM
	// 4 runs
}
