package ledgertest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/ledgertest"
	"github.com/jobledger/jobledger/ledger/worker"
)

// The application. Welcome is the args of its job.
type Welcome struct {
	User int `json:"user"`
}

// migrate makes the application's own tables.
func migrate(ctx context.Context, databaseURL string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "CREATE TABLE account (user_id bigint PRIMARY KEY)")
	return err
}

// signUp makes an account, and a job that welcomes the user an hour later.
func signUp(ctx context.Context, tx pgx.Tx, l *ledger.Ledger, user int) error {
	if _, err := tx.Exec(ctx, "INSERT INTO account (user_id) VALUES ($1)", user); err != nil {
		return err
	}
	_, err := l.EnqueueTx(ctx, tx, ledger.EnqueueParams{Kind: "welcome", Tag: "mail", Args: Welcome{user}, Delay: time.Hour})
	return err
}

// newMailWorker has the application's handlers.
func newMailWorker(l *ledger.Ledger, send func(user int) error) (*worker.Worker, error) {
	w, err := worker.New(l, worker.Config{Tags: []string{"mail"}})
	if err != nil {
		return nil, err
	}
	worker.Handle(w, "welcome", func(_ context.Context, job worker.Job[Welcome]) (struct{}, error) {
		return struct{}{}, send(job.Args.User)
	})
	return w, nil
}

// app is what all its tests share: the tables are made once in a process and copied for each test.
var app = ledgertest.Config{Template: ledgertest.NewTemplate(migrate)}

// A test of an application, from the sign-up to the mail, on a mail server that is down at first. It takes as long as
// its queries, not as long as its hour.
func Example() {
	// In a test: func TestSignUp(t *testing.T) { l := ledgertest.New(t, app)
	t := &testing.T{}
	l := ledgertest.MustOpen(app)
	defer l.Close()
	ctx := context.Background()
	l.SetClock(t, time.Date(2030, 1, 1, 9, 0, 0, 0, time.UTC))

	err := pgx.BeginFunc(ctx, l.Pool, func(tx pgx.Tx) error {
		if err := signUp(ctx, tx, l.Ledger, 17); err != nil {
			return err
		}
		// What this transaction has enqueued, before it commits; nobody else can see it.
		l.In(tx).RequireEnqueued(t, ledgertest.Want{Kind: "welcome", Args: Welcome{User: 17}, Delay: time.Hour})
		l.RequireNotEnqueued(t, ledgertest.Want{Kind: "welcome"})
		return nil
	})
	if err != nil {
		panic(err) // t.Fatal(err)
	}

	mails := 0
	w, err := newMailWorker(l.Ledger, func(int) error {
		if mails++; mails == 1 {
			return errors.New("mail server is down")
		}
		return nil
	})
	if err != nil {
		panic(err)
	}
	fmt.Println("due now:", len(l.RunDue(t, w)))

	l.Advance(t, time.Hour)
	run := l.RunOne(t, w)
	fmt.Println("after an hour:", run.Event, run.Err)

	for _, run := range l.RunAll(t, w) { // moves the clock to the retry
		fmt.Println("in the end:", run.Event, "in attempt", run.Attempt)
	}
	l.RequireEnqueued(t, ledgertest.Want{Kind: "welcome", Outcome: domain.Success})
	// Output:
	// due now: 0
	// after an hour: retried mail server is down
	// in the end: completed in attempt 2
}
