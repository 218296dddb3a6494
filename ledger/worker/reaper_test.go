package worker_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

// reap runs a reaper until the end of the test or until the returned function is called.
func reap(t testing.TB, l *ledger.Ledger, cfg worker.ReaperConfig) (*worker.Reaper, func()) {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	r, err := worker.NewReaper(l, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := receive(t, "the reaper to stop", done); err != nil {
			t.Errorf("the reaper returned %v", err)
		}
	})
	t.Cleanup(stop)
	return r, stop
}

// claimAll claims n jobs of a worker that then dies.
func claimAll(t testing.TB, l *ledger.Ledger, tag string, n int) {
	t.Helper()
	var jobs []ledger.EnqueueParams
	for range n {
		jobs = append(jobs, ledger.EnqueueParams{Kind: "x", Tag: tag})
	}
	if _, err := l.EnqueueMany(t.Context(), jobs); err != nil {
		t.Fatal(err)
	}
	if c, err := l.Claim(t.Context(), ledger.ClaimParams{Worker: "dead", Tags: []string{tag}, Max: n}); err != nil || len(c.Jobs) != n {
		t.Fatalf("claimed %d jobs, %v", len(c.Jobs), err)
	}
}

func TestReaper(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

	t.Run("pages_until_nothing_is_left_but_what_is_locked", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		db.SetClock(t, noon)
		claimAll(t, l, "a", 95)
		claimAll(t, l, "b", 1)
		db.Advance(t, time.Minute)
		conn := db.Connect(t)
		if _, err := conn.Exec(t.Context(), `BEGIN; SELECT FROM jobledger.job_runtime WHERE tag = 'a' LIMIT 12 FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		// One look: the next one would be in an hour.
		r, stop := reap(t, l, worker.ReaperConfig{Actor: "r", Every: time.Hour, Batch: 10, Tags: []string{"a"}})
		until(t, "83 are taken back", func() bool { return r.Reaped() == 83 })
		stop()
		if _, err := conn.Exec(t.Context(), `ROLLBACK`); err != nil {
			t.Fatal(err)
		}
		db.WaitTrue(t, "12 locked ones and the other tag's one are left", `SELECT count(*) = 13 FROM jobledger.job_runtime`)
		r, stop = reap(t, l, worker.ReaperConfig{Actor: "r", Every: time.Hour})
		until(t, "the rest is taken back", func() bool { return r.Reaped() == 13 })
		stop()
		verified(t, l, db)
	})

	t.Run("survives_an_outage", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		db.SetClock(t, noon)
		p := newProxy(t, db)
		claimAll(t, l, "a", 3)
		p.Set(pgtest.Closed)
		var log lines
		r, stop := reap(t, p.Ledger, worker.ReaperConfig{Actor: "r", Every: time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		until(t, "it says that it does not work", func() bool { return strings.Contains(log.String(), "what=reap") })
		db.Advance(t, time.Minute)
		p.Set(pgtest.Open)
		until(t, "all are taken back", func() bool { return r.Reaped() == 3 })
		until(t, "it says so", func() bool {
			return strings.Contains(log.String(), "the database works again") && strings.Contains(log.String(), "jobs=3 reaped=3")
		})
		stop()
	})

	t.Run("adds_event_partitions", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		if _, err := db.Pool.Exec(t.Context(), `SELECT setval('jobledger.job_event_seq', 20 * 16777216)`); err != nil {
			t.Fatal(err)
		}
		_, stop := reap(t, l, worker.ReaperConfig{Actor: "r"})
		db.WaitTrue(t, "there are partitions ahead", `SELECT to_regclass('jobledger.job_event_23') IS NOT NULL`)
		stop()
	})

	t.Run("refuses", func(t *testing.T) {
		t.Parallel()
		for field, cfg := range map[string]worker.ReaperConfig{
			"actor":      {},
			"batch":      {Actor: "r", Batch: domain.MaxBatch + 1},
			"reap_every": {Actor: "r", Every: -1},
			"tags":       {Actor: "r", Tags: []string{""}},
		} {
			var f *domain.FieldError
			if _, err := worker.NewReaper(nil, cfg); !errors.As(err, &f) || f.Field != field {
				t.Errorf("%s: got %v", field, err)
			}
		}
	})
}
