package ledger

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/domain"
)

// Completion is a run that succeeded.
type Completion struct {
	Held
	// Result is kept with the job: JSON text (json.RawMessage, []byte, string) or a value that
	// marshals to it, at most 1 MiB; nil for none. What cannot be stored as it is (NUL, invalid UTF-8,
	// lone surrogates, no JSON, too large) is stored with substitutes and a flag: a job always reaches
	// its end. Altered sets the flag for what the caller has changed itself.
	Result any
}

// Complete ends one run with success. Sent again after its answer was lost, it returns the first
// answer with Repeated set and appends nothing.
func (l *Ledger) Complete(ctx context.Context, worker string, c Completion) (Answer, error) {
	return one(l.complete(ctx, poolQuerier{l.pool}, worker, []Completion{c}))
}

// CompleteMany ends many runs of one worker in one statement. Answers come in the order of cs; each
// run is ended or refused on its own.
func (l *Ledger) CompleteMany(ctx context.Context, worker string, cs []Completion) ([]Answer, error) {
	return l.complete(ctx, poolQuerier{l.pool}, worker, cs)
}

// CompleteTx ends a run inside the caller's transaction: what the caller wrote there and the
// completion are one commit. Refused, it leaves the transaction usable; roll it back. Under
// REPEATABLE READ it fails with SQLSTATE 40001 once the job has been pinged since the transaction
// began: run the whole transaction again. Commit soon: when the transaction is idle at the end of the
// lease, Postgres ends its session (idle_in_transaction_session_timeout), or a frozen process would
// keep the job from everybody.
//
// Whatever else spoils the transaction through no fault of its own is ErrRunAgain, too. If the answer to the
// COMMIT is lost, run it again: Repeated says that it was committed, with all that was written beside
// it, so roll back.
func (l *Ledger) CompleteTx(ctx context.Context, tx pgx.Tx, worker string, c Completion) (Answer, error) {
	return one(l.complete(ctx, pgxQuerier{tx}, worker, []Completion{c}))
}

// CompleteSQLTx is CompleteTx for a *sql.Tx opened through pgx's stdlib driver.
func (l *Ledger) CompleteSQLTx(ctx context.Context, tx *sql.Tx, worker string, c Completion) (Answer, error) {
	return one(l.complete(ctx, sqlQuerier{tx}, worker, []Completion{c}))
}

func (l *Ledger) complete(ctx context.Context, q querier, worker string, cs []Completion) ([]Answer, error) {
	if len(cs) == 0 {
		return nil, nil
	}
	held := make([]Held, len(cs))
	results, altered, salts := make([]*string, len(cs)), make([]bool, len(cs)), newSalts(len(cs))
	for i, c := range cs {
		held[i] = c.Held
		results[i], altered[i] = outputJSON(c.Result, domain.MaxArgsBytes)
	}
	if err := checkHeld(worker, held); err != nil {
		return nil, fmt.Errorf("complete: %w", err)
	}
	jobs, generations := split(held)
	return l.call(ctx, q, domain.VerbComplete, held, len(held), worker, jobs, generations, results, salts, noneAsNil(altered))
}
