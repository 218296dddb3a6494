package ledger_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/ledger"
)

// TestPingIsHeapOnly: a ping changes no indexed column, so that it costs no index entry. The jobs are few
// enough to leave room in their page for one new version each; how soon pages get room again by pruning
// depends on the oldest snapshot in the whole server.
func TestPingIsHeapOnly(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	const jobs = 8
	enqueueNow(t, l, jobs)
	must(l.Claim(ctx, ledger.ClaimParams{Worker: "w", Max: jobs, Lease: time.Hour}))(t)
	// The counts of the session so far, this transaction included.
	count := func(tx pgx.Tx) (updates, hot int) {
		const query = `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relid = 'jobledger.job_runtime'::regclass`
		must(0, tx.QueryRow(ctx, query).Scan(&updates, &hot))(t)
		return updates, hot
	}
	var updates, hot int
	must(0, pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error {
		const ping = `SELECT count(*) FROM jobledger.ping('w', (SELECT array_agg(job_id) FROM jobledger.job_runtime),
			(SELECT array_agg(generation) FROM jobledger.job_runtime))`
		updatesBefore, hotBefore := count(tx)
		_, err := tx.Exec(ctx, ping)
		updates, hot = count(tx)
		updates, hot = updates-updatesBefore, hot-hotBefore
		return err
	}))(t)
	if updates != jobs || hot != jobs {
		t.Errorf("%d rows were updated, %d of them heap-only; want all %d", updates, hot, jobs)
	}
	verified(t, l, db)
}

// TestIdlePollingTakesNoTransactionID: a thousand idle workers must not burn transaction ids, which run
// out and have to be frozen.
func TestIdlePollingTakesNoTransactionID(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	idle := func(when string) {
		t.Helper()
		must(0, pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error {
			const poll = `SELECT (SELECT count(*) FROM jobledger.claim('w', ARRAY['default', 'elsewhere'])),
				(SELECT count(*) FROM jobledger.reap('r')), (SELECT count(*) FROM jobledger.reap('r', 10, ARRAY['default'])),
				pg_current_xact_id_if_assigned() IS NOT NULL`
			var claimed, reaped, reapedOfTags int
			var assigned bool
			if err := tx.QueryRow(ctx, poll).Scan(&claimed, &reaped, &reapedOfTags, &assigned); err != nil {
				return err
			}
			if claimed+reaped+reapedOfTags != 0 || assigned {
				t.Errorf("%s: polling took %d, %d and %d jobs, transaction id assigned: %t", when, claimed, reaped, reapedOfTags, assigned)
			}
			return nil
		}))(t)
	}
	idle("on an empty ledger")
	running(t, l, "running", time.Hour, 2*time.Hour)
	must(l.EnqueueMany(ctx, []ledger.EnqueueParams{{Kind: "later", Delay: time.Hour}, {Kind: "other", Tag: "other"}, {Kind: "paused", Tag: "elsewhere"}}))(t)
	must(db.Pool.Exec(ctx, `INSERT INTO jobledger.tag_state (tag, paused_at) VALUES ('elsewhere', now())`))(t)
	ended := running(t, l, "ended", time.Hour, 2*time.Hour)
	must(l.Complete(ctx, "w", ledger.Completion{Held: ended}))(t)
	idle("with jobs that run, wait for later, for another tag or for a paused one, or have ended")

	// The control: a claim that finds something does take one.
	var assigned bool
	must(0, pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT (SELECT count(*) FROM jobledger.claim('w', ARRAY['other'])) = 1 AND pg_current_xact_id_if_assigned() IS NOT NULL`).Scan(&assigned)
	}))(t)
	if !assigned {
		t.Error("a claim that took a job has no transaction id: the test sees nothing")
	}
	verified(t, l, db)
}
