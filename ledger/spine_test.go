package ledger_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// The predicate by which the flag form finds the jobs of dead workers: as it is written there, with one
// ZOMBIE_TIMEOUT_S for all, here the usual lease; and with the time that each job has, as docs/SQL.md says.
const (
	zombieByConstant = `running = true AND (ping IS NULL OR ping < jobledger.clock() - interval '60 s')`
	zombieByLease    = `running = true AND (ping IS NULL OR ping <= jobledger.clock() - zombie_timeout)`
)

// spineStates is one state a line: how a job gets there, and whether it is a zombie by the constant, a zombie by its
// lease, and taken back by reap. The reason why they differ, where they do, stands in docs/SQL.md.
const spineStates = `
waiting                       |              |                                        | -        | -     | -    |
scheduled_and_not_due         | delay=2h     | wait 1h                                | -        | -     | -    |
waiting_for_days              |              | wait 72h                               | -        | -     | -    |
running_fresh                 |              | claim 60s                              | -        | -     | -    |
lease_ends_in_1us             |              | claim 60s, wait 59.999999s             | -        | -     | -    |
lease_ends_now                |              | claim 60s, wait 60s                    | -        | lease | reap | instant
lease_over_by_1us             |              | claim 60s, wait 60.000001s             | constant | lease | reap |
pinged                        |              | claim 60s, wait 59s, ping 60s, wait 59s| -        | -     | -    |
pinged_lease_ends_now         |              | claim 60s, wait 9s, ping 60s, wait 60s | -        | lease | reap | instant
pinged_lease_over             |              | claim 60s, wait 9s, ping 60s, wait 61s | constant | lease | reap |
short_lease_over              |              | claim 5s, wait 6s                      | -        | lease | reap | length
long_lease_alive              |              | claim 1h, wait 10m                     | constant | -     | -    | length
shortened_by_a_ping           |              | claim 1h, ping 5s, wait 6s             | -        | lease | reap | length
lengthened_by_a_ping          |              | claim 5s, ping 1h, wait 59s            | -        | -     | -    |
timed_out_and_pinged          | timeout=90s  | claim 60s, wait 50s, ping 60s, wait 40s| -        | -     | reap | timeout
timed_out_and_silent          | timeout=30s  | claim 60s, wait 61s                    | constant | lease | reap |
cancel_mark_alive             |              | claim 60s, cancel                      | -        | -     | -    |
cancel_mark_dead              |              | claim 60s, cancel, wait 61s            | constant | lease | reap |
fail_on_lost_lease            | lost=fail    | claim 60s, wait 61s                    | constant | lease | reap |
no_restart_left               | restarts=no  | claim 60s, wait 61s                    | constant | lease | reap |
reconcile_fresh               | lost=reconcile | claim 60s                            | -        | -     | -    |
reconcile_silent              | lost=reconcile | claim 60s, wait 72h                  | constant | -     | -    | reconcile
released                      |              | claim 60s, release, wait 1h            | -        | -     | -    |
snoozed                       |              | claim 60s, snooze, wait 1h             | -        | -     | -    |
retried                       |              | claim 60s, fail, wait 1h               | -        | -     | -    |
taken_back                    |              | claim 60s, wait 1h, reap, wait 1h      | -        | -     | -    |
taken_back_and_claimed        |              | claim 60s, wait 1h, reap, claim 60s    | -        | -     | -    |
taken_back_claimed_dead       |              | claim 60s, wait 1h, reap, claim 60s, wait 61s | constant | lease | reap |
ended_success                 |              | claim 60s, complete, wait 1h           | -        | -     | -    |
ended_failure                 | attempts=1   | claim 60s, fail, wait 1h               | -        | -     | -    |
ended_canceled_waiting        |              | cancel, wait 1h                        | -        | -     | -    |
ended_canceled_running        |              | claim 60s, cancel, fail, wait 1h       | -        | -     | -    |
ended_by_restart_limit        | restarts=no  | claim 60s, wait 61s, reap, wait 1h     | -        | -     | -    |
`

