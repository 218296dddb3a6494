package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/projections"
)

func jobCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "job",
		Short: "One job: show it, its history, why it is as it is; cancel, redrive or wait for it",
		Example: `  jobledger job show 01890a5d-ac96-774b-bcce-b302099a8057
  jobledger job history 01890a5d-ac96-774b-bcce-b302099a8057 --json
  jobledger job explain 01890a5d-ac96-774b-bcce-b302099a8057
  jobledger job wait 01890a5d-ac96-774b-bcce-b302099a8057 --timeout 5m`,
	}
	a.group(cmd)
	cmd.AddCommand(jobShowCommand(a), jobHistoryCommand(a), jobExplainCommand(a), jobVerbCommand(a, domain.VerbCancel), jobVerbCommand(a, domain.VerbRedrive), jobWaitCommand(a))
	return cmd
}

// withJob runs f on an open ledger with the id that is the command's argument.
func (a *app) withJob(cmd *cobra.Command, args []string, f func(ctx context.Context, s *session, id uuid.UUID) error) error {
	id, err := parseID(args[0])
	if err != nil {
		return err
	}
	return a.with(cmd.Context(), func(s *session) error { return f(cmd.Context(), s, id) })
}

func jobShowCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show all that is known about a job now, args, result and error too",
		Example: `  jobledger job show 01890a5d-ac96-774b-bcce-b302099a8057
  jobledger job show 01890a5d-ac96-774b-bcce-b302099a8057 --json | jq .result`,
		Args: oneArg("a job ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withJob(cmd, args, func(ctx context.Context, s *session, id uuid.UUID) error {
				job, err := s.Job(ctx, id)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(jobOf(job))
				}
				now, err := s.now(ctx)
				if err != nil {
					return err
				}
				return showJob(a.stdout, now, job)
			})
		},
	}
}

// showJob prints one fact a line, and then the bodies, indented.
func showJob(out io.Writer, now time.Time, j projections.Job) error {
	t := newTable(out)
	fact := func(name, value string) {
		if value != "" {
			t.row(name, value)
		}
	}
	when := func(name string, at time.Time) {
		if !at.IsZero() {
			fact(name, stamp(at)+"  "+ago(now, at))
		}
	}
	facts := factsOf(j.Facts)
	fact("job", j.ID.String())
	fact("state", stateWord(j)+"  "+detail(now, j))
	fact("kind", j.Kind)
	fact("tag", j.Tag)
	fact("priority", fmt.Sprint(j.Priority))
	fact("attempt", fmt.Sprintf("%d of %d", j.Attempt, j.Policy.MaxAttempts))
	fact("restarts", fmt.Sprintf("%d of %d", j.Restarts, j.Policy.RestartLimit))
	fact("lost lease", string(j.Policy.OnLostLease))
	fact("time-out", span(j.Policy.Timeout))
	fact("generation", fmt.Sprint(j.Generation))
	fact("version", fmt.Sprint(j.Version))
	for _, name := range slices.Sorted(maps.Keys(facts.Labels)) {
		fact("label", name+"="+facts.Labels[name])
	}
	fact("correlation", facts.CorrelationID)
	fact("traceparent", facts.Traceparent)
	when("enqueued", j.EnqueuedAt)
	when("due", j.ScheduledFor)
	fact("worker", j.Worker)
	when("started", j.StartedAt)
	when("pinged", j.PingedAt)
	when("lease until", j.LeaseUntil)
	when("times out", j.TimeoutAt)
	when("ended", j.EndedAt)
	fact("class", string(j.Class))
	fact("reason", j.Reason)
	fact("canceled by", j.CanceledBy)
	fact("because", j.CancelReason)
	if err := t.flush(); err != nil {
		return err
	}
	for _, body := range []struct {
		name, text string
		altered    bool
	}{
		{"args", string(j.Args), false}, {"progress", string(j.Progress), j.ProgressAltered},
		{"result", string(j.Result), j.ResultAltered}, {"last error", j.Error, j.ErrorAltered},
	} {
		if body.altered {
			body.name += " (altered: it could not be stored as it was reported)"
		}
		if body.text != "" {
			fmt.Fprintf(out, "%s:\n", body.name)
			block(out, body.text)
		}
	}
	return nil
}

func jobHistoryCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "history ID",
		Short: "Show every event of a job, from the first to the last",
		Example: `  jobledger job history 01890a5d-ac96-774b-bcce-b302099a8057
  jobledger job history 01890a5d-ac96-774b-bcce-b302099a8057 --json`,
		Args: oneArg("a job ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withJob(cmd, args, func(ctx context.Context, s *session, id uuid.UUID) error {
				events, err := s.History(ctx, id)
				if err != nil {
					return err
				}
				if !a.json {
					return showHistory(a.stdout, events)
				}
				for _, e := range events {
					if err := a.printJSON(eventOf(e)); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

// showHistory prints an event a line, with the time since the first.
func showHistory(out io.Writer, events []domain.Event) error {
	t := newTable(out, "VERSION", "EVENT", "AT", "SINCE", "GEN", "ATTEMPT", "BY", "DETAIL")
	for _, e := range events {
		t.row(fmt.Sprint(e.Version), string(e.Type), stamp(e.At), "+"+span(e.At.Sub(events[0].At)), fmt.Sprint(e.Generation),
			fmt.Sprint(e.Attempt), clip(e.Actor, 60), eventDetail(e))
	}
	return t.flush()
}

// eventDetail is what an event says beyond the columns.
func eventDetail(e domain.Event) string {
	var parts []string
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+" "+value)
		}
	}
	add("verb", string(e.Verb))
	add("kind", e.Kind)
	add("tag", e.Tag)
	add("class", string(e.Class))
	if !e.ScheduledFor.IsZero() && !e.ScheduledFor.Equal(e.At) {
		add("due", stamp(e.ScheduledFor))
	}
	add("lease until", stamp(e.LeaseUntil))
	add("reason", e.Reason)
	if e.Altered {
		parts = append(parts, "body altered")
	}
	if facts := strings.TrimSpace(e.Facts); facts != "" && facts != "{}" && json.Valid([]byte(facts)) {
		add("facts", facts)
	}
	return strings.Join(parts, ", ")
}
