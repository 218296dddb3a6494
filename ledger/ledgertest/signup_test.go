package ledgertest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger/ledgertest"
)

// TestSignUp is what the documentation shows, on the application of the example: a mail server that is down at first.
func TestSignUp(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, app)
	tx, err := l.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := signUp(t.Context(), tx, l.Ledger, 17); err != nil {
		t.Fatal(err)
	}
	l.In(tx).RequireEnqueued(t, ledgertest.Want{Kind: "welcome", Args: Welcome{User: 17}})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}

	errDown := errors.New("mail server is down")
	mails := 0
	w, err := newMailWorker(l.Ledger, func(int) error {
		if mails++; mails == 1 {
			return errDown
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	l.Advance(t, time.Hour)
	if run := l.RunOne(t, w); run.Event != domain.Retried || !errors.Is(run.Err, errDown) {
		t.Errorf("the first run was %s with %v", run.Event, run.Err)
	}
	if runs := l.RunAll(t, w); len(runs) != 1 || runs[0].Event != domain.Completed {
		t.Errorf("then ran %+v", runs)
	}
}
