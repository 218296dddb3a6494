package worker_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/ledgertest"
	"github.com/jobledger/jobledger/ledger/worker"
)

// What a handler returns decides what becomes of its job.
func ExampleHandle_errors() {
	ctx := context.Background()
	l := ledgertest.MustOpen()
	defer l.Close()

	w, err := worker.New(l.Ledger, worker.Config{})
	if err != nil {
		panic(err)
	}
	worker.Handle(w, "pay", func(_ context.Context, job worker.Job[string]) (string, error) {
		switch job.Args {
		case "flaky":
			return "", errors.New("connection reset") // retried, after the delay of the job's policy
		case "limited":
			return "", worker.Retry(errors.New("429"), time.Hour) // retried, after the delay that the bank has asked for
		case "declined":
			return "", worker.Permanent(errors.New("card was declined")) // a dead letter: trying again is pointless
		case "closed":
			return "", worker.Snooze(8*time.Hour, "bank is closed") // put off, no attempt spent
		case "buggy":
			panic("index out of range") // retried, with the stack as its error text
		}
		return "receipt", nil
	})
	for _, args := range []string{"fine", "flaky", "limited", "declined", "closed", "buggy", "no JSON string"} {
		p := ledger.EnqueueParams{Kind: "pay", Args: fmt.Sprintf("%q", args)}
		if args == "no JSON string" {
			p.Args = `{"not": "a string"}`
		}
		enqueued, err := l.Enqueue(ctx, p)
		if err != nil {
			panic(err)
		}
		if _, err := w.RunOne(ctx); err != nil { // or w.Run
			panic(err)
		}
		job, err := l.Job(ctx, enqueued.JobID)
		if err != nil {
			panic(err)
		}
		fmt.Println(args+":", job.State, job.Outcome, job.Reason, "attempt", job.Attempt)
	}
	// Output:
	// fine: ended success  attempt 1
	// flaky: waiting   attempt 1
	// limited: waiting   attempt 1
	// declined: ended failure permanent attempt 1
	// closed: waiting   attempt 0
	// buggy: waiting   attempt 1
	// no JSON string: ended failure invalid_input attempt 1
}
