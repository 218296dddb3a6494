package main

import (
	"context"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/projections"
)

func jobExplainCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "explain ID",
		Short: "Say why a job does not run now, or why it ended as it did",
		Long: `Say why a job does not run now, or why it ended as it did: every cause with its time, the most decisive one first.
A cause is a word that programs may rely on, such as tag_paused, no_worker, behind_others or attempts_exhausted.`,
		Example: `  jobledger job explain 01890a5d-ac96-774b-bcce-b302099a8057
  jobledger job explain 01890a5d-ac96-774b-bcce-b302099a8057 --json | jq -r '.causes[0].cause'`,
		Args: oneArg("a job ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withJob(cmd, args, func(ctx context.Context, s *session, id uuid.UUID) error {
				e, err := s.Read().Explain(ctx, s.pool, id)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(explainedOf(e))
				}
				return showExplanation(a.stdout, e)
			})
		},
	}
}

// showExplanation prints the job on one line and a cause on each of the next.
func showExplanation(out io.Writer, e projections.Explanation) error {
	t := newTable(out)
	t.row(e.Job.ID.String(), e.Job.Kind, "tag "+e.Job.Tag, stateWord(e.Job), detail(e.Now, e.Job))
	if err := t.flush(); err != nil {
		return err
	}
	t = newTable(out, "CAUSE", "WHEN", "WHAT")
	for _, b := range e.Causes {
		t.row(string(b.Cause), ago(e.Now, b.At), b.Text)
	}
	return t.flush()
}

// explainedJSON is what `job explain` prints.
type explainedJSON struct {
	JobID   uuid.UUID      `json:"job_id"`
	State   domain.State   `json:"state"`
	Outcome domain.Outcome `json:"outcome,omitempty"`
	Now     time.Time      `json:"now"`
	Causes  []causeJSON    `json:"causes"`
}

type causeJSON struct {
	Cause projections.Cause `json:"cause"`
	At    time.Time         `json:"at,omitzero"`
	Text  string            `json:"text"`
}

func explainedOf(e projections.Explanation) explainedJSON {
	out := explainedJSON{JobID: e.Job.ID, State: e.Job.State, Outcome: e.Job.Outcome, Now: e.Now, Causes: []causeJSON{}}
	for _, b := range e.Causes {
		out.Causes = append(out.Causes, causeJSON{Cause: b.Cause, At: b.At, Text: b.Text})
	}
	return out
}
