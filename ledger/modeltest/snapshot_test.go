package modeltest

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
)

// snapshot is what is stored about a job, column by column, and how many events the ledger ever got.
type snapshot struct {
	Own string
	Seq int64 // of the newest event of any job
}

func (g *ground) snapshot(id uuid.UUID) (snapshot, error) {
	var s snapshot
	err := g.db.Pool.QueryRow(g.ctx, `
SELECT json_build_object(
           'queue', (SELECT json_agg(q) FROM jobledger.job_queue q WHERE q.job_id = $1),
           'runtime', (SELECT json_agg(r) FROM jobledger.job_runtime r WHERE r.job_id = $1),
           'completed', (SELECT json_agg(c) FROM jobledger.job_completed c WHERE c.job_id = $1),
           'events', (SELECT json_agg(e ORDER BY e.version) FROM jobledger.job_event e WHERE e.job_id = $1),
           'bodies', (SELECT json_agg(b ORDER BY b.version) FROM jobledger.job_payload b WHERE b.job_id = $1))::text,
       (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM jobledger.job_event_seq)`, id).Scan(&s.Own, &s.Seq)
	return s, err
}

// unchanged wants everything as it was, also for other jobs: there is no event.
func (g *ground) unchanged(id uuid.UUID, w *watched) error {
	after, err := g.snapshot(id)
	if err != nil {
		return err
	}
	return same("ledger", after, w.stored)
}

// changed wants the job as its history says, and the only event to be its own. A refusal may only have
// raised the version.
func (g *ground) changed(id uuid.UUID, w *watched) error {
	before := w.stored
	var err error
	if w.stored, err = g.snapshot(id); err != nil {
		return err
	}
	if w.stored.Seq != before.Seq+1 {
		return fmt.Errorf("the ledger got %d events, want 1", w.stored.Seq-before.Seq)
	}
	if err := sameEvents(g.ctx, g.db, g.l, id, w.events, w.bodies); err != nil {
		return err
	}
	if w.events[len(w.events)-1].Type == domain.Rejected {
		if err := onlyVersion(before.Own, w.stored.Own); err != nil {
			return err
		}
	}
	return errors.Join(oneHome(w.stored.Own), g.atHome(w.job))
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
