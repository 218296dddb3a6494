package worker_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/ledgertest"
	"github.com/jobledger/jobledger/ledger/worker"
)

// A running job is asked to stop. Its handler hears of it by the end of its context, at the next ping; from the moment
// of the cancellation on, whatever it returns but success ends the job canceled.
func Example_cancel() {
	ctx := context.Background()
	l := ledgertest.MustOpen()
	defer l.Close()

	// Pinged more often than in production, for this example to be quick.
	w, err := worker.New(l.Ledger, worker.Config{PingEvery: 20 * time.Millisecond})
	if err != nil {
		panic(err)
	}
	running := make(chan uuid.UUID, 1)
	worker.Handle(w, "import", func(ctx context.Context, job worker.Job[struct{}]) (struct{}, error) {
		running <- job.ID
		<-ctx.Done() // as would be a query with this context, a request, a child process
		if errors.Is(context.Cause(ctx), worker.ErrCanceled) {
			fmt.Println("handler: cleaning up")
		}
		return struct{}{}, context.Cause(ctx)
	})
	job, err := l.Enqueue(ctx, ledger.EnqueueParams{Kind: "import"})
	if err != nil {
		panic(err)
	}

	answered := make(chan ledger.Answer, 1)
	go func() {
		answer, err := l.Cancel(ctx, <-running, ledger.ByOperator{Actor: "ann", Reason: "wrong file"})
		if err != nil {
			panic(err)
		}
		answered <- answer
	}()
	if _, err := w.RunOne(ctx); err != nil { // or w.Run
		panic(err)
	}
	fmt.Println("answer to the cancel:", (<-answered).Event)

	ended, err := l.Job(ctx, job.JobID)
	if err != nil {
		panic(err)
	}
	fmt.Printf("job: %s by %s, %s\n", ended.Outcome, ended.CanceledBy, ended.CancelReason)
	// Output:
	// handler: cleaning up
	// answer to the cancel: cancel_requested
	// job: canceled by ann, wrong file
}
