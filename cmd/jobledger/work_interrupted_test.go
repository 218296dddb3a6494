package main

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

func TestWorkInterrupted(t *testing.T) {
	t.Parallel()
	t.Run("cancel_kills_the_whole_group", func(t *testing.T) {
		t.Parallel()
		b, pipe := newBench(t), newPipe(t)
		id := b.enqueue(t, ledger.EnqueueParams{Kind: "run"})
		w := b.work(t, pipe.held("(trap '' TERM; echo started >&9; sleep 600) & wait"), "--lease", "3s")
		pipe.says(t, "started")
		if a, err := b.Cancel(t.Context(), id, ledger.ByOperator{Reason: "no more"}); err != nil || a.Event != domain.CancelRequested {
			t.Fatalf("cancel answered %+v, %v", a, err)
		}
		pipe.gone(t)
		if job := b.ended(t, id); job.Outcome != domain.Canceled || job.CancelReason != "no more" {
			t.Errorf("ended with %s (%s)", job.Outcome, job.Error)
		}
		w.signal(t, syscall.SIGTERM)
		w.exits(t, 0)
		b.verified(t)
	})
	t.Run("time_out_kills", func(t *testing.T) {
		t.Parallel()
		b, pipe := newBench(t), newPipe(t)
		id := b.enqueue(t, ledger.EnqueueParams{Kind: "run", Policy: domain.Policy{MaxAttempts: 1, Timeout: time.Second}})
		w := b.work(t, pipe.held("echo started >&9; sleep 600 & wait"), "--drain")
		pipe.says(t, "started")
		pipe.gone(t)
		w.exits(t, 0)
		if job := b.job(t, id); job.Outcome != domain.Failure || job.Class != domain.ClassTimeout {
			t.Errorf("ended with %s, class %s (%s)", job.Outcome, job.Class, job.Error)
		}
	})
	t.Run("what_is_left_in_the_background_is_killed", func(t *testing.T) {
		t.Parallel()
		b, pipe := newBench(t), newPipe(t)
		id := b.enqueue(t, ledger.EnqueueParams{Kind: "run"})
		w := b.work(t, pipe.held("(trap '' TERM HUP; sleep 600) & echo '\"left it\"'"), "--drain")
		pipe.gone(t)
		w.exits(t, 0)
		if job := b.job(t, id); string(job.Result) != `"left it"` {
			t.Errorf("the result is %s", job.Result)
		}
	})
	t.Run("frozen_worker_loses_its_job_and_kills_its_command", func(t *testing.T) {
		t.Parallel()
		b, pipe := newBench(t), newPipe(t)
		id := b.enqueue(t, ledger.EnqueueParams{Kind: "run"})
		command := fmt.Sprintf(`if [ $JOBLEDGER_GENERATION = 1 ]; then %s; else echo '"second"'; fi`, pipe.held("echo started >&9; sleep 600 & wait"))
		first := b.work(t, command, "--lease", "1s")
		pipe.says(t, "started")
		first.signal(t, syscall.SIGSTOP)
		b.work(t, command, "--drain").exits(t, 0)
		first.signal(t, syscall.SIGCONT)
		pipe.gone(t)
		first.signal(t, syscall.SIGTERM)
		first.exits(t, 0)
		job := b.job(t, id)
		if job.Outcome != domain.Success || string(job.Result) != `"second"` || job.Generation != 2 || job.Restarts != 1 {
			t.Errorf("ended with %s, result %s, generation %d, %d restarts", job.Outcome, job.Result, job.Generation, job.Restarts)
		}
		b.verified(t)
	})
	t.Run("cut_off_worker_kills_before_the_lease_ends", func(t *testing.T) {
		t.Parallel()
		b, pipe := newBench(t), newPipe(t)
		id := b.enqueue(t, ledger.EnqueueParams{Kind: "run"})
		w := b.work(t, pipe.held("echo started >&9; sleep 600 & wait"), "--lease", "6s")
		pipe.says(t, "started")
		// A session that is open already stays; the worker's are broken, and it gets no new ones.
		ours := b.db.Connect(t)
		b.allowConnections(t, false)
		if _, err := ours.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'jobledger'`); err != nil {
			t.Fatal(err)
		}
		pipe.gone(t)
		var inTime bool
		if err := ours.QueryRow(t.Context(), `SELECT jobledger.clock() < lease_until FROM jobledger.job_runtime WHERE job_id = $1`, id).Scan(&inTime); err != nil {
			t.Fatal(err)
		}
		b.allowConnections(t, true)
		if !inTime {
			t.Error("the command outlived the lease of its job")
		}
		w.signal(t, syscall.SIGTERM)
		w.exits(t, 0)
	})
}

// allowConnections lets new sessions into the database, or not. That cannot be said from inside of it.
func (b *bench) allowConnections(t *testing.T, yes bool) {
	t.Helper()
	config := b.db.Pool.Config().ConnConfig.Copy()
	config.Database = "postgres"
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), fmt.Sprintf(`ALTER DATABASE %s WITH ALLOW_CONNECTIONS %t`, b.db.Name, yes)); err != nil {
		t.Fatal(err)
	}
}
