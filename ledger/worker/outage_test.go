package worker_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

// TestOutage: outcomes reach the ledger, once, whatever happens on their way.
func TestOutage(t *testing.T) {
	t.Parallel()

	t.Run("shorter_than_the_lease", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		p := newProxy(t, db)
		var log lines
		cfg := brisk()
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		w, runs := startPuppet(t, p.Ledger, cfg)
		good, bad := enqueue(t, l, "puppet", nil, nil), enqueue(t, l, "puppet", nil, nil)
		both := []*run{receive(t, "a run", runs), receive(t, "a run", runs)}
		p.Set(pgtest.Closed)
		for _, r := range both {
			if r.ID == bad {
				r.returns(errTest)
			} else {
				r.returns(nil)
			}
		}
		until(t, "the claims have failed", func() bool { return w.Healthy() != nil })
		if s := w.Stats(); s.Leases != 2 || s.Succeeded+s.Retried != 0 {
			t.Errorf("before anything was committed stats are %+v", s)
		}
		p.Set(pgtest.Open)
		succeeded(t, l, good)
		db.WaitTrue(t, "the failure is known", `SELECT count(*) = 1 FROM jobledger.job_event WHERE job_id = $1 AND type = 'retried'`, bad)
		until(t, "the worker says that it is over", func() bool { return strings.Contains(log.String(), "the database works again") })
		if err := w.stop(); err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "does not do what it is asked"); n != 1 {
			t.Errorf("the outage was told of %d times:\n%s", n, log.String())
		}
		db.WaitTrue(t, "no lease was lost", `SELECT count(*) = 0 FROM jobledger.job_event WHERE type IN ('reaped', 'rejected')`)
		verified(t, l, db)
	})

	t.Run("answer_lost", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		p := newProxy(t, db)
		cfg := brisk()
		cfg.Lease, cfg.Poll = 8*time.Second, time.Hour // one call may take two seconds
		id := enqueue(t, l, "puppet", nil, nil)
		w, runs := startPuppet(t, p.Ledger, cfg)
		r := receive(t, "the run", runs)
		p.Once(".complete(", pgtest.Mute)
		r.returns(nil)
		succeeded(t, l, id)
		receive(t, "an answer that is lost", p.Lost())
		if s := w.Stats(); s.Succeeded != 0 || s.Leases != 1 {
			t.Errorf("before the answer was there stats are %+v", s)
		}
		p.Set(pgtest.Closed)
		p.Set(pgtest.Open)
		until(t, "the worker knows", func() bool { return w.Stats().Succeeded == 1 })
		if err := w.stop(); err != nil {
			t.Error(err)
		}
		if s := w.Stats(); s.Repeated != 1 || s.Refused != 0 || s.Lost != 0 {
			t.Errorf("stats are %+v", s)
		}
		if _, types := history(t, l, id); len(types) != 3 {
			t.Errorf("history is %v", types)
		}
		verified(t, l, db)
	})

	t.Run("cut_for_good_at_the_stop", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		p := newProxy(t, db)
		cfg := brisk()
		cfg.Lease = time.Second // it tries for so long
		id := enqueue(t, l, "puppet", nil, nil)
		w, runs := startPuppet(t, p.Ledger, cfg)
		r := receive(t, "the run", runs)
		p.Set(pgtest.Closed)
		r.returns(nil)
		var stop *worker.StopError
		if err := w.stop(); !errors.As(err, &stop) || stop.Unreported != 1 || stop.Abandoned != 0 {
			t.Errorf("stopped with %v", err)
		}
		if job, _ := l.Job(t.Context(), id); job.State != domain.Running {
			t.Errorf("the job is %s", job.State)
		}
	})
}

