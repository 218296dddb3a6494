package ledger_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// TestSpine shows what the views say of one job in each state, and that they say nothing twice.
func TestSpine(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	db.SetClock(t, start)
	ids := map[string]uuid.UUID{}
	for _, tag := range []string{"waiting", "running", "success", "failure", "canceled"} {
		p := ledger.EnqueueParams{Kind: "k", Tag: tag, Args: map[string]string{"for": tag}, Priority: 3, Policy: domain.Policy{Timeout: 2 * time.Hour},
			Origin: domain.Origin{TriggerKind: "webhook", TriggerRef: "ref/" + tag}}
		ids[tag] = must(l.Enqueue(ctx, p))(t).JobID
	}
	held := map[string]ledger.Held{}
	for _, tag := range []string{"running", "success", "failure"} {
		held[tag] = must(l.Claim(ctx, ledger.ClaimParams{Worker: "w-" + tag, Tags: []string{tag}}))(t).Jobs[0].Held
	}
	db.Advance(t, 10*time.Second)
	must(l.Ping(ctx, ledger.PingParams{Worker: "w-running", Pings: []ledger.Ping{{Held: held["running"], Progress: 7}}}))(t)
	must(l.Complete(ctx, "w-success", ledger.Completion{Held: held["success"], Result: "yes"}))(t)
	must(l.Fail(ctx, "w-failure", ledger.Failure{Held: held["failure"], Error: "no", Permanent: true}))(t)
	for _, tag := range []string{"running", "canceled"} {
		must(l.Cancel(ctx, ids[tag], ledger.ByOperator{Actor: "ann", Reason: "not needed"}))(t)
	}
	for query, want := range map[string]string{
		`SELECT tag, running, worker, started_at, canceled_by, cancel_reason, priority, scheduled_for FROM jobledger_spine.job_queue ORDER BY running`: `
			waiting f . . . . 3 2030-01-01 00:00:00+00
			running t w-running 2030-01-01 00:00:00+00 ann not needed 3 2030-01-01 00:00:00+00`,
		`SELECT ping, zombie_timeout, progress FROM jobledger_spine.job_runtime`: `
			2030-01-01 00:00:10+00 00:01:00 7`,
		`SELECT tag, status, result, error, reason, worker, started_at, completed_at, canceled_by, cancel_reason FROM jobledger_spine.job_completed ORDER BY tag`: `
			canceled canceled . . . . . 2030-01-01 00:00:10+00 ann not needed
			failure failure . no permanent w-failure 2030-01-01 00:00:00+00 2030-01-01 00:00:10+00 . .
			success success "yes" . . w-success 2030-01-01 00:00:00+00 2030-01-01 00:00:10+00 . .`,
		`SELECT tag, args, timeout, trigger_kind, trigger_ref, created_at FROM jobledger_spine.job ORDER BY tag LIMIT 2`: `
			canceled {"for":"canceled"} 02:00:00 webhook ref/canceled 2030-01-01 00:00:00+00
			failure {"for":"failure"} 02:00:00 webhook ref/failure 2030-01-01 00:00:00+00`,
		// One row a job and no other, whatever table is its home.
		`SELECT count(*), count(DISTINCT job_id), (SELECT count(*) FROM jobledger_spine.job_queue) + (SELECT count(*) FROM jobledger_spine.job_completed) FROM jobledger_spine.job`: `
			5 5 5`,
	} {
		if got, want := spineRows(t, db.Connect(t), query), strings.ReplaceAll(strings.TrimSpace(want), "\t", ""); got != want {
			t.Errorf("%s gives\n%s\nwant\n%s", query, got, want)
		}
	}
}

// spineRows is a query's answer as text: columns apart by spaces, null as a dot.
func spineRows(t *testing.T, conn *pgx.Conn, query string) string {
	t.Helper()
	results := must(conn.PgConn().Exec(t.Context(), "SET timezone = UTC; "+query).ReadAll())(t)
	var lines []string
	for _, row := range results[len(results)-1].Rows {
		var cells []string
		for _, cell := range row {
			if cell == nil {
				cell = []byte(".")
			}
			cells = append(cells, string(cell))
		}
		lines = append(lines, strings.Join(cells, " "))
	}
	return strings.Join(lines, "\n")
}

