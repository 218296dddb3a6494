package ledger_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/ledgertest"
)

// An idempotency key makes it safe to ask again when an answer was lost, or to ask from several places: the same
// key with the same args is the same job, and with other args it is refused.
func ExampleLedger_Enqueue_idempotencyKey() {
	ctx := context.Background()
	l := ledgertest.MustOpen()
	defer l.Close()

	pay := func(args string) (ledger.Enqueued, error) {
		return l.Enqueue(ctx, ledger.EnqueueParams{Kind: "pay", Args: args, Key: "order-17"})
	}
	first, err := pay(`{"order": 17, "amount": "9.95"}`)
	if err != nil {
		panic(err)
	}
	again, err := pay(`{"amount":"9.95","order":17}`) // the order of keys and white space don't matter
	if err != nil {
		panic(err)
	}
	fmt.Println("same job:", again.JobID == first.JobID, "replayed:", again.Replayed)

	_, err = pay(`{"order": 17, "amount": "99.50"}`)
	fmt.Println("refused:", errors.Is(err, domain.ErrKeyConflict))
	// Output:
	// same job: true replayed: true
	// refused: true
}
