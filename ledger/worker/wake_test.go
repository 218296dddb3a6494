package worker_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

// sleepy are options of a worker that finds a job within the hour by itself, and at once only if it is
// woken. It notices within two seconds that its listener's link is dead.
func sleepy() worker.Config {
	return worker.Config{Poll: time.Hour, ReapEvery: time.Hour, Lease: 8 * time.Second, PingEvery: 50 * time.Millisecond, Logger: quiet}
}

// asleep waits until workers have said that they sleep and then do: they have nothing ahead of them but
// their poll.
func asleep(t testing.TB, db *pgtest.DB, workers ...*running) {
	t.Helper()
	for _, w := range workers {
		db.WaitTrue(t, w.Name()+" says that it sleeps",
			`SELECT count(*) = 1 FROM jobledger.sleeper WHERE worker = $1 AND NOT watching AND until > now()`, w.Name())
		until(t, w.Name()+" sleeps", func() bool { return w.Stats().Sleeping })
	}
}

// enqueueUnheard stores a job and notifies nobody.
func enqueueUnheard(t testing.TB, l *ledger.Ledger, db *pgtest.DB, kinds ...string) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SET LOCAL jobledger.wake = off`); err != nil {
			return err
		}
		for _, kind := range kinds {
			if _, err := l.EnqueueTx(t.Context(), tx, ledger.EnqueueParams{Kind: kind}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestWakeUp: a worker whose next poll is in an hour starts a job because it was woken.
func TestWakeUp(t *testing.T) {
	t.Parallel()

	t.Run("by_an_enqueue", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		w, runs := startPuppet(t, l, sleepy())
		asleep(t, db, w)
		before := w.Stats().Woken
		enqueue(t, l, "puppet", nil, nil)
		receive(t, "the run", runs).returns(nil)
		if s := w.Stats(); s.Woken != before+1 || !s.Listening || s.Relistens != 0 {
			t.Errorf("stats are %+v, before it was woken %d times", s, before)
		}
		// It goes back to sleep and is woken again.
		until(t, "the outcome is committed", func() bool { return w.Stats().Succeeded == 1 })
		asleep(t, db, w)
		enqueue(t, l, "puppet", nil, nil)
		receive(t, "the run", runs).returns(nil)
	})

	t.Run("by_the_commit_of_a_caller", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		w, runs := startPuppet(t, l, sleepy())
		asleep(t, db, w)
		tx, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.EnqueueTx(t.Context(), tx, ledger.EnqueueParams{Kind: "puppet"}); err != nil {
			t.Fatal(err)
		}
		if s := w.Stats(); !s.Sleeping {
			t.Errorf("it was woken before the commit: %+v", s)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		receive(t, "the run", runs).returns(nil)
	})

	t.Run("few_of_many", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t, pgtest.MaxConns(20))
		var workers []*running
		runs := make(chan *run, 1)
		for range 10 {
			workers = append(workers, start(t, l, sleepy(), func(w *worker.Worker) { worker.Handle(w, "puppet", puppet(runs)) }))
		}
		asleep(t, db, workers...)
		var woken int64
		for _, w := range workers {
			woken -= w.Stats().Woken
		}
		id := enqueue(t, l, "puppet", nil, nil)
		receive(t, "the run", runs).returns(nil)
		succeeded(t, l, id)
		for _, w := range workers {
			woken += w.Stats().Woken
		}
		if woken < 1 || woken > 2 {
			t.Errorf("%d of 10 workers woke for one job, want 1 or 2", woken)
		}
	})

	// What a worker found by polling and has no room for is for others who sleep.
	t.Run("by_one_that_has_no_room", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		deep, deepRuns := startPuppet(t, l, sleepy())
		cfg := sleepy()
		cfg.Poll, cfg.Concurrency = 20*time.Millisecond, 1
		_, fullRuns := startPuppet(t, l, cfg)
		asleep(t, db, deep)
		db.WaitTrue(t, "both say that they wait", `SELECT count(*) = 2 FROM jobledger.sleeper WHERE until > now()`)
		enqueueUnheard(t, l, db, "puppet", "puppet")
		r := receive(t, "the run at the one that polls", fullRuns)
		receive(t, "the run at the one that sleeps", deepRuns).returns(nil)
		r.returns(nil)
	})

	// A worker that stops wakes others: it may have kept them from being woken.
	t.Run("by_one_that_stops", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		stopping, _ := startPuppet(t, l, sleepy())
		deep, runs := startPuppet(t, l, sleepy())
		asleep(t, db, stopping, deep)
		enqueueUnheard(t, l, db, "puppet")
		if err := stopping.stop(); err != nil {
			t.Error(err)
		}
		receive(t, "the run at the other", runs).returns(nil)
	})

	t.Run("none_is_forgotten", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		cfg := sleepy()
		cfg.Concurrency = 2
		ran := make(chan struct{}, 1000)
		for range 3 {
			start(t, l, cfg, func(w *worker.Worker) {
				worker.Handle(w, "noop", func(context.Context, worker.Job[struct{}]) (struct{}, error) {
					ran <- struct{}{}
					return struct{}{}, nil
				})
			})
		}
		for n := range 200 { // one by one, in pairs, in bursts
			size := 1 + n%2 + n%50/49*30
			for range size {
				enqueue(t, l, "noop", nil, nil)
			}
			for range size {
				receive(t, fmt.Sprintf("a job of round %d", n), ran)
			}
		}
		db.WaitTrue(t, "all have succeeded", `SELECT count(*) = 0 FROM jobledger.job WHERE state <> 'ended'`)
		verified(t, l, db)
	})

	t.Run("not_without_a_listener", func(t *testing.T) {
		t.Parallel()
		l, db := newLedger(t)
		cfg := brisk()
		cfg.NoListen = true
		w, runs := startPuppet(t, l, cfg)
		enqueue(t, l, "puppet", nil, nil)
		receive(t, "the run", runs).returns(nil)
		if s := w.Stats(); s.Woken != 0 || s.Listening {
			t.Errorf("stats are %+v", s)
		}
		db.WaitTrue(t, "nobody listens", `SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1`, ledger.ListenerName)
	})
}

// TestNothingSubscribed: the pool's connections hear nothing, whatever a worker does, and nobody is left
// who listens or sleeps when it has stopped.
func TestNothingSubscribed(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t, pgtest.MaxConns(4))
	w, runs := startPuppet(t, l, sleepy())
	asleep(t, db, w)
	id := enqueue(t, l, "puppet", nil, nil)
	receive(t, "the run", runs).returns(nil)
	succeeded(t, l, id)
	for range db.Pool.Config().MaxConns {
		conn, err := db.Pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		var channels int
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_listening_channels()`).Scan(&channels); err != nil || channels != 0 {
			t.Errorf("a connection of the pool listens on %d channels, %v", channels, err)
		}
		defer func() { _ = w.stop() }() // before the connections go back it would wait for one
	}
}

// TestStopEndsListening: a worker that has stopped neither listens nor is listed as asleep.
func TestStopEndsListening(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	w, _ := startPuppet(t, l, sleepy())
	asleep(t, db, w)
	const listeners = `SELECT count(*) = $1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = $2`
	db.WaitTrue(t, "it listens", listeners, 1, ledger.ListenerName)
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	db.WaitTrue(t, "it listens no more", listeners, 0, ledger.ListenerName)
	db.WaitTrue(t, "it sleeps no more", `SELECT count(*) = 0 FROM jobledger.sleeper`)
}
