package ledger_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// callerTx is a transaction of an application that enqueues and completes beside its own writes.
type callerTx interface {
	enqueue(l *ledger.Ledger, jobs ...ledger.EnqueueParams) ([]ledger.Enqueued, error)
	complete(l *ledger.Ledger, worker string, c ledger.Completion) (ledger.Answer, error)
	exec(text string, args ...any) error
	commit() error
	rollback() error
}

type pgxCaller struct {
	ctx context.Context
	tx  pgx.Tx
}

func (c pgxCaller) enqueue(l *ledger.Ledger, jobs ...ledger.EnqueueParams) ([]ledger.Enqueued, error) {
	return l.EnqueueTx(c.ctx, c.tx, jobs...)
}

func (c pgxCaller) complete(l *ledger.Ledger, worker string, end ledger.Completion) (ledger.Answer, error) {
	return l.CompleteTx(c.ctx, c.tx, worker, end)
}

func (c pgxCaller) exec(text string, args ...any) error {
	_, err := c.tx.Exec(c.ctx, text, args...)
	return err
}

func (c pgxCaller) commit() error   { return c.tx.Commit(c.ctx) }
func (c pgxCaller) rollback() error { return c.tx.Rollback(c.ctx) }

type sqlCaller struct {
	ctx context.Context
	tx  *sql.Tx
}

func (c sqlCaller) enqueue(l *ledger.Ledger, jobs ...ledger.EnqueueParams) ([]ledger.Enqueued, error) {
	return l.EnqueueSQLTx(c.ctx, c.tx, jobs...)
}

func (c sqlCaller) complete(l *ledger.Ledger, worker string, end ledger.Completion) (ledger.Answer, error) {
	return l.CompleteSQLTx(c.ctx, c.tx, worker, end)
}

func (c sqlCaller) exec(text string, args ...any) error {
	_, err := c.tx.ExecContext(c.ctx, text, args...)
	return err
}

func (c sqlCaller) commit() error   { return c.tx.Commit() }
func (c sqlCaller) rollback() error { return c.tx.Rollback() }

// txKinds are the ways in which an application opens its transaction.
var txKinds = []struct {
	name  string
	begin func(t *testing.T, db *pgtest.DB, isolation sql.IsolationLevel) callerTx
}{
	{"pgx", func(t *testing.T, db *pgtest.DB, isolation sql.IsolationLevel) callerTx {
		level := map[sql.IsolationLevel]pgx.TxIsoLevel{sql.LevelRepeatableRead: pgx.RepeatableRead, sql.LevelSerializable: pgx.Serializable}[isolation]
		return pgxCaller{t.Context(), must(db.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level}))(t)}
	}},
	{"sql_from_pool", func(t *testing.T, db *pgtest.DB, isolation sql.IsolationLevel) callerTx {
		return beginSQL(t, stdlib.OpenDBFromPool(db.Pool), isolation)
	}},
	{"sql_open", func(t *testing.T, db *pgtest.DB, isolation sql.IsolationLevel) callerTx {
		return beginSQL(t, must(sql.Open("pgx", db.URL))(t), isolation)
	}},
}

func beginSQL(t *testing.T, db *sql.DB, isolation sql.IsolationLevel) callerTx {
	t.Helper()
	t.Cleanup(func() { must(0, db.Close())(t) })
	return sqlCaller{t.Context(), must(db.BeginTx(t.Context(), &sql.TxOptions{Isolation: isolation}))(t)}
}

// eachTx runs a test with each kind of transaction, on a ledger of its own with the table note for the
// application's own writes.
func eachTx(t *testing.T, f func(t *testing.T, l *ledger.Ledger, db *pgtest.DB, begin func(sql.IsolationLevel) callerTx)) {
	t.Helper()
	for _, kind := range txKinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			l, db := newLedger(t)
			must(db.Pool.Exec(t.Context(), `CREATE TABLE note (job_id uuid)`))(t)
			f(t, l, db, func(isolation sql.IsolationLevel) callerTx { return kind.begin(t, db, isolation) })
			verified(t, l, db)
		})
	}
}

const insertNote = `INSERT INTO note VALUES ($1)`

