package ledger_test

import (
	"context"
	"fmt"

	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/ledgertest"
	"github.com/jobledger/jobledger/ledger/worker"
)

// Greeting is the args of a job.
type Greeting struct {
	Name string `json:"name"`
}

// Quick start: a job, the worker that runs it, and its result.
func Example() {
	ctx := context.Background()
	// A ledger for this example. An application calls postgres.MigrateUp once per release, then postgres.OpenPool
	// and ledger.New: see the example of package worker.
	l := ledgertest.MustOpen()
	defer l.Close()

	w, err := worker.New(l.Ledger, worker.Config{Drain: true}) // Run returns once nothing is left
	if err != nil {
		panic(err)
	}
	worker.Handle(w, "greet", func(_ context.Context, job worker.Job[Greeting]) (string, error) {
		return "Hello, " + job.Args.Name, nil
	})

	enqueued, err := l.Enqueue(ctx, ledger.EnqueueParams{Kind: "greet", Args: Greeting{Name: "Ada"}})
	if err != nil {
		panic(err)
	}
	if err := w.Run(ctx); err != nil {
		panic(err)
	}
	job, err := l.Wait(ctx, enqueued.JobID)
	if err != nil {
		panic(err)
	}
	fmt.Println(job.Outcome, string(job.Result))
	// Output: success "Hello, Ada"
}
