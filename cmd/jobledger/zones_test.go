package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/domain"
)

// TestCase25_ZonesEverywhere: process, database and role each have another zone; an instant stays the instant that it is.
func TestCase25_ZonesEverywhere(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	inZones(t, b)
	b.env = append(b.env, "TZ=Asia/Kathmandu")
	due := time.Date(2030, 1, 2, 15, 4, 5, 678901000, time.UTC)
	ids := map[string]uuid.UUID{}
	for name, at := range map[string]string{
		"flag, Z": "2030-01-02T15:04:05.678901Z", "flag, offset": "2030-01-02T20:49:05.678901+05:45", "flag, west": "2030-01-02T04:04:05.678901-11:00",
	} {
		ids[name] = b.enqueued(t, "", "enqueue", "later", "--at", at)
		ids[strings.Replace(name, "flag", "line", 1)] = b.enqueued(t, `{"kind":"later","at":"`+at+`"}`, "enqueue", "--file", "-")
	}
	refused := b.process("enqueue", "later", "--at", "2030-01-02T15:04:05")
	refused.launch(t)
	refused.exits(t, exitWrongUse)
	if want := `error: --at: got "2030-01-02T15:04:05", want a time with its offset`; !strings.HasPrefix(refused.stderr.String(), want) {
		t.Errorf("a time without offset: %s, want %s", refused.stderr.String(), want)
	}
	refused = b.process("enqueue", "--file", "-")
	refused.Stdin = strings.NewReader(`{"kind":"later","at":"2030-01-02T15:04:05"}`)
	refused.launch(t)
	refused.exits(t, exitWrongUse)

	var zone string
	var sqlDefault, sqlZ, sqlLocal uuid.UUID
	const inSQL = `SELECT current_setting('timezone'), jobledger.enqueue('now'), jobledger.enqueue('later', scheduled_for => '2030-01-02 20:49:05.678901+05:45'),
		jobledger.enqueue('later', scheduled_for => '2030-01-03 04:04:05.678901')` // by the session's zone, as all of Postgres does
	if err := b.db.Connect(t).QueryRow(t.Context(), inSQL).Scan(&zone, &sqlDefault, &sqlZ, &sqlLocal); err != nil || zone != "Pacific/Apia" {
		t.Fatalf("zone %s: %v", zone, err)
	}
	ids["SQL"], ids["SQL, zone of the session"] = sqlZ, sqlLocal

	for name, id := range ids {
		shown := b.printed(t, "job", "show", id.String())
		if !strings.Contains(shown, "2030-01-02 15:04:05.678Z") {
			t.Errorf("%s: job show prints\n%s", name, shown)
		}
		var job jobJSON
		if err := json.Unmarshal([]byte(b.printed(t, "job", "show", id.String(), "--json")), &job); err != nil || !job.ScheduledFor.Equal(due) {
			t.Errorf("%s: it is due at %s, want %s (%v)", name, job.ScheduledFor, due, err)
		}
		if history := b.printed(t, "job", "history", id.String(), "--json"); !strings.Contains(history, `"scheduled_for":"2030-01-02T15:04:05.678901Z"`) {
			t.Errorf("%s: history prints %s", name, history)
		}
	}
	now := b.enqueued(t, "", "enqueue", "now")
	b.start(t, "work", "--drain", "--exec", "now=date +%Z").exits(t, 0)
	for _, id := range []uuid.UUID{sqlDefault, now} {
		job := b.job(t, id)
		if job.Outcome != domain.Success || job.EnqueuedAt.Location() != time.UTC || job.StartedAt.Sub(job.EnqueuedAt) > patience || job.EnqueuedAt.After(job.StartedAt) ||
			time.Since(job.EnqueuedAt).Abs() > patience || job.ScheduledFor.After(job.StartedAt) {
			t.Errorf("a job that was due at once: %+v", job.Job)
		}
		if string(job.Result) != `"+0545"` {
			t.Errorf("the command runs in zone %s, want that of its worker", job.Result)
		}
	}
	if out := b.printed(t, "verify"); !strings.HasPrefix(out, "verify: ok") {
		t.Error(out)
	}
}

// inZones gives the database a zone, and the role in it another, which goes before.
func inZones(t *testing.T, b *bench) {
	t.Helper()
	for _, set := range []string{`ALTER DATABASE %s SET timezone = 'America/St_Johns'`, `ALTER ROLE CURRENT_USER IN DATABASE %s SET timezone = 'Pacific/Apia'`} {
		if _, err := b.db.Pool.Exec(t.Context(), fmt.Sprintf(set, b.db.Name)); err != nil {
			t.Fatal(err)
		}
	}
}

// enqueued runs the program as a process of its own and returns the id of the job that it made.
func (b *bench) enqueued(t *testing.T, stdin string, args ...string) uuid.UUID {
	t.Helper()
	p := b.process(append(args, "--json")...)
	p.Stdin = strings.NewReader(stdin)
	p.launch(t)
	p.exits(t, 0)
	var job enqueuedJSON
	if err := json.Unmarshal(p.stdout.Bytes(), &job); err != nil {
		t.Fatal(err)
	}
	return job.JobID
}

// printed is what the program prints as a process of its own.
func (b *bench) printed(t *testing.T, args ...string) string {
	t.Helper()
	p := b.start(t, args...)
	p.exits(t, 0)
	return p.stdout.String()
}

// TestCase25_NoColumnWithoutZone: no instant is stored, taken or returned without its zone.
func TestCase25_NoColumnWithoutZone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const columns = `SELECT format('%s.%s', c.relname, a.attname) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
		WHERE c.relnamespace = 'jobledger'::regnamespace AND a.attnum > 0 AND a.atttypid = ANY ($1::regtype[])
		UNION ALL
		SELECT p.oid::regprocedure::text FROM pg_proc p
		WHERE p.pronamespace = 'jobledger'::regnamespace AND (coalesce(p.proallargtypes, p.proargtypes::oid[]) || p.prorettype) && $1::regtype[]::oid[]`
	for types, want := range map[string]bool{"{timestamp,timestamp[],time,time[],date,date[]}": false, "{timestamptz,timestamptz[]}": true} {
		rows, err := b.db.Pool.Query(t.Context(), columns, types)
		if err != nil {
			t.Fatal(err)
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || (len(found) > 10) != want || !want && len(found) > 0 {
			t.Errorf("%s: %v, %v", types, found, err)
		}
	}
}
