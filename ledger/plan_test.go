package ledger_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// What the planner believes of the tables when a session plans the functions for good. A plan must not
// depend on it: autovacuum chooses the moment.
var statistics = []struct {
	name          string
	before, after bool // ANALYZE on the empty, on the filled tables
	crowd         int  // percent of the rows that a test fills in
}{
	{"never_analyzed", false, false, 100},
	{"analyzed_empty", true, false, 100},
	{"analyzed_full", false, true, 100},
	{"small", false, true, 8},
}

// analyze lets the planner look at the homes, or makes sure that it never does.
func analyze(t *testing.T, db *pgtest.DB, now bool) {
	t.Helper()
	for _, table := range []string{"job_queue", "job_runtime", "job_completed"} {
		must(db.Pool.Exec(t.Context(), `ALTER TABLE jobledger.`+table+` SET (autovacuum_enabled = off)`))(t)
		if now {
			must(db.Pool.Exec(t.Context(), `ANALYZE jobledger.`+table))(t)
		}
	}
}

// crowd fills the homes with rows that no test touches, past the enqueueing functions.
func crowd(t *testing.T, db *pgtest.DB, home string, n int, tag, due string) {
	t.Helper()
	columns := map[string][2]string{
		"job_queue":     {`ready`, `due <= jobledger.clock()`},
		"job_runtime":   {`started_at, lease_until, timeout_at, worker`, `now(), now() + interval '1 day', now() + interval '1 day', 'crowd'`},
		"job_completed": {`outcome`, `'failure'`},
	}[home]
	_, err := db.Pool.Exec(t.Context(), fmt.Sprintf(`
		INSERT INTO jobledger.%s (job_id, scheduled_for, enqueued_at, changed_at, version, generation, attempt, restarts, policy_id,
			progress_version, error_version, priority, kind, tag, %s)
		SELECT gen_random_uuid(), due, now(), now(), 1, 0, 0, 0, 1, 0, 0, i %% 100, 'crowd', '%s', %s
		FROM generate_series(1, %d) i, LATERAL (SELECT %s AS due) d`, home, columns[0], tag, columns[1], n, due))
	must(0, err)(t)
}

// lockingCalls are the verbs that may wait, each with the home whose rows it locks.
var lockingCalls = []struct {
	name, home, sql string
}{
	{"complete", "job_runtime", `SELECT count(*) FROM jobledger.complete('w', $1::uuid[], array_fill(1, ARRAY[cardinality($1::uuid[])]))`},
	{"fail", "job_runtime", `SELECT count(*) FROM jobledger.fail('w', $1::uuid[], array_fill(1, ARRAY[cardinality($1::uuid[])]))`},
	{"release", "job_runtime", `SELECT count(*) FROM jobledger.release('w', $1::uuid[], array_fill(1, ARRAY[cardinality($1::uuid[])]))`},
	{"snooze", "job_runtime", `SELECT count(*) FROM jobledger.snooze('w', $1::uuid[], array_fill(1, ARRAY[cardinality($1::uuid[])]), array_fill(interval '1 minute', ARRAY[cardinality($1::uuid[])]))`},
	{"cancel_of_waiting", "job_queue", `SELECT count(*) FROM jobledger.cancel($1)`},
	{"cancel_of_running", "job_runtime", `SELECT count(*) FROM jobledger.cancel($1)`},
	{"redrive", "job_completed", `SELECT count(*) FROM jobledger.redrive($1)`},
}

// TestLockOrder: a batch locks its rows in ascending order of ids, whatever the order of its input and
// whatever the planner believes; so two batches never deadlock. Another session holds the row in the
// middle: when the batch waits for it, the rows below must be locked and the rows above free.
func TestLockOrder(t *testing.T) {
	t.Parallel()
	for _, s := range statistics {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			l, db := newLedger(t)
			analyze(t, db, s.before)
			for _, home := range []string{"job_queue", "job_runtime", "job_completed"} {
				crowd(t, db, home, 5000*s.crowd/100, "crowd", "now()")
			}
			for _, c := range lockingCalls {
				t.Run(c.name, func(t *testing.T) {
					ids := batchIn(t, l, c.home, c.name)
					analyze(t, db, s.after)
					holder, caller := db.Connect(t), db.Connect(t)
					tx := must(holder.Begin(t.Context()))(t)
					middle := len(ids) / 2
					must(0, exactlyOne(t.Context(), tx, `SELECT job_id FROM jobledger.`+c.home+` WHERE job_id = $1 FOR UPDATE`, ids[middle]))(t)
					done := make(chan error, 1)
					go func() {
						_, err := caller.Exec(t.Context(), c.sql, shuffled(ids))
						done <- err
					}()
					db.WaitBlockedBy(t, holder.PgConn().PID(), 1)
					free := must(pgx.CollectRows(must(db.Pool.Query(t.Context(), `SELECT job_id FROM jobledger.`+c.home+`
						WHERE job_id = ANY ($1) ORDER BY job_id FOR UPDATE SKIP LOCKED`, ids))(t), pgx.RowTo[uuid.UUID]))(t)
					if !slices.Equal(free, ids[middle+1:]) {
						t.Errorf("waiting for row %d of %d, %d rows are free; want exactly those above", middle+1, len(ids), len(free))
					}
					must(0, tx.Rollback(t.Context()))(t)
					must(0, <-done)(t)
				})
			}
		})
	}
}

