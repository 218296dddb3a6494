package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobledger/jobledger/domain"
)

// The bounds within which a verb is sent again; see the package comment. Outages that last longer are
// the caller's: a worker goes on for as long as its leases live.
const (
	maxSendings  = 7
	sendingsFor  = 10 * time.Second // no sending begins later than that after the first
	pauseFirst   = 20 * time.Millisecond
	pauseLongest = time.Second
	pauseFactor  = 2.5 // six pauses are 2.3 s together, give or take a half each
)

// request is one call of an SQL function.
type request struct {
	verb domain.Verb
	name string // of the statement
	args []any
	// again are the arguments of a sending behind one that may have been carried out, where they differ.
	again []any
	// once: such a sending is not made at all.
	once bool
	// harmless: it makes no difference whether it was carried out without anybody knowing.
	harmless bool
	jobs     []uuid.UUID // of the call, for an UnknownOutcomeError
	unsafe   bool        // the caller must not repeat the call as it is
	read     func(rows) error

	maybe bool // a sending may have been carried out without its answer getting here
}

// fate is what has become of a statement.
type fate int

const (
	settled fate = iota // answered, for good
	undone              // not carried out; another try may succeed
	unknown             // may have been carried out
)

// do makes a call. Outside a caller's transaction what others or the connection have spoilt is sent again.
func (l *Ledger) do(ctx context.Context, q querier, r *request) error {
	pauses, begin := newPauses(), time.Now()
	for n := 1; ; n++ {
		args := r.args
		if r.maybe && r.again != nil {
			args = r.again
		}
		sent, err := l.send(ctx, q, l.stmts[r.name], args, r.read)
		if err == nil {
			return nil
		}
		err = fromPostgres(err)
		switch q.(type) {
		case ownTx:
			return r.failed(err)
		case pgxQuerier, sqlQuerier:
			return r.inTx(err)
		}
		if isCode(err, pgerrcode.SerializationFailure) {
			l.explicit.Store(true) // there is none under READ COMMITTED
		}
		f := r.fateOf(err, sent)
		r.maybe = r.maybe || f == unknown
		if f == settled || f == unknown && r.once || n == maxSendings || time.Since(begin) > sendingsFor {
			return r.failed(err)
		}
		if gone := pause(ctx, pauses.NextBackOff()); gone != nil {
			if !errors.Is(err, gone) {
				err = fmt.Errorf("%w (%w)", err, gone)
			}
			return r.failed(err)
		}
	}
}

// failed is the error of a call that is given up. Bad input has no unknown outcome: whichever sending
// came first was refused, too.
func (r *request) failed(err error) error {
	var field *domain.FieldError
	if !r.maybe || r.harmless || errors.As(err, &field) {
		return fmt.Errorf("%s: %w", r.verb, err)
	}
	return &domain.UnknownOutcomeError{Verb: r.verb, JobIDs: r.jobs, Repeatable: !r.unsafe, Err: err}
}

// inTx is the error of a call in a caller's transaction: what would be sent again outside is of no use
// there, for the transaction is lost with it.
func (r *request) inTx(err error) error {
	if Retryable(err) {
		return fmt.Errorf("%s: %w: %w", r.verb, domain.ErrRunAgain, err)
	}
	return fmt.Errorf("%s: %w", r.verb, err)
}

func (r *request) fateOf(err error, sent bool) fate {
	if r.maybe && r.again != nil && isCode(err, pgerrcode.UniqueViolation) {
		return undone // the first sending has committed just now: the next one finds what it stored
	}
	return fateOf(err, sent)
}

// send makes one sending and reads its rows. sent is false if it did not come to it for want of a connection.
func (l *Ledger) send(ctx context.Context, q querier, text string, args []any, read func(rows) error) (sent bool, err error) {
	p, ok := q.(poolQuerier)
	if !ok {
		return true, readAll(ctx, q, text, args, read)
	}
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	if !l.explicit.Load() {
		return true, readAll(ctx, pgxQuerier{conn}, text, args, read)
	}
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{BeginQuery: beginOwn}, func(tx pgx.Tx) error {
		sent = true
		return readAll(ctx, pgxQuerier{tx}, text, args, read)
	})
	return sent, err
}

// readAll runs a statement and reads its rows.
func readAll(ctx context.Context, q querier, text string, args []any, read func(rows) error) error {
	r, err := q.query(ctx, text, args...)
	if err != nil {
		return err
	}
	defer closeRows(r)
	if err := read(r); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	return r.Err()
}

func fateOf(err error, sent bool) fate {
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && slices.Contains(undoneCodes, pg.Code):
		return undone
	case errors.As(err, &pg) && slices.Contains(lostCodes, pg.Code) && sent:
		return unknown
	case errors.As(err, &pg) && slices.Contains(lostCodes, pg.Code):
		return undone
	case errors.As(err, &pg):
		return settled
	case pgconn.SafeToRetry(err):
		return undone
	case !isConnectionError(err) && !pgconn.Timeout(err) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled):
		return settled
	case sent:
		return unknown
	}
	return undone
}

// undoneCodes say that others, or the state of the server, kept a statement from being carried out.
var undoneCodes = []string{
	pgerrcode.SerializationFailure, pgerrcode.DeadlockDetected, pgerrcode.LockNotAvailable, pgerrcode.ReadOnlySQLTransaction,
	pgerrcode.TooManyConnections, pgerrcode.InsufficientResources, pgerrcode.DiskFull, pgerrcode.OutOfMemory, pgerrcode.CannotConnectNow,
}

// lostCodes say that the session ended. It may have done so between the commit and its answer.
var lostCodes = []string{
	pgerrcode.AdminShutdown, pgerrcode.CrashShutdown, pgerrcode.IdleSessionTimeout, pgerrcode.IdleInTransactionSessionTimeout,
	pgerrcode.ConnectionException, pgerrcode.ConnectionDoesNotExist, pgerrcode.ConnectionFailure,
	pgerrcode.SQLClientUnableToEstablishSQLConnection, pgerrcode.TransactionResolutionUnknown,
}

// Retryable reports whether the same call may be made again as it is, later or on another connection: the
// database refused it because of others (serialization failure, deadlock, lock time-out, a canceled
// statement), was read-only, full or not reachable, or the connection broke. The verbs have tried
// again already; see the package comment. In a caller's transaction (domain.ErrRunAgain) it is the
// transaction that is to be run again. Of an *domain.UnknownOutcomeError it reports Repeatable.
func Retryable(err error) bool {
	var unknownOutcome *domain.UnknownOutcomeError
	var refused *domain.RefusedError
	var field *domain.FieldError
	switch {
	case errors.As(err, &unknownOutcome):
		return unknownOutcome.Repeatable
	case errors.Is(err, domain.ErrContended) || errors.Is(err, domain.ErrKeyBusy):
		return true
	case errors.As(err, &refused) || errors.As(err, &field) || errors.Is(err, context.Canceled):
		return false
	}
	return fateOf(err, true) != settled || isCode(err, pgerrcode.QueryCanceled)
}

func isCode(err error, code string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == code
}

// isConnectionError: the connection broke or could not be made.
func isConnectionError(err error) bool {
	var op net.Error
	var connect *pgconn.ConnectError
	return errors.As(err, &op) || errors.As(err, &connect) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

func newPauses() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.Multiplier, b.MaxInterval = pauseFirst, pauseFactor, pauseLongest
	b.Reset()
	return b
}

// pause waits for d and returns why ctx ended if it did so first.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