// TestReport: one outcome does not keep others from the ledger.
func TestReport(t *testing.T) {
	t.Parallel()

	t.Run("a_locked_row", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		cfg := brisk()
		cfg.Lease = 12 * time.Second // a call may take three seconds
		w, runs := startPuppet(t, l, cfg)
		id := enqueue(t, l, "puppet", nil, nil)
		for range 9 {
			enqueue(t, l, "puppet", nil, nil)
		}
		var all []*run
		for range 10 {
			all = append(all, receive(t, "a run", runs))
		}
		conn := db.Connect(t)
		if _, err := conn.Exec(t.Context(), `BEGIN; SELECT FROM jobledger.job_runtime WHERE job_id = '`+id.String()+`' FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			r.returns(nil)
		}
		db.WaitTrue(t, "the others are done", `SELECT count(*) = 9 FROM jobledger.job_completed`)
		if _, err := conn.Exec(t.Context(), `ROLLBACK`); err != nil {
			t.Fatal(err)
		}
		succeeded(t, l, id)
		if err := w.stop(); err != nil {
			t.Error(err)
		}
		if s := w.Stats(); s.Succeeded != 10 || s.Refused != 0 {
			t.Errorf("stats are %+v", s)
		}
		verified(t, l, db)
	})

	t.Run("a_result_that_the_database_refuses", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		if _, err := db.Pool.Exec(t.Context(), `ALTER TABLE jobledger.job_payload ADD CHECK (version = 1 OR body NOT LIKE '%poison%')`); err != nil {
			t.Fatal(err)
		}
		w, runs := startPuppet(t, l, brisk())
		var ids []string
		for range 10 {
			ids = append(ids, enqueue(t, l, "puppet", nil, func(p *ledger.EnqueueParams) { p.Policy = domain.Policy{MaxAttempts: 1} }).String())
		}
		var all []*run
		for range 10 {
			all = append(all, receive(t, "a run", runs))
		}
		for _, r := range all {
			if r.ID.String() == ids[3] {
				r.poison()
			}
			r.returns(nil)
		}
		db.WaitTrue(t, "all have ended", `SELECT count(*) = 10 FROM jobledger.job_completed`)
		if err := w.stop(); err != nil {
			t.Error(err)
		}
		db.WaitTrue(t, "the culprit alone failed, its outcome unknown",
			`SELECT count(*) = 1 AND min(job_id::text) = $1 AND min(class) = 'outcome_unknown' FROM jobledger.job_completed WHERE outcome = 'failure'`, ids[3])
		verified(t, l, db)
	})
}

// TestOneCallAtATime: pings never meet the outcome of the same lease, so nothing is refused and no
// rejected event is left, however short the jobs and however often they are pinged.
func TestOneCallAtATime(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	var jobs []ledger.EnqueueParams
	for range 400 {
		jobs = append(jobs, ledger.EnqueueParams{Kind: "short"}, ledger.EnqueueParams{Kind: "tx"})
	}
	if _, err := l.EnqueueMany(t.Context(), jobs); err != nil {
		t.Fatal(err)
	}
	cfg := brisk()
	cfg.PingEvery, cfg.Drain = time.Millisecond, true
	w := start(t, l, cfg, func(w *worker.Worker) {
		worker.Handle(w, "short", func(_ context.Context, job worker.Job[struct{}]) (struct{}, error) {
			return struct{}{}, job.SetProgress(1) // is pinged, whatever its age
		})
		worker.Handle(w, "tx", func(ctx context.Context, job worker.Job[struct{}]) (struct{}, error) {
			if err := job.SetProgress(1); err != nil {
				return struct{}{}, err
			}
			return struct{}{}, pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error { return job.CompleteTx(ctx, tx, nil) })
		})
	})
	receive(t, "the end of Run", w.done)
	if s := w.Stats(); s.Succeeded != 800 || s.Refused != 0 || s.Lost != 0 || s.Pings == 0 {
		t.Errorf("stats are %+v", s)
	}
	db.WaitTrue(t, "no call was rejected", `SELECT count(*) = 0 FROM jobledger.job_event WHERE type = 'rejected'`)
	verified(t, l, db)
}

// TestProgressThatTheDatabaseRefuses costs no lease, neither its own nor another one.
func TestProgressThatTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	if _, err := db.Pool.Exec(t.Context(), `ALTER TABLE jobledger.job_payload ADD CHECK (version = 1 OR body NOT LIKE '%poison%')`); err != nil {
		t.Fatal(err)
	}
	_, runs := startPuppet(t, l, pinging())
	ids := []uuid.UUID{enqueue(t, l, "puppet", nil, nil), enqueue(t, l, "puppet", nil, nil)}
	both := []*run{receive(t, "a run", runs), receive(t, "a run", runs)}
	if err := both[0].SetProgress("poison"); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		db.WaitTrue(t, "it is pinged", `SELECT version >= 5 FROM jobledger.job_runtime WHERE job_id = $1`, id)
	}
	if err := both[0].SetProgress("fine"); err != nil {
		t.Fatal(err)
	}
	for _, r := range both {
		r.returns(errTest)
		db.WaitTrue(t, "it is retried", `SELECT count(*) = 1 FROM jobledger.job_event WHERE type = 'retried' AND job_id = $1`, r.ID)
	}
	if job, _ := l.Job(t.Context(), both[0].ID); string(job.Progress) != `"fine"` {
		t.Errorf("progress is %s", job.Progress)
	}
	for range 2 {
		receive(t, "the next run", runs).returns(nil)
	}
	for _, id := range ids {
		succeeded(t, l, id)
	}
	verified(t, l, db)
}

// lines is a log that may be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
