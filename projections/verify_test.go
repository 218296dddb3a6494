package projections_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/projections"
)

// lives fills a ledger with a job in each state, with bodies and a policy of its own.
func lives(t *testing.T) (*ledger.Ledger, *pgtest.DB) {
	t.Helper()
	db := pgtest.New(t)
	l, err := ledger.New(db.Pool, ledger.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	var jobs []ledger.EnqueueParams
	for _, tag := range []string{"ended", "failed", "running", "waiting"} {
		jobs = append(jobs, ledger.EnqueueParams{Kind: "k", Tag: tag, Args: map[string]int{"amount": 100}, Policy: domain.Policy{MaxAttempts: 1}})
	}
	if _, err := l.EnqueueMany(ctx, jobs); err != nil {
		t.Fatal(err)
	}
	held := map[string]ledger.Held{}
	for _, tag := range []string{"ended", "failed", "running"} {
		claims, err := l.Claim(ctx, ledger.ClaimParams{Worker: "w", Tags: []string{tag}, Lease: time.Hour})
		if err != nil || len(claims.Jobs) != 1 {
			t.Fatalf("claim of %s: %+v, %v", tag, claims, err)
		}
		held[tag] = claims.Jobs[0].Held
	}
	if _, err := l.Complete(ctx, "w", ledger.Completion{Held: held["ended"], Result: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Fail(ctx, "w", ledger.Failure{Held: held["failed"], Error: "no"}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Ping(ctx, ledger.PingParams{Worker: "w", Pings: []ledger.Ping{{Held: held["running"], Progress: 7}}}); err != nil {
		t.Fatal(err)
	}
	return l, db
}

// TestVerify plants one fault of each kind, each in a ledger of its own, and wants it found and named; a
// ledger without a fault has no finding.
func TestVerify(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ plant, want string }{
		"nothing":           {`SELECT 1`, ""},
		"home_missing":      {`DELETE FROM job_queue`, "is in no projection, want waiting"},
		"home_too_many":     {`INSERT INTO job_completed SELECT * FROM (SELECT (jsonb_populate_record(c, jsonb_build_object('job_id', q.job_id))).* FROM job_completed c, job_queue q LIMIT 1) x`, "is in 2 projections"},
		"home_without_past": {`UPDATE job_queue SET job_id = gen_random_uuid()`, "has no event"},
		"field_changed":     {`UPDATE job_queue SET priority = 5`, "Priority is 5, want 0"},
		"lease_changed":     {`UPDATE job_runtime SET lease_until = lease_until + interval '1 hour'`, "LeaseUntil is"},
		"version_gap":       {`DELETE FROM job_event WHERE version = 2 AND job_id = (SELECT job_id FROM job_runtime)`, "version 3 follows version 1"},
		"illegal_event":     {`UPDATE job_event SET type = 'completed' WHERE type = 'claimed' AND job_id = (SELECT job_id FROM job_runtime)`, "completed cannot happen to a job that is waiting"},
		"body_changed":      {`UPDATE job_payload SET body = '{"amount":1}' WHERE version = 1`, "body does not match the digest"},
		"body_gone":         {`DELETE FROM job_payload WHERE version = 1`, "the body of this event is gone"},
		"result_gone":       {`DELETE FROM job_payload WHERE version = 3 AND body = '1'`, "the body of this event is gone"},
		"body_too_many":     {`INSERT INTO job_payload (job_id, version, salt, body) SELECT gen_random_uuid(), 1, gen_random_uuid(), '1'`, "body without an event"},
		"policy_changed":    {`UPDATE policy SET max_attempts = 9 WHERE policy_id > 1`, "its values do not match its digest"},
		"policy_swapped":    {`UPDATE job_queue SET policy_id = 1; UPDATE job_runtime SET policy_id = 1; UPDATE job_completed SET policy_id = 1; UPDATE job_event SET policy_id = 1 WHERE policy_id > 1`, "not the one that the job was enqueued with"},
		"policy_missing":    {`DELETE FROM policy WHERE policy_id > 1`, "is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, db := lives(t)
			conn := db.Connect(t)
			if _, err := conn.Exec(t.Context(), "SET search_path = jobledger; "+c.plant); err != nil {
				t.Fatal(err)
			}
			v, err := l.Read().Verify(t.Context(), db.Pool, nil)
			if err != nil {
				t.Fatal(err)
			}
			found := ""
			for _, f := range v.Findings {
				found += f.JobID.String() + " " + f.Problem + "\n"
			}
			if c.want == "" && found != "" || !strings.Contains(found, c.want) {
				t.Errorf("found %q, want %q", found, c.want)
			}
			if v.Jobs < 4 || v.Events < 9 {
				t.Errorf("looked at %d jobs and %d events", v.Jobs, v.Events)
			}
		})
	}
}

// TestSchemaName: Postgres cuts a name of more than 63 bytes, and that of the views is longer by six.
func TestSchemaName(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{"": false, "a": true, strings.Repeat("y", 57): true, strings.Repeat("y", 58): false, "a_spine": false, "_spine": false, "a_spines": true, "a\x00": false, "a\xff": false, "pg_x": false, "xpg_": true, `Ten ant-"x"`: true} {
		if err := projections.CheckSchema(name); (err == nil) != ok {
			t.Errorf("schema %.20q: %v", name, err)
		}
	}
}