// batchIn returns the ids, ascending, of 30 fresh jobs in a home.
func batchIn(t *testing.T, l *ledger.Ledger, home, tag string) []uuid.UUID {
	t.Helper()
	jobs := make([]ledger.EnqueueParams, 30)
	for i := range jobs {
		jobs[i] = ledger.EnqueueParams{Kind: "batch", Tag: tag, ID: uuid.New()}
	}
	ids := make([]uuid.UUID, len(jobs))
	for i, j := range must(l.EnqueueMany(t.Context(), jobs))(t) {
		ids[i] = j.JobID
	}
	if home == "job_runtime" {
		must(l.Claim(t.Context(), ledger.ClaimParams{Worker: "w", Tags: []string{tag}, Max: len(jobs), Lease: time.Hour}))(t)
	}
	if home == "job_completed" {
		for _, id := range ids { // one by one, so that the table's own order is no help
			must(l.Cancel(t.Context(), id, ledger.ByOperator{}))(t)
		}
	}
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	return ids
}

// shuffled returns ids in an order that is neither up nor down, always the same.
func shuffled(ids []uuid.UUID) []uuid.UUID {
	out := make([]uuid.UUID, len(ids))
	for i := range ids {
		out[i*7%len(ids)] = ids[i] // 7 and the length have no common factor
	}
	return out
}

// TestLockPlan: the order of locks rests on this plan: the sorted input drives a nested loop that probes
// the home by its key. The plans come from auto_explain, a module that comes with Postgres.
func TestLockPlan(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	crowd(t, db, "job_runtime", 400, "crowd", "now()") // where a hash join would be cheaper
	analyze(t, db, true)
	for _, c := range lockingCalls[:4] {
		t.Run(c.name, func(t *testing.T) {
			ids := batchIn(t, l, c.home, c.name)
			for _, p := range explained(t, db, c.sql, ids) {
				if guard := find(p, func(p plan) bool { return p.Type == "ModifyTable" && p.Operation == "Delete" }); guard != nil {
					join := guard.Plans[0]
					if join.Type != "Nested Loop" || join.Plans[0].CTE != "input" || join.Plans[1].Index != c.home+"_pkey" {
						t.Errorf("the guard is a %s of %+v, want a nested loop from input to the key of %s", join.Type, join.Plans, c.home)
					}
					return
				}
			}
			t.Error("no plan with a guard was seen")
		})
	}
}

// plan is a node of EXPLAIN (FORMAT JSON).
type plan struct {
	Type      string `json:"Node Type"`
	Operation string
	CTE       string `json:"CTE Name"`
	Index     string `json:"Index Name"`
	Hit       int    `json:"Shared Hit Blocks"`
	Read      int    `json:"Shared Read Blocks"`
	Plans     []plan
}

// find returns the first node that is asked for, depth first.
func find(p plan, is func(plan) bool) *plan {
	if is(p) {
		return &p
	}
	for _, child := range p.Plans {
		if found := find(child, is); found != nil {
			return found
		}
	}
	return nil
}

// explained runs a statement and returns the plans of all statements inside its function.
func explained(t *testing.T, db *pgtest.DB, text string, args ...any) (plans []plan) {
	t.Helper()
	cfg := must(pgx.ParseConfig(db.URL))(t)
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		var logged struct{ Plan plan }
		if from := slices.Index([]byte(n.Message), '{'); from >= 0 && json.Unmarshal([]byte(n.Message[from:]), &logged) == nil {
			plans = append(plans, logged.Plan)
		}
	}
	conn := must(pgx.ConnectConfig(t.Context(), cfg))(t)
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), `LOAD 'auto_explain'`); err != nil {
		t.Skipf("this Postgres comes without auto_explain: %v", err)
	}
	must(conn.Exec(t.Context(), `SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;
		SET auto_explain.log_format = json; SET auto_explain.log_level = notice; SET client_min_messages = notice`))(t)
	must(conn.Exec(t.Context(), text, args...))(t)
	return plans
}

// TestClaimBuffers: what a claim reads depends on what it takes, not on the 100,000 jobs due later, the
// 20,000 of another tag or the 20,000 that have ended.
func TestClaimBuffers(t *testing.T) {
	t.Parallel()
	for _, s := range statistics {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			l, db := newLedger(t)
			analyze(t, db, s.before)
			crowd(t, db, "job_queue", 100000*s.crowd/100, domain.DefaultTag, `now() + i * interval '1 second' + interval '1 hour'`)
			crowd(t, db, "job_queue", 20000*s.crowd/100, "other", `now() - interval '1 hour'`)
			crowd(t, db, "job_completed", 20000*s.crowd/100, domain.DefaultTag, "now()")
			analyze(t, db, s.after)
			conn := db.Connect(t)
			buffers := func(jobs int) int {
				t.Helper()
				enqueueNow(t, l, jobs)
				var text []byte
				const claim = `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM jobledger.claim('w', ARRAY['default'], 20)`
				must(0, conn.QueryRow(t.Context(), claim).Scan(&text))(t)
				var out []struct{ Plan plan }
				must(0, json.Unmarshal(text, &out))(t)
				return out[0].Plan.Hit + out[0].Plan.Read
			}
			buffers(20) // the first call of a session also reads the catalogue
			for _, c := range []struct{ jobs, limit int }{{20, 800}, {1, 100}, {0, 20}} {
				if got := buffers(c.jobs); got > c.limit {
					t.Errorf("a claim that found %d jobs touched %d buffers, want at most %d", c.jobs, got, c.limit)
				} else {
					t.Logf("a claim that found %d jobs touched %d buffers", c.jobs, got)
				}
			}
		})
	}
}

// enqueueNow adds jobs that are due.
func enqueueNow(t *testing.T, l *ledger.Ledger, n int) {
	t.Helper()
	jobs := make([]ledger.EnqueueParams, n)
	for i := range jobs {
		jobs[i] = ledger.EnqueueParams{Kind: "now", Args: `1`}
	}
	must(l.EnqueueMany(t.Context(), jobs))(t)
}
