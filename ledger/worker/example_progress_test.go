package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/ledgertest"
	"github.com/jobledger/jobledger/ledger/worker"
)

// Progress is for people who look at the job, and for its next attempt, which starts where the last one got to.
func ExampleInfo_SetProgress() {
	ctx := context.Background()
	l := ledgertest.MustOpen()
	defer l.Close()

	w, err := worker.New(l.Ledger, worker.Config{})
	if err != nil {
		panic(err)
	}
	worker.Handle(w, "import", func(_ context.Context, job worker.Job[struct{}]) (struct{}, error) {
		row := 0
		if job.LastProgress != nil {
			if err := json.Unmarshal(job.LastProgress, &row); err != nil {
				return struct{}{}, err
			}
		}
		fmt.Println("attempt", job.Attempt, "starts at row", row)
		for ; row < 500; row += 100 {
			if row == 300 && job.Attempt == 1 {
				return struct{}{}, worker.Retry(errors.New("connection reset"), 0)
			}
			if err := job.SetProgress(row + 100); err != nil { // rows that need not be imported again
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	})
	job, err := l.Enqueue(ctx, ledger.EnqueueParams{Kind: "import"})
	if err != nil {
		panic(err)
	}
	if _, err := w.RunOne(ctx); err != nil { // or w.Run
		panic(err)
	}
	now, err := l.Job(ctx, job.JobID)
	if err != nil {
		panic(err)
	}
	fmt.Println("the job is", now.State, "at row", string(now.Progress))
	if _, err := w.RunOne(ctx); err != nil {
		panic(err)
	}
	// Output:
	// attempt 1 starts at row 0
	// the job is waiting at row 300
	// attempt 2 starts at row 300
}
