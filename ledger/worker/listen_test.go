package worker_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/ledger"
)

// The cases of a listener that is deaf, and may not know it. A job that starts at a worker with a poll
// of an hour shows that it was woken, or looked because its listener lost or found its connection.

func TestCase33_black_holed_link(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	p := newProxy(t, db)
	cfg := sleepy()
	cfg.ListenURL = p.URL
	w, runs := startPuppet(t, l, cfg)
	asleep(t, db, w)
	p.Set(pgtest.Silent)
	enqueue(t, l, "puppet", nil, nil)
	receive(t, "what was notified to be lost", p.Lost())
	receive(t, "the run, once the link is known to be dead", runs).returns(nil)
	until(t, "it does not listen", func() bool { return !w.Stats().Listening })
	db.WaitTrue(t, "it is not listed as asleep", `SELECT count(*) = 0 FROM jobledger.sleeper WHERE until > now()`)
	p.Set(pgtest.Open)
	until(t, "it listens again", func() bool { return w.Stats().Listening })
	asleep(t, db, w)
	woken := w.Stats().Woken
	enqueue(t, l, "puppet", nil, nil)
	receive(t, "the run", runs).returns(nil)
	if s := w.Stats(); s.Woken <= woken || s.Relistens < 1 {
		t.Errorf("stats are %+v", s)
	}
}

func TestCase33_half_open_link_with_short_poll(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	p := newProxy(t, db)
	cfg := sleepy()
	cfg.ListenURL, cfg.PingEvery, cfg.Poll = p.URL, 2*time.Second, 20*time.Millisecond
	w, runs := startPuppet(t, l, cfg)
	until(t, "it listens", func() bool { return w.Stats().Listening })
	p.Set(pgtest.Silent)
	for range 10 { // it believes that it listens and polls all the same
		enqueue(t, l, "puppet", nil, nil)
		receive(t, "the run", runs).returns(nil)
	}
}

func TestCase33_terminated_listener(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	w, runs := startPuppet(t, l, sleepy())
	asleep(t, db, w)
	enqueueUnheard(t, l, db, "puppet")
	db.WaitTrue(t, "its listener is ended", `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = $1`, ledger.ListenerName)
	receive(t, "the run", runs).returns(nil)
	until(t, "it listens again", func() bool { s := w.Stats(); return s.Listening && s.Relistens == 1 })
	until(t, "the outcome is committed", func() bool { return w.Stats().Succeeded == 1 })
	asleep(t, db, w)
	enqueue(t, l, "puppet", nil, nil)
	receive(t, "the run", runs).returns(nil)
}

// TestCase33_catches_up: what became due while nobody listened is found when it listens again.
func TestCase33_catches_up(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	p := newProxy(t, db)
	cfg := sleepy()
	cfg.ListenURL = p.URL
	var log lines
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	w, runs := startPuppet(t, l, cfg)
	asleep(t, db, w)
	p.Set(pgtest.Closed)
	db.WaitTrue(t, "it says that it does not wait to be woken", `SELECT count(*) = 0 FROM jobledger.sleeper WHERE until > now()`)
	until(t, "it sleeps", func() bool { return w.Stats().Sleeping })
	enqueue(t, l, "puppet", nil, nil)
	p.Set(pgtest.Open)
	receive(t, "the run", runs).returns(nil)
	if n := strings.Count(log.String(), "what=listen"); n != 1 {
		t.Errorf("the outage was told of %d times:\n%s", n, log.String())
	}
	until(t, "it says that it listens again", func() bool { return strings.Contains(log.String(), "the database works again") })
	if s := w.Stats(); s.Relistens != 1 {
		t.Errorf("stats are %+v", s)
	}
}

func TestCase33_no_connection_slots(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	p := newProxy(t, db)
	p.Set(pgtest.Full)
	cfg := sleepy()
	cfg.ListenURL, cfg.Poll = p.URL, 20*time.Millisecond
	var log lines
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	w, runs := startPuppet(t, l, cfg)
	until(t, "it says why it does not listen", func() bool {
		return strings.Contains(log.String(), "what=listen") && strings.Contains(log.String(), "53300")
	})
	for range 3 {
		enqueue(t, l, "puppet", nil, nil)
		receive(t, "the run", runs).returns(nil)
	}
	if w.Stats().Listening {
		t.Error("it listens")
	}
	p.Set(pgtest.Open)
	until(t, "it listens", func() bool { return w.Stats().Listening })
}

// TestCase33_transaction_pooler: a LISTEN through it succeeds and means nothing.
func TestCase33_transaction_pooler(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	pooled := db.PgBouncer(t, "default_pool_size = 1")
	cfg := sleepy()
	cfg.ListenURL, cfg.Poll = pooled, 20*time.Millisecond
	var log lines
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	w, runs := startPuppet(t, l, cfg)
	until(t, "it says that wake-ups are off", func() bool { return strings.Contains(log.String(), "wake-ups are off") })
	for range 3 {
		enqueue(t, l, "puppet", nil, nil)
		receive(t, "the run", runs).returns(nil)
	}
	if s := w.Stats(); s.Listening || s.Woken != 0 {
		t.Errorf("stats are %+v", s)
	}
	if n := strings.Count(log.String(), "wake-ups are off"); n != 1 || !strings.Contains(log.String(), "--direct-url") {
		t.Errorf("it was told of %d times:\n%s", n, log.String())
	}
	db.WaitTrue(t, "it is not listed as asleep", `SELECT count(*) = 0 FROM jobledger.sleeper WHERE until > now()`)
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	pool, err := postgres.OpenPool(t.Context(), postgres.PoolConfig{URL: pooled})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	var channels int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_listening_channels()`).Scan(&channels); err != nil || channels != 0 {
		t.Errorf("the pooler's connection is left listening on %d channels, %v", channels, err)
	}

	// With the pool behind the pooler and the listener past it, wake-ups are on.
	through, err := ledger.New(pool, ledger.Config{})
	if err != nil {
		t.Fatal(err)
	}
	cfg = sleepy()
	cfg.ListenURL = db.URL
	w, runs = startPuppet(t, through, cfg)
	asleep(t, db, w)
	enqueue(t, through, "puppet", nil, nil)
	receive(t, "the run", runs).returns(nil)
}
