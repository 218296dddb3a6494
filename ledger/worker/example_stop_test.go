package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os/signal"
	"syscall"
	"time"

	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/ledgertest"
	"github.com/jobledger/jobledger/ledger/worker"
)

// Page is the progress of a job.
type Page struct {
	Next int `json:"next"`
}

// A graceful stop by a signal in the middle of a job: the handler is told to stop, its job is released without
// spending an attempt, and the next worker goes on where it left off.
func Example_gracefulStop() {
	ctx := context.Background()
	l := ledgertest.MustOpen()
	defer l.Close()

	newWorker := func() *worker.Worker {
		// StopTimeout is how long handlers may go on after the signal before their context ends; by default 20 s.
		w, err := worker.New(l.Ledger, worker.Config{StopTimeout: time.Millisecond, Drain: true})
		if err != nil {
			panic(err)
		}
		worker.Handle(w, "print", func(ctx context.Context, job worker.Job[struct{}]) (struct{}, error) {
			page := Page{Next: 1}
			if job.LastProgress != nil {
				if err := json.Unmarshal(job.LastProgress, &page); err != nil {
					return struct{}{}, err
				}
			}
			for ; page.Next <= 3; page.Next++ {
				fmt.Println("page", page.Next, "in attempt", job.Attempt)
				if page.Next == 2 && job.Generation == 1 {
					_ = syscall.Kill(syscall.Getpid(), syscall.SIGTERM) // for this example: the supervisor's signal
					<-ctx.Done()
				}
				if err := job.SetProgress(Page{Next: page.Next + 1}); err != nil {
					return struct{}{}, err
				}
				if ctx.Err() != nil {
					fmt.Println("told to stop:", context.Cause(ctx))
					return struct{}{}, context.Cause(ctx)
				}
			}
			return struct{}{}, nil
		})
		return w
	}

	if _, err := l.Enqueue(ctx, ledger.EnqueueParams{Kind: "print"}); err != nil {
		panic(err)
	}
	untilSignal, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	fmt.Println("stopped:", newWorker().Run(untilSignal))
	fmt.Println("next release:", newWorker().Run(ctx))
	// Output:
	// page 1 in attempt 1
	// page 2 in attempt 1
	// told to stop: worker is stopping
	// stopped: <nil>
	// page 3 in attempt 1
	// next release: <nil>
}
