package worker_test

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/ledgertest"
	"github.com/jobledger/jobledger/ledger/worker"
)

// Welcome is the args of a job.
type Welcome struct {
	User int `json:"user"`
}

// Sent is its result.
type Sent struct {
	Mail string `json:"mail"`
}

// The whole of it: a job that is enqueued in the application's own transaction, and a worker that runs it until the
// process is asked to stop, here by the handler itself.
func Example() {
	database := ledgertest.MustOpen() // for this example; yours: os.Getenv("DATABASE_URL")
	defer database.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	fmt.Println("stopped:", serve(ctx, database.URL))
	// Output:
	// mail to 17
	// stopped: <nil>
}

func serve(ctx context.Context, databaseURL string) error {
	// Once per release; `jobledger migrate up` does the same.
	if err := postgres.MigrateUp(ctx, databaseURL, ledger.DefaultSchema); err != nil {
		return err
	}
	pool, err := postgres.OpenPool(ctx, postgres.PoolConfig{URL: databaseURL})
	if err != nil {
		return err
	}
	defer pool.Close()
	l, err := ledger.New(pool, ledger.Config{})
	if err != nil {
		return err
	}

	// The job exists if and only if the transaction commits. EnqueueSQLTx takes a *sql.Tx.
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "CREATE TABLE account AS SELECT 17 AS user_id"); err != nil {
			return err
		}
		_, err := l.EnqueueTx(ctx, tx, ledger.EnqueueParams{Kind: "welcome", Args: Welcome{User: 17}, Key: "welcome-17"})
		return err
	})
	if err != nil {
		return err
	}

	w, err := worker.New(l, worker.Config{Concurrency: 20})
	if err != nil {
		return err
	}
	worker.Handle(w, "welcome", func(ctx context.Context, job worker.Job[Welcome]) (Sent, error) {
		// ctx ends on cancel, lost lease, time-out and stop. The job's id is the same on every attempt.
		mail, err := send(ctx, job.Args.User, job.ID.String())
		if errors.Is(err, errNoAddress) {
			return Sent{}, worker.Permanent(err) // a dead letter at once; other errors are retried
		}
		return Sent{Mail: mail}, err
	})
	return w.Run(ctx) // after the signal: no new claims, and handlers have Config.StopTimeout to end
}

var errNoAddress = errors.New("user has no address")

// send sends a mail once for each key, and asks this very process to stop, as a supervisor would.
func send(_ context.Context, user int, _ string) (string, error) {
	fmt.Println("mail to", user)
	return "welcome", syscall.Kill(syscall.Getpid(), syscall.SIGTERM)
}
