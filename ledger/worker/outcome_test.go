package worker_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

// TestOutcomeIsKept: whatever spoils the report of an outcome, more often than the ledger sends it by itself,
// it is kept and reported again while the lease lives, and is in the ledger once.
func TestOutcomeIsKept(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code  string
		times int
	}{
		{"40001", 9}, {"40P01", 9}, {"55P03", 9}, {"25006", 9}, {"53300", 9}, {"57P01", 9},
		{"57014", 2}, {"XX000", 2}, // which the ledger does not send again
	} {
		t.Run(c.code, func(t *testing.T) {
			t.Parallel()
			l, db := newLedger(t)
			p := newProxy(t, db)
			spoilOutcomes(t, db, c.code, c.times)
			finishes(t, l, db, p.Ledger, func() {})
		})
	}
	t.Run("all_connections_taken", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		pool := pgtest.NewProxy(t, db.URL).Pool(t, pgtest.MaxConns(2))
		small, err := ledger.New(pool, ledger.Config{})
		if err != nil {
			t.Fatal(err)
		}
		var taken []*pgxpool.Conn
		finishes(t, l, db, small, func() {
			for range 2 {
				conn, err := pool.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				taken = append(taken, conn)
			}
		}, func() {
			for _, conn := range taken {
				conn.Release()
			}
		})
	})
}

// spoilOutcomes lets events that end a run fail, times in number.
func spoilOutcomes(t *testing.T, db *pgtest.DB, code string, times int) {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), fmt.Sprintf(`CREATE SEQUENCE public.spoilt;
		CREATE FUNCTION public.spoil() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF NEW.type IN ('completed', 'retried', 'snoozed') AND nextval('public.spoilt') <= %d THEN
				IF '%[2]s' = '57P01' THEN
					PERFORM pg_terminate_backend(pg_backend_pid());
				ELSE
					RAISE EXCEPTION USING ERRCODE = '%[2]s';
				END IF;
			END IF;
			RETURN NULL;
		END $$;
		CREATE TRIGGER spoil AFTER INSERT ON jobledger.job_event FOR EACH ROW EXECUTE FUNCTION public.spoil()`, times, code)); err != nil {
		t.Fatal(err)
	}
}

// finishes lets a worker run a job to each of its ends, and wants each reported once. Steps happen once the
// jobs run: the first before their handlers return, the others when reports have been seen to fail.
func finishes(t *testing.T, l *ledger.Ledger, db *pgtest.DB, through *ledger.Ledger, steps ...func()) {
	t.Helper()
	cfg := brisk()
	cfg.Lease, cfg.Concurrency = 20*time.Second, 3
	w, runs := startPuppet(t, through, cfg)
	want := map[uuid.UUID]domain.EventType{}
	for _, event := range []domain.EventType{domain.Completed, domain.Retried, domain.Snoozed} {
		want[enqueue(t, l, "puppet", nil, nil)] = event
	}
	var all []*run
	for range want {
		all = append(all, receive(t, "a run", runs))
	}
	steps[0]()
	for _, r := range all {
		r.returns(map[domain.EventType]error{domain.Retried: worker.Retry(errTest, time.Hour), domain.Snoozed: worker.Snooze(time.Hour, "later")}[want[r.ID]])
	}
	for _, step := range steps[1:] {
		until(t, "reports have failed", func() bool { return w.Stats().Outages > 0 })
		step()
	}
	for id, event := range want {
		db.WaitTrue(t, "its outcome is there, once", `SELECT count(*) = 1 FROM jobledger.job_event WHERE job_id = $1 AND type = $2`, id, event)
	}
	until(t, "the worker knows", func() bool { return w.Stats().Leases == 0 })
	if s := w.Stats(); s.Succeeded != 1 || s.Retried != 1 || s.Snoozed != 1 || s.Refused != 0 || s.Lost != 0 {
		t.Errorf("stats are %+v", s)
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	db.WaitTrue(t, "nothing was rejected or taken back", `SELECT count(*) = 0 FROM jobledger.job_event WHERE type IN ('rejected', 'reaped')`)
	verified(t, l, db)
}

// TestOutcomeIsRefusedAfterTheLease: an outage that outlasts the lease costs the outcome. It is reported all the
// same, refused, counted and told of in one line.
func TestOutcomeIsRefusedAfterTheLease(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	p := newProxy(t, db)
	var log lines
	cfg := brisk()
	cfg.Lease, cfg.Logger = 2*time.Second, slog.New(slog.NewTextHandler(&log, nil))
	id := enqueue(t, l, "puppet", nil, nil)
	w, runs := startPuppet(t, p.Ledger, cfg)
	r := receive(t, "the run", runs)
	p.Set(pgtest.Closed)
	r.returns(nil)
	db.WaitTrue(t, "the lease is over", `SELECT lease_until <= clock_timestamp() FROM jobledger.job_runtime WHERE job_id = $1`, id)
	if answers, err := l.Reap(t.Context(), ledger.ReapParams{Actor: "r"}); err != nil || len(answers) != 1 {
		t.Fatalf("took back %v, %v", answers, err)
	}
	held, err := l.Claim(t.Context(), ledger.ClaimParams{Worker: "another"})
	if err != nil || len(held.Jobs) != 1 {
		t.Fatalf("claimed %v, %v", held, err)
	}
	p.Set(pgtest.Open)
	until(t, "it is refused", func() bool { return w.Stats().Refused == 1 })
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if s := w.Stats(); s.Succeeded != 0 || s.Lost != 1 || s.Refused != 1 {
		t.Errorf("stats are %+v", s)
	}
	if n := strings.Count(log.String(), "outcome was refused"); n != 1 {
		t.Errorf("told %d times of the refusal:\n%s", n, log.String())
	}
	if _, types := history(t, l, id); types[len(types)-1] != domain.Rejected {
		t.Errorf("history is %v, want a rejected event at the end", types)
	}
	verified(t, l, db)
}
