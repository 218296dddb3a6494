package modeltest

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
)

// snapshot is the ledger around one job: the job's own row in each home, column by column, and what would
// show that any other job had changed.
type snapshot struct{ Own, Others string }

func (g *ground) snapshot(id uuid.UUID) (snapshot, error) {
	var s snapshot
	err := g.db.Pool.QueryRow(g.ctx, `
SELECT json_build_object(
           'queue', (SELECT json_agg(q) FROM jobledger.job_queue q WHERE q.job_id = $1),
           'runtime', (SELECT json_agg(r) FROM jobledger.job_runtime r WHERE r.job_id = $1),
           'completed', (SELECT json_agg(c) FROM jobledger.job_completed c WHERE c.job_id = $1),
           'events', (SELECT json_agg(e ORDER BY e.version) FROM jobledger.job_event e WHERE e.job_id = $1),
           'bodies', (SELECT json_agg(b ORDER BY b.version) FROM jobledger.job_payload b WHERE b.job_id = $1))::text,
       json_build_object(
           'queue', (SELECT ARRAY[count(*), sum(version)] FROM jobledger.job_queue q WHERE q.job_id <> $1),
           'runtime', (SELECT ARRAY[count(*), sum(version)] FROM jobledger.job_runtime r WHERE r.job_id <> $1),
           'completed', (SELECT ARRAY[count(*), sum(version)] FROM jobledger.job_completed c WHERE c.job_id <> $1),
           'events', (SELECT count(*) FROM jobledger.job_event e WHERE e.job_id <> $1),
           'bodies', (SELECT count(*) FROM jobledger.job_payload b WHERE b.job_id <> $1),
           'keys', (SELECT count(*) FROM jobledger.idempotency_key))::text`, id).Scan(&s.Own, &s.Others)
	return s, err
}

// unchanged wants the ledger as it was.
func (g *ground) unchanged(id uuid.UUID, before snapshot) error {
	after, err := g.snapshot(id)
	if err != nil {
		return err
	}
	return same("ledger", after, before)
}

// changed wants the job as the history says, and no other job touched. A refusal may only have raised the
// version.
func (g *ground) changed(id uuid.UUID, before snapshot, want *history) error {
	after, err := g.snapshot(id)
	if err != nil {
		return err
	}
	if after.Others != before.Others {
		return same("other jobs", after.Others, before.Others)
	}
	if err := sameEvents(g.ctx, g.db, g.l, id, want.events, want.bodies); err != nil {
		return err
	}
	got, err := g.l.Job(g.ctx, id)
	if err != nil {
		return errors.Join(err, fmt.Errorf("want %+v", want.job))
	}
	if last := want.events[len(want.events)-1]; last.Type == domain.Rejected {
		if err := onlyVersion(before.Own, after.Own); err != nil {
			return err
		}
	}
	return errors.Join(oneHome(after.Own), sameHome(got, want.job))
}

// rows are a job's home rows as JSON, by home.
type rows struct{ Queue, Runtime, Completed []map[string]any }

func oneHome(own string) error {
	var r rows
	if err := json.Unmarshal([]byte(own), &r); err != nil {
		return err
	}
	if n := len(r.Queue) + len(r.Runtime) + len(r.Completed); n != 1 {
		return fmt.Errorf("the job has %d homes: %s", n, own)
	}
	return nil
}

// onlyVersion wants every column of the home row as it was, but for the version.
func onlyVersion(before, after string) error {
	var b, a rows
	if err := errors.Join(json.Unmarshal([]byte(before), &b), json.Unmarshal([]byte(after), &a)); err != nil {
		return err
	}
	for _, home := range [][]map[string]any{b.Queue, b.Runtime, b.Completed} {
		for _, row := range home {
			row["version"] = row["version"].(float64) + 1
		}
	}
	return same("home row after a refusal", a, b)
}