// TestSpineZombies compares, state by state, which jobs the flag form's predicate calls dead with which jobs reap takes
// back. Where they differ, the line names the reason and docs/SQL.md explains it.
func TestSpineZombies(t *testing.T) {
	t.Parallel()
	text, _ := sqlDocument(t)
	l, db := newLedger(t)
	db.SetClock(t, time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	lines := strings.Split(strings.TrimSpace(spineStates), "\n")
	for _, line := range lines {
		cells := strings.Split(line, "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		name, options, steps, why := cells[0], cells[1], cells[2], cells[6]
		want := map[string]bool{"constant": cells[3] != "-", "lease": cells[4] != "-", "reap": cells[5] != "-"}
		s := spineJob{l: l, db: db, tag: name}
		s.enqueue(t, options)
		for step := range strings.SplitSeq(steps, ",") {
			s.step(t, strings.Fields(step))
		}
		got := map[string]bool{"constant": s.zombie(t, zombieByConstant), "lease": s.zombie(t, zombieByLease), "reap": s.reap(t)}
		for what := range want {
			if got[what] != want[what] {
				t.Errorf("%s: %s takes it back: %t, want %t", name, what, got[what], want[what])
			}
		}
		if differ := got["constant"] != got["reap"] || got["lease"] != got["reap"]; differ != (why != "") {
			t.Errorf("%s: they differ: %t, and the reason given is %q", name, differ, why)
		}
		if why != "" && !strings.Contains(text, "**"+why+"**") {
			t.Errorf("docs/SQL.md does not explain the difference **%s**", why)
		}
	}
	verified(t, l, db)
}

// spineJob is the one job of its tag.
type spineJob struct {
	l    *ledger.Ledger
	db   *pgtest.DB
	tag  string
	id   uuid.UUID
	held ledger.Held
}

func (s *spineJob) enqueue(t *testing.T, options string) {
	t.Helper()
	p := ledger.EnqueueParams{Kind: "k", Tag: s.tag}
	name, value, _ := strings.Cut(options, "=")
	switch name {
	case "":
	case "delay":
		p.Delay = must(time.ParseDuration(value))(t)
	case "timeout":
		p.Policy.Timeout = must(time.ParseDuration(value))(t)
	case "lost":
		p.Policy.OnLostLease = domain.OnLostLease(value)
	case "restarts":
		p.Policy.RestartLimit = domain.None
	case "attempts":
		p.Policy.MaxAttempts = 1
	default:
		t.Fatalf("unknown option %s", options)
	}
	s.id = must(s.l.Enqueue(t.Context(), p))(t).JobID
}

// step does one step of a line; each must be done and not refused.
func (s *spineJob) step(t *testing.T, words []string) {
	t.Helper()
	if len(words) == 0 {
		return
	}
	var d time.Duration
	if len(words) > 1 {
		d = must(time.ParseDuration(words[1]))(t)
	}
	ctx := t.Context()
	var answers []ledger.Answer
	var err error
	switch words[0] {
	case "wait":
		s.db.Advance(t, d)
		return
	case "claim":
		claims := must(s.l.Claim(ctx, ledger.ClaimParams{Worker: "w", Tags: []string{s.tag}, Lease: d}))(t)
		if len(claims.Jobs) != 1 {
			t.Fatalf("%s: nothing to claim", s.tag)
		}
		s.held = claims.Jobs[0].Held
		return
	case "ping":
		answers, err = s.l.Ping(ctx, ledger.PingParams{Worker: "w", Lease: d, Pings: []ledger.Ping{{Held: s.held}}})
	case "complete":
		answers, err = s.l.CompleteMany(ctx, "w", []ledger.Completion{{Held: s.held}})
	case "fail":
		answers, err = s.l.FailMany(ctx, "w", []ledger.Failure{{Held: s.held}})
	case "release":
		answers, err = s.l.Release(ctx, "w", s.held)
	case "snooze":
		answers, err = s.l.Snooze(ctx, "w", ledger.Snooze{Held: s.held})
	case "cancel":
		answers, err = s.l.CancelMany(ctx, []uuid.UUID{s.id}, ledger.ByOperator{})
	case "reap":
		if !s.reap(t) {
			t.Fatalf("%s: nothing to reap", s.tag)
		}
		return
	default:
		t.Fatalf("unknown step %v", words)
	}
	if err != nil || len(answers) != 1 || answers[0].Err != nil {
		t.Fatalf("%s: %v answered %+v, %v", s.tag, words, answers, err)
	}
}

func (s *spineJob) reap(t *testing.T) bool {
	t.Helper()
	return len(must(s.l.Reap(t.Context(), ledger.ReapParams{Actor: "reaper", Tags: []string{s.tag}}))(t)) > 0
}

// zombie asks as the flag form does: its reaper joins both tables.
func (s *spineJob) zombie(t *testing.T, predicate string) bool {
	t.Helper()
	const query = `SELECT q.job_id FROM jobledger_spine.job_queue q LEFT JOIN jobledger_spine.job_runtime r USING (job_id) WHERE q.tag = $1 AND `
	ids := must(pgx.CollectRows(must(s.db.Pool.Query(t.Context(), query+predicate, s.tag))(t), pgx.RowTo[uuid.UUID]))(t)
	return len(ids) > 0
}
