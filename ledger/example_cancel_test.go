package ledger_test

import (
	"context"
	"fmt"

	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/ledgertest"
)

// A waiting job ends at once when it is canceled, and redriving gives it a new life. What a running one is told is in
// the examples of package worker.
func ExampleLedger_Cancel() {
	ctx := context.Background()
	l := ledgertest.MustOpen()
	defer l.Close()

	job, err := l.Enqueue(ctx, ledger.EnqueueParams{Kind: "import"})
	if err != nil {
		panic(err)
	}
	canceled, err := l.Cancel(ctx, job.JobID, ledger.ByOperator{Actor: "ann", Reason: "wrong file"})
	if err != nil {
		panic(err)
	}
	fmt.Println(canceled.Event, canceled.Outcome)

	_, err = l.Redrive(ctx, job.JobID, ledger.ByOperator{Actor: "ann", Reason: "it was the right one"})
	if err != nil {
		panic(err)
	}
	events, err := l.History(ctx, job.JobID)
	if err != nil {
		panic(err)
	}
	for _, e := range events {
		fmt.Printf("%d %s %q\n", e.Version, e.Type, e.Reason)
	}
	// Output:
	// canceled canceled
	// 1 enqueued ""
	// 2 canceled "wrong file"
	// 3 redriven "it was the right one"
}