// noted says whether the application's own write about a job is there.
func noted(t *testing.T, db *pgtest.DB, job uuid.UUID) (ok bool) {
	t.Helper()
	must(0, db.Pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM note WHERE job_id = $1)`, job).Scan(&ok))(t)
	return ok
}

// TestTxCommit: what the application wrote, the job and the completion are there together.
func TestTxCommit(t *testing.T) {
	t.Parallel()
	eachTx(t, func(t *testing.T, l *ledger.Ledger, db *pgtest.DB, begin func(sql.IsolationLevel) callerTx) {
		tx := begin(sql.LevelDefault)
		jobs := must(tx.enqueue(l, fullJob(), ledger.EnqueueParams{Kind: "second", Tag: "other"}))(t)
		must(0, tx.exec(insertNote, jobs[0].JobID))(t)
		if _, err := l.Job(t.Context(), jobs[0].JobID); !errors.Is(err, domain.ErrNotFound) {
			t.Errorf("the job is visible before the commit: %v", err)
		}
		must(0, tx.commit())(t)
		job := must(l.Job(t.Context(), jobs[0].JobID))(t)
		want := fullJob()
		if string(job.Args) != want.Args || job.Tag != want.Tag || job.Priority != want.Priority || job.Policy.MaxAttempts != 7 ||
			job.Policy.StallAfter != time.Minute || !noted(t, db, job.ID) {
			t.Errorf("stored is %+v, want %+v", job, want)
		}
		if e := must(l.History(t.Context(), job.ID))(t)[0]; e.Origin != want.Origin {
			t.Errorf("stored is origin %+v, want %+v", e.Origin, want.Origin)
		}

		held := claimOne(t, l, "w", "full", time.Minute)
		tx = begin(sql.LevelDefault)
		a := must(tx.complete(l, "w", ledger.Completion{Held: held, Result: `"ok"`}))(t)
		if a.Event != domain.Completed || a.Outcome != domain.Success || a.Version != 3 || a.At.IsZero() {
			t.Errorf("answered with %+v", a)
		}
		must(0, tx.commit())(t)
		if job := must(l.Job(t.Context(), held.JobID))(t); job.State != domain.Ended || string(job.Result) != `"ok"` {
			t.Errorf("the job is %s with result %s", job.State, job.Result)
		}
	})
}

// fullJob has every field that travels as an array of its own.
func fullJob() ledger.EnqueueParams {
	return ledger.EnqueueParams{Kind: "full", Args: `{"n": 1.10}`, Tag: "full", Priority: -3, Key: "full", KeyTTL: time.Hour,
		Delay: 0, Policy: domain.Policy{MaxAttempts: 7, StallAfter: time.Minute}, Labels: map[string]string{"team": "x"},
		CorrelationID: "c", Traceparent: "t",
		Origin: domain.Origin{TriggerKind: "job", TriggerRef: "ref", ParentID: uuid.UUID{1}, WorkID: uuid.UUID{2}, PinID: 3}}
}

// TestTxRollback: after a roll-back nothing of it has happened, and the same calls succeed later.
func TestTxRollback(t *testing.T) {
	t.Parallel()
	eachTx(t, func(t *testing.T, l *ledger.Ledger, db *pgtest.DB, begin func(sql.IsolationLevel) callerTx) {
		tx := begin(sql.LevelDefault)
		gone := must(tx.enqueue(l, fullJob()))(t)[0]
		must(0, tx.rollback())(t)
		if _, err := l.Job(t.Context(), gone.JobID); !errors.Is(err, domain.ErrNotFound) {
			t.Errorf("after the roll-back: %v, want ErrNotFound", err)
		}
		if e := must(l.Enqueue(t.Context(), fullJob()))(t); e.Replayed {
			t.Error("the key of a job that never was gave a replay")
		}

		held := claimOne(t, l, "w", "full", time.Minute)
		tx = begin(sql.LevelDefault)
		must(tx.complete(l, "w", ledger.Completion{Held: held, Result: `1`}))(t)
		must(0, tx.exec(insertNote, held.JobID))(t)
		must(0, tx.rollback())(t)
		if job := must(l.Job(t.Context(), held.JobID))(t); job.State != domain.Running || noted(t, db, held.JobID) {
			t.Errorf("after the roll-back the job is %s", job.State)
		}
		if a := must(l.Complete(t.Context(), "w", ledger.Completion{Held: held, Result: `2`}))(t); a.Repeated {
			t.Error("a completion that was rolled back counted as the first sending")
		}
	})
}

// TestTxUsableAfterRefusal: a refusal costs the application nothing of its own transaction.
func TestTxUsableAfterRefusal(t *testing.T) {
	t.Parallel()
	eachTx(t, func(t *testing.T, l *ledger.Ledger, db *pgtest.DB, begin func(sql.IsolationLevel) callerTx) {
		db.SetClock(t, zeroHour)
		held := running(t, l, "fenced", 10*time.Second, time.Hour)
		must(l.Release(t.Context(), "w", held))(t)
		late := running(t, l, "late", 10*time.Second, time.Hour)
		must(l.Enqueue(t.Context(), keyed("taken", `1`)))(t)

		tx := begin(sql.LevelDefault)
		if _, err := tx.complete(l, "w", ledger.Completion{Held: held}); !errors.Is(err, domain.ErrFenced) {
			t.Errorf("fenced: answered with %v", err)
		}
		if _, err := tx.enqueue(l, keyed("taken", `2`)); !errors.Is(err, domain.ErrKeyConflict) {
			t.Errorf("key: answered with %v", err)
		}
		if _, err := tx.enqueue(l, ledger.EnqueueParams{Kind: "no spaces"}); err == nil {
			t.Error("bad input was taken")
		}
		answers := acrossLock(t, db, late.JobID, func() ([]ledger.Answer, error) {
			a, err := tx.complete(l, "w", ledger.Completion{Held: late})
			return []ledger.Answer{a}, ignoreRefusal(err)
		}, zeroHour.Add(10*time.Second))
		if !errors.Is(answers[0].Err, domain.ErrLeaseOver) {
			t.Errorf("late: answered with %v", answers[0].Err)
		}
		must(0, tx.exec(insertNote, held.JobID))(t)
		must(0, tx.commit())(t)
		if !noted(t, db, held.JobID) {
			t.Error("the application's own write is lost")
		}
		lastEvent(t, l, held.JobID, domain.Rejected)
		lastEvent(t, l, late.JobID, domain.Rejected)
	})
}

func ignoreRefusal(err error) error {
	if _, ok := errors.AsType[*domain.RefusedError](err); ok {
		return nil
	}
	return err
}

// TestTxIsolation: under REPEATABLE READ and above, what changed since the transaction began makes the
// whole transaction fail with 40001, to be run again; nothing else does.
func TestTxIsolation(t *testing.T) {
	t.Parallel()
	for _, isolation := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(isolation.String(), func(t *testing.T) {
			t.Parallel()
			eachTx(t, func(t *testing.T, l *ledger.Ledger, db *pgtest.DB, begin func(sql.IsolationLevel) callerTx) {
				held := running(t, l, "calm", time.Minute, time.Hour)
				tx := begin(isolation)
				must(0, tx.exec(insertNote, held.JobID))(t)
				must(tx.enqueue(l, keyed("k", `1`)))(t)
				must(tx.complete(l, "w", ledger.Completion{Held: held}))(t)
				must(0, tx.commit())(t)

				held = running(t, l, "pinged", time.Minute, time.Hour)
				tx = begin(isolation)
				must(0, tx.exec(insertNote, held.JobID))(t) // takes the snapshot
				must(l.Ping(t.Context(), ledger.PingParams{Worker: "w", Pings: []ledger.Ping{{Held: held}}}))(t)
				_, err := tx.complete(l, "w", ledger.Completion{Held: held})
				if sqlState(err) != "40001" || !ledger.Retryable(err) {
					t.Errorf("after a ping: answered with %v, want 40001", err)
				}
				must(0, tx.rollback())(t)
				tx = begin(isolation)
				must(tx.complete(l, "w", ledger.Completion{Held: held}))(t)
				must(0, tx.commit())(t)
			})
		})
	}
}

// TestOpenPool: whatever the database's default isolation is, guards that waited see what was committed
// meanwhile. The control shows that without OpenPool they would not.
func TestOpenPool(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			l, db := newLedger(t)
			must(db.Pool.Exec(t.Context(), `ALTER DATABASE `+pgx.Identifier{db.Name}.Sanitize()+` SET default_transaction_isolation = '`+isolation+`'`))(t)
			duringClaim := func(tag string, cancel func(job uuid.UUID) error) error {
				job := must(l.Enqueue(t.Context(), ledger.EnqueueParams{Kind: "test", Tag: tag}))(t).JobID
				conn := db.Connect(t)
				tx := must(conn.Begin(t.Context()))(t)
				must(0, exactlyOne(t.Context(), tx, `SELECT job_id FROM jobledger.claim('w', ARRAY[$1])`, tag))(t)
				done := make(chan error, 1)
				go func() { done <- cancel(job) }()
				db.WaitBlockedBy(t, conn.PgConn().PID(), 1)
				must(0, tx.Commit(t.Context()))(t)
				return <-done
			}
			const call = `SELECT event FROM jobledger.cancel(ARRAY[$1::uuid])`
			pool := must(postgres.OpenPool(t.Context(), postgres.PoolConfig{URL: db.URL}))(t)
			defer pool.Close()
			if err := duringClaim("opened", func(job uuid.UUID) error { return exactlyOne(context.Background(), pool, call, job) }); err != nil {
				t.Errorf("through OpenPool: %v", err)
			}
			plain := must(pgxpool.New(t.Context(), db.URL))(t)
			defer plain.Close()
			err := duringClaim("plain", func(job uuid.UUID) error { return exactlyOne(context.Background(), plain, call, job) })
			if sqlState(err) != "40001" {
				t.Errorf("control: a plain pool answered with %v, want 40001", err)
			}
			anyPool := must(ledger.New(plain, ledger.Config{}))(t)
			err = duringClaim("again", func(job uuid.UUID) error {
				a, err := anyPool.Cancel(context.Background(), job, ledger.ByOperator{})
				if err == nil && a.Event != domain.CancelRequested {
					err = fmt.Errorf("answered %+v", a)
				}
				return err
			})
			if err != nil {
				t.Errorf("a ledger on a plain pool does not try again: %v", err)
			}
			verified(t, l, db)
		})
	}
}
