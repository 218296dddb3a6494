package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/projections"
)

func jobsCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "Many jobs: list, cancel or redrive those that a filter chooses",
		Example: `  jobledger jobs list --state running
  jobledger jobs cancel --tag slow --reason "wrong input"
  jobledger jobs redrive --outcome failure --kind report`,
	}
	a.group(cmd)
	cmd.AddCommand(jobsListCommand(a), jobsBulkCommand(a, domain.VerbCancel), jobsBulkCommand(a, domain.VerbRedrive))
	return cmd
}

// filterFlags choose jobs.
type filterFlags struct {
	state, outcome, kind, tag, worker, label, before string
}

func (f *filterFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.state, "state", "", "waiting, running or ended")
	flags.StringVar(&f.outcome, "outcome", "", "success, failure or canceled")
	flags.StringVar(&f.kind, "kind", "", "what they run")
	flags.StringVar(&f.tag, "tag", "", "the label that workers subscribe to")
	flags.StringVar(&f.worker, "worker", "", "who runs them, or ran them last")
	flags.StringVar(&f.label, "label", "", "name=value")
	flags.StringVar(&f.before, "before", "", "older than the job with this id: the next page")
}

// filter reads the flags. none reports that they choose every job.
func (f *filterFlags) filter(cmd *cobra.Command) (out projections.Filter, none bool, err error) {
	if err := notEmpty(cmd, "state", "outcome", "kind", "tag", "worker", "label", "before"); err != nil {
		return out, false, err
	}
	if err := oneOf("state", f.state, "waiting", "running", "ended"); err != nil {
		return out, false, err
	}
	if err := oneOf("outcome", f.outcome, "success", "failure", "canceled"); err != nil {
		return out, false, err
	}
	if err := f.checkWords(); err != nil {
		return out, false, err
	}
	none = *f == filterFlags{}
	out = projections.Filter{State: domain.State(f.state), Outcome: domain.Outcome(f.outcome), Kind: f.kind, Tag: f.tag, Worker: f.worker, Label: f.label}
	if f.before != "" {
		if out.Before, err = parseID(f.before); err != nil {
			return out, false, err
		}
	}
	return out, none, nil
}

// checkWords refuses what no job can have, before the database is asked.
func (f *filterFlags) checkWords() error {
	name, value, ok := strings.Cut(f.label, "=")
	if f.label != "" && !ok {
		return wrongUse("write it as --label name=value", "--label: got %q", f.label)
	}
	for _, check := range []struct {
		given string
		err   error
	}{
		{f.kind, domain.CheckName("--kind", f.kind)},
		{f.tag, domain.CheckName("--tag", f.tag)},
		{f.worker, domain.CheckText("--worker", f.worker, domain.MaxActorBytes)},
		{f.label, domain.CheckName("--label", name)},
		{f.label, domain.CheckText("--label "+name, value, domain.MaxNameBytes)},
	} {
		if check.given != "" && check.err != nil {
			return check.err
		}
	}
	return nil
}

func jobsListCommand(a *app) *cobra.Command {
	var f filterFlags
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List jobs, newest first",
		Long:  `List jobs, newest first. With --json one object a line, without args, result and error: those are in "job show".`,
		Example: `  jobledger jobs list --state waiting --tag slow
  jobledger jobs list --outcome failure --limit 1000
  jobledger jobs list --label team=mail --json | jq -r .job_id`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, _, err := f.filter(cmd)
			if err != nil {
				return err
			}
			if limit < 1 || limit > 10000 {
				return wrongUse("use 1 to 10000", "--limit: got %d", limit)
			}
			filter.Limit = limit
			return a.with(cmd.Context(), func(s *session) error { return a.listJobs(cmd.Context(), s, filter) })
		},
	}
	f.add(cmd)
	wholeVar(cmd.Flags(), &limit, "limit", 100, "1 to 10000", "how many at most")
	return cmd
}

func (a *app) listJobs(ctx context.Context, s *session, filter projections.Filter) error {
	jobs, err := s.Read().List(ctx, filter)
	if err != nil {
		return err
	}
	if a.json {
		for _, j := range jobs {
			if err := a.printJSON(jobOf(j)); err != nil {
				return err
			}
		}
		return nil
	}
	now, err := s.now(ctx)
	if err != nil {
		return err
	}
	t := newTable(a.stdout, "JOB", "KIND", "TAG", "PRI", "STATE", "ATTEMPT", "ENQUEUED", "DETAIL")
	for _, j := range jobs {
		t.row(j.ID.String(), clip(j.Kind, 40), clip(j.Tag, 30), fmt.Sprint(j.Priority), stateWord(j), fmt.Sprintf("%d/%d", j.Attempt, j.Policy.MaxAttempts),
			ago(now, j.EnqueuedAt), clip(detail(now, j), 80))
	}
	if err := t.flush(); err != nil {
		return err
	}
	if len(jobs) == filter.Limit {
		fmt.Fprintf(a.stderr, "hint: there may be more: --before %s\n", jobs[len(jobs)-1].ID)
	}
	return nil
}

// stateWord is the state, and for a job that has ended the outcome, which says more.
func stateWord(j projections.Job) string {
	switch {
	case j.State == domain.Ended:
		return string(j.Outcome)
	case j.CanceledBy != "":
		return "canceling"
	}
	return string(j.State)
}

// detail says in a few words what matters about a job in its state.
func detail(now time.Time, j projections.Job) string {
	switch {
	case j.State == domain.Waiting && j.ScheduledFor.After(now):
		return "due in " + span(j.ScheduledFor.Sub(now))
	case j.State == domain.Waiting:
		return "due for " + span(now.Sub(j.ScheduledFor))
	case j.State == domain.Running && !j.LeaseUntil.IsZero() && !now.Before(j.LeaseUntil):
		return fmt.Sprintf("lease of %s over for %s", j.Worker, span(now.Sub(j.LeaseUntil)))
	case j.State == domain.Running:
		return fmt.Sprintf("runs for %s on %s", span(now.Sub(j.StartedAt)), j.Worker)
	case j.Outcome == domain.Success:
		return "took " + span(j.EndedAt.Sub(j.StartedAt))
	case j.Outcome == domain.Failure && (j.Reason == domain.ReasonAttemptsExhausted || j.Reason == domain.ReasonLeaseLost):
		return fmt.Sprintf("%s (%s)", j.Reason, j.Class)
	case j.Outcome == domain.Failure:
		return j.Reason // why the last attempt failed adds nothing to a reason of its own
	}
	return "by " + j.CanceledBy + withReason(j.CancelReason)
}

func withReason(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// newOperation is the id that joins the events of one bulk command.
func newOperation() (uuid.UUID, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return id, fmt.Errorf("make operation id: %w", err)
	}
	return id, nil
}
