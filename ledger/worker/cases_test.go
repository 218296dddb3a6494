package worker_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

// TestCase03_AnHonestJobIsNeverTakenBack: a job that runs for many leases and pings is left alone by
// three reapers.
func TestCase03_AnHonestJobIsNeverTakenBack(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx, cancel := context.WithCancel(t.Context())
	var reapers sync.WaitGroup
	for i := range 3 {
		r, err := worker.NewReaper(l, worker.ReaperConfig{Actor: fmt.Sprint("reaper-", i), Every: 50 * time.Millisecond, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		reapers.Go(func() { _ = r.Run(ctx) })
	}
	cfg := brisk()
	cfg.Lease = 2 * time.Second
	cfg.PingEvery, cfg.Margin = cfg.Lease/8, cfg.Lease/8
	w, runs := startPuppet(t, l, cfg)
	id := enqueue(t, l, "puppet", nil, nil)
	r := receive(t, "the run", runs)
	db.WaitTrue(t, "it has run for five leases", `SELECT clock_timestamp() > started_at + interval '10 s' FROM jobledger.job_runtime WHERE job_id = $1
		UNION ALL SELECT true FROM jobledger.job_completed WHERE job_id = $1 UNION ALL SELECT true FROM jobledger.job_queue WHERE job_id = $1`, id)
	r.returns(nil)
	succeeded(t, l, id)
	cancel()
	reapers.Wait()
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	count := map[domain.EventType]int{}
	_, types := history(t, l, id)
	for _, e := range types {
		count[e]++
	}
	if count[domain.Claimed] != 1 || count[domain.Reaped] != 0 || count[domain.Completed] != 1 || count[domain.Pinged] < 10 {
		t.Errorf("history has %v", count)
	}
	verified(t, l, db)
}

// TestCase03_WhatMaintenanceTouches is a table of every place that a job can be in, long after its
// lease and time-out, and whether maintenance may touch it there. Maintenance is all that runs by
// itself: reap, the partitions of events, and the list of workers.
func TestCase03_WhatMaintenanceTouches(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	db.SetClock(t, time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
	claim := func(tag string) ledger.Held {
		t.Helper()
		c, err := l.Claim(ctx, ledger.ClaimParams{Worker: "w", Tags: []string{tag}, Lease: 24 * time.Hour})
		if err != nil || len(c.Jobs) != 1 {
			t.Fatalf("claimed %+v, %v", c, err)
		}
		return c.Jobs[0].Held
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	endless := domain.Policy{Timeout: 720 * time.Hour, RestartLimit: 3}
	type place struct {
		name    string
		policy  domain.Policy
		delay   time.Duration
		reach   func(id uuid.UUID, tag string)
		touched domain.EventType // "" for not
	}
	rows := []place{
		{name: "waiting, due"},
		{name: "waiting, due later", delay: 1000 * time.Hour},
		{name: "waiting on a paused tag", reach: func(_ uuid.UUID, tag string) {
			_, err := db.Pool.Exec(ctx, `INSERT INTO jobledger.tag_state (tag, paused_at) VALUES ($1, jobledger.clock())`, tag)
			ok(err)
		}},
		{name: "waiting, held for nodes", reach: func(id uuid.UUID, _ string) {
			_, err := db.Pool.Exec(ctx, `UPDATE jobledger.job_queue SET held = 'nodes' WHERE job_id = $1`, id)
			ok(err)
		}},
		{name: "waiting for a retry", reach: func(_ uuid.UUID, tag string) {
			_, err := l.Fail(ctx, "w", ledger.Failure{Held: claim(tag)})
			ok(err)
		}},
		{name: "running, pinged", policy: endless, reach: func(_ uuid.UUID, tag string) { claim(tag) }},
		{name: "running, no lease: reconcile", policy: domain.Policy{OnLostLease: domain.Reconcile}, reach: func(_ uuid.UUID, tag string) { claim(tag) }},
		{name: "running, timed out", reach: func(_ uuid.UUID, tag string) { claim(tag) }, touched: domain.Retried},
		{name: "running, lease over", policy: endless, reach: func(_ uuid.UUID, tag string) { claim(tag) }, touched: domain.Reaped},
		{name: "running, marked, lease over", policy: endless, reach: func(id uuid.UUID, tag string) {
			claim(tag)
			_, err := l.Cancel(ctx, id, ledger.ByOperator{})
			ok(err)
		}, touched: domain.CanceledEvent},
		{name: "ended with success", reach: func(_ uuid.UUID, tag string) {
			_, err := l.Complete(ctx, "w", ledger.Completion{Held: claim(tag)})
			ok(err)
		}},
		{name: "ended as a dead letter", reach: func(_ uuid.UUID, tag string) {
			_, err := l.Fail(ctx, "w", ledger.Failure{Held: claim(tag), Permanent: true})
			ok(err)
		}},
		{name: "canceled", reach: func(id uuid.UUID, _ string) {
			_, err := l.Cancel(ctx, id, ledger.ByOperator{})
			ok(err)
		}},
	}
	ids, before := make([]uuid.UUID, len(rows)), make([]int, len(rows))
	for i, row := range rows {
		tag := fmt.Sprint("tag-", i)
		ids[i] = enqueue(t, l, "x", nil, func(p *ledger.EnqueueParams) { p.Tag, p.Delay, p.Policy = tag, row.delay, row.policy })
		if row.reach != nil {
			row.reach(ids[i], tag)
		}
		job, err := l.Job(ctx, ids[i])
		ok(err)
		before[i] = job.Version
	}
	db.Advance(t, 12*time.Hour)
	pinged := slices.IndexFunc(rows, func(p place) bool { return p.name == "running, pinged" })
	_, err := l.Ping(ctx, ledger.PingParams{Worker: "w", Lease: 24 * time.Hour, Pings: []ledger.Ping{{Held: ledger.Held{JobID: ids[pinged], Generation: 1}}}})
	ok(err)
	before[pinged]++
	db.Advance(t, 12*time.Hour)

	for range 2 {
		_, err := l.Reap(ctx, ledger.ReapParams{Actor: "reaper"})
		ok(err)
		ok(l.ExtendEvents(ctx))
		ok(l.WorkerGone(ctx, "w"))
	}
	for i, row := range rows {
		_, types := history(t, l, ids[i])
		var got domain.EventType
		if len(types) > before[i] {
			got = types[before[i]]
		}
		if got != row.touched || len(types) > before[i]+1 {
			t.Errorf("%s: maintenance appended %v, want %q", row.name, types[before[i]:], row.touched)
		}
	}
	verified(t, l, db)
}

// TestCase06_AJobThatKillsItsWorker ends as a dead letter after as many lost leases as its policy
// allows, with the names of the workers that it killed, while other jobs keep flowing.
func TestCase06_AJobThatKillsItsWorker(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	killer := enqueue(t, l, "kill", nil, func(p *ledger.EnqueueParams) {
		p.Policy, p.Priority = domain.Policy{RestartLimit: 3}, 1
	})
	var others []ledger.EnqueueParams
	for range 200 {
		others = append(others, ledger.EnqueueParams{Kind: "quick"})
	}
	jobs, err := l.EnqueueMany(t.Context(), others)
	if err != nil {
		t.Fatal(err)
	}
	// Three nodes, each started anew when it was killed.
	over, stop := context.WithCancel(t.Context())
	var nodes sync.WaitGroup
	var kills atomic.Int64
	for i := range 3 {
		nodes.Go(func() {
			for life := 1; over.Err() == nil; life++ {
				p := spawn(t, childConfig{URL: db.URL, Name: fmt.Sprintf("node-%d-%d", i, life), Lease: time.Second})
				select {
				case <-p.gone:
					kills.Add(1)
				case <-over.Done():
					p.signal(t, syscall.SIGTERM)
					<-p.gone
				}
			}
		})
	}
	job := ended(t, l, killer)
	for _, j := range jobs {
		succeeded(t, l, j.JobID)
	}
	stop()
	nodes.Wait()
	if job.Outcome != domain.Failure || job.Reason != domain.ReasonRestartLimit || job.Class != domain.ClassCrash || job.Restarts != 3 {
		t.Errorf("ended with %s %s %s after %d restarts", job.Outcome, job.Reason, job.Class, job.Restarts)
	}
	if kills.Load() != 4 {
		t.Errorf("%d processes were killed, want 4", kills.Load())
	}
	events, types := history(t, l, killer)
	want := []domain.EventType{"enqueued", "claimed", "reaped", "claimed", "reaped", "claimed", "reaped", "claimed", "failed"}
	if !slices.Equal(types, want) {
		t.Errorf("history is %v", types)
	}
	seen := map[string]bool{}
	for _, e := range events {
		if e.Type == domain.Claimed {
			seen[e.Actor] = true
		}
	}
	if len(seen) != 4 {
		t.Errorf("it ran at %v, want four names", seen)
	}
	verified(t, l, db)
}

// TestCase06_AnInnocentJob without retries survives a graceful restart, which costs nothing, and a
// kill, which costs one restart.
func TestCase06_AnInnocentJob(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	id := enqueue(t, l, "wait", nil, func(p *ledger.EnqueueParams) { p.Policy = domain.Policy{MaxAttempts: 1, RestartLimit: 3} })
	node := childConfig{URL: db.URL, Name: "node-1", Lease: time.Second}

	first := spawn(t, node)
	receive(t, "the first run", first.lines)
	first.signal(t, syscall.SIGTERM)
	receive(t, "the end of the first process", first.gone)
	if job, _ := l.Job(t.Context(), id); job.State != domain.Waiting || job.Attempt != 0 || job.Restarts != 0 {
		t.Errorf("after a graceful restart the job is %s with %d attempts and %d restarts", job.State, job.Attempt, job.Restarts)
	}
	second := spawn(t, node)
	receive(t, "the second run", second.lines)
	second.signal(t, syscall.SIGKILL)
	receive(t, "the end of the second process", second.gone)

	third := spawn(t, node) // under the same name: it must not keep the old lease alive
	receive(t, "the third run", third.lines)
	job := succeeded(t, l, id)
	if job.Attempt != 1 || job.Restarts != 1 {
		t.Errorf("it took %d attempts and %d restarts, want one each", job.Attempt, job.Restarts)
	}
	if _, types := history(t, l, id); !slices.Equal(slices.DeleteFunc(types, func(e domain.EventType) bool { return e == domain.Pinged }),
		[]domain.EventType{"enqueued", "claimed", "released", "claimed", "reaped", "claimed", "completed"}) {
		t.Errorf("history is %v", types)
	}
	third.signal(t, syscall.SIGTERM)
	receive(t, "the end of the third process", third.gone)
	verified(t, l, db)
}
