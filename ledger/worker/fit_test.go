package worker_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

// TestRunRefusesAMisfit: a worker does not begin on a ledger that it cannot work with, and says what is the matter.
func TestRunRefusesAMisfit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql  string
		want error
	}{
		"missing": {`DROP SCHEMA jobledger CASCADE`, domain.ErrNoLedger},
		"older":   {`UPDATE jobledger.function_version SET version = version - 1`, domain.ErrLedgerOlder},
		"newer":   {`UPDATE jobledger.function_version SET version = version + 2`, domain.ErrLedgerNewer},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			if _, err := db.Pool.Exec(t.Context(), c.sql); err != nil {
				t.Fatal(err)
			}
			l, err := ledger.New(db.Pool, ledger.Config{})
			if err != nil {
				t.Fatal(err)
			}
			w, err := worker.New(l, worker.Config{})
			if err != nil {
				t.Fatal(err)
			}
			worker.Handle(w, "any", func(context.Context, worker.Job[int]) (int, error) { return 0, nil })
			if err := w.Run(t.Context()); !errors.Is(err, c.want) {
				t.Errorf("run returned %v, want %v", err, c.want)
			}
		})
	}
}