// TestSpineIsReadOnly: nobody changes a job through the views, not even the superuser who owns them, and nobody locks
// one.
func TestSpineIsReadOnly(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	must(l.Enqueue(ctx, ledger.EnqueueParams{Kind: "k"}))(t)
	held := must(l.Claim(ctx, ledger.ClaimParams{Worker: "w"}))(t).Jobs[0].Held
	must(l.Enqueue(ctx, ledger.EnqueueParams{Kind: "k"}))(t)
	for _, view := range []string{"job_queue", "job_runtime", "job_completed", "job"} {
		for _, text := range []string{
			`INSERT INTO %s (job_id) VALUES (gen_random_uuid())`,
			`INSERT INTO %s SELECT * FROM %[1]s`,
			`UPDATE %s SET job_id = gen_random_uuid()`,
			`UPDATE %s SET job_id = job_id WHERE false`,
			`DELETE FROM %s`,
			`DELETE FROM %s WHERE false`,
			`MERGE INTO %s v USING (SELECT gen_random_uuid() AS id) n ON v.job_id = n.id WHEN MATCHED THEN DELETE`,
			`TRUNCATE %s`,
			`COPY %s FROM STDIN`,
		} {
			statement := fmt.Sprintf(text, "jobledger_spine."+view)
			_, err := db.Pool.Exec(ctx, statement)
			var pg *pgconn.PgError
			// 42809 is Postgres's word for what cannot be done to any view.
			if !errors.As(err, &pg) || pg.Code != pgerrcode.ObjectNotInPrerequisiteState && pg.Code != pgerrcode.WrongObjectType && pg.Code != pgerrcode.FeatureNotSupported {
				t.Errorf("%s: %v, want it refused", statement, err)
			}
		}
		tx := must(db.Pool.Begin(ctx))(t)
		if _, err := tx.Exec(ctx, "SELECT * FROM jobledger_spine."+view+" FOR UPDATE"); err != nil {
			t.Logf("%s FOR UPDATE: %v", view, err)
		}
		ping := must(l.Ping(ctx, ledger.PingParams{Worker: "w", Pings: []ledger.Ping{{Held: held}}}))(t)
		if ping[0].Err != nil {
			t.Errorf("while somebody reads %s FOR UPDATE: %v", view, ping[0].Err)
		}
		if err := tx.Rollback(ctx); err != nil {
			t.Error(err)
		}
	}
	verified(t, l, db)
}

// TestSpineClaim: what the flag form's claim would pick is what claim gives, ties and paused tags aside.
func TestSpineClaim(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	db.SetClock(t, now)
	for i := range 12 {
		p := ledger.EnqueueParams{Kind: "k", Tag: fmt.Sprintf("t%d", i%3), Priority: i % 4, ScheduledFor: now.Add(time.Duration(i-8) * time.Minute)}
		id := must(l.Enqueue(ctx, p))(t).JobID
		if i%5 == 0 {
			must(l.Cancel(ctx, id, ledger.ByOperator{}))(t)
		}
	}
	tags := []string{"t0", "t1"}
	const peek = `SELECT job_id FROM jobledger_spine.job_queue
		WHERE running = false AND canceled_by IS NULL AND scheduled_for <= jobledger.clock() AND tag = ANY ($1)
		ORDER BY priority DESC NULLS LAST, scheduled_for LIMIT 1`
	picked := 0
	for ; ; picked++ {
		want := must(pgx.CollectRows(must(db.Pool.Query(ctx, peek, tags))(t), pgx.RowTo[uuid.UUID]))(t)
		claims := must(l.Claim(ctx, ledger.ClaimParams{Worker: "w", Tags: tags}))(t)
		if len(claims.Jobs) != len(want) || len(want) > 0 && claims.Jobs[0].JobID != want[0] {
			t.Fatalf("claimed %+v, the flag form picks %v", claims.Jobs, want)
		}
		if len(want) == 0 {
			break
		}
	}
	if picked < 4 {
		t.Errorf("picked %d jobs: the set is too small", picked)
	}
}

// TestSpinePlan: the planner sees through the views, so that asking for one job reads one row and not a table.
func TestSpinePlan(t *testing.T) {
	t.Parallel()
	_, db := newLedger(t)
	for _, view := range []string{"job_queue", "job_runtime", "job_completed", "job"} {
		// An empty table is scanned as a whole for want of anything better; the plan must only be able to do without.
		query := `SET enable_seqscan = off; SET enable_bitmapscan = off; EXPLAIN (FORMAT JSON) SELECT job_id FROM jobledger_spine.` + view + ` WHERE job_id = '018f3a1e-0000-7000-8000-000000000000'`
		text := spineRows(t, db.Connect(t), query)
		if !json.Valid([]byte(text)) || strings.Contains(text, "CTE Scan") || !strings.Contains(text, "Index") || strings.Contains(text, "Seq Scan") {
			t.Errorf("%s: one job costs\n%s", view, text)
		}
	}
}

// TestSpineDocument holds the table of docs/SQL.md against the views.
func TestSpineDocument(t *testing.T) {
	t.Parallel()
	text, _ := sqlDocument(t)
	_, db := newLedger(t)
	const query = `SELECT c.relname, string_agg(a.attname, ' ' ORDER BY a.attnum) FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
		WHERE c.relnamespace = 'jobledger_spine'::regnamespace GROUP BY c.relname`
	views := map[string]string{}
	var view, columns string
	_, err := pgx.ForEachRow(must(db.Pool.Query(t.Context(), query))(t), []any{&view, &columns}, func() error {
		views[view] = columns
		return nil
	})
	if err != nil || len(views) != 4 {
		t.Fatalf("found the views %v, %v", views, err)
	}
	for view, want := range views {
		row := regexp.MustCompile("(?m)^\\| `" + view + "` \\|[^|]*\\|([^|]*)\\|$").FindStringSubmatch(text)
		if row == nil {
			t.Errorf("docs/SQL.md does not list %s", view)
			continue
		}
		if got := strings.Join(strings.FieldsFunc(row[1], func(r rune) bool { return strings.ContainsRune(" `,;", r) }), " "); got != want {
			t.Errorf("docs/SQL.md lists of %s\n%s\nit has\n%s", view, got, want)
		}
	}
}
