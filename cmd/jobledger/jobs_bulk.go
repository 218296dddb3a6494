package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/projections"
)

// bulkPage is how many jobs one statement of a bulk command takes.
const bulkPage = 1000

// bulkHelp is what differs between `jobs cancel` and `jobs redrive`.
var bulkHelp = map[domain.Verb]struct{ short, long, example string }{
	domain.VerbCancel: {
		"Cancel all jobs that a filter chooses",
		`Cancel all jobs that a filter chooses and that have not ended: those that wait end at once, those that run are
asked to stop. Every event carries the id of this one operation.`,
		`  jobledger jobs cancel --tag slow --dry-run
  jobledger jobs cancel --kind report --reason "wrong input"
  jobledger jobs cancel --all`,
	},
	domain.VerbRedrive: {
		"Give all jobs that a filter chooses a new life",
		`Give all jobs that a filter chooses, and that ended with failure or were canceled, a new life, due now. Every
event carries the id of this one operation.`,
		`  jobledger jobs redrive --outcome failure --kind report --reason "fixed in 1.4"
  jobledger jobs redrive --outcome canceled --label team=mail`,
	},
}

func jobsBulkCommand(a *app, verb domain.Verb) *cobra.Command {
	var f filterFlags
	var reason string
	var all, dryRun bool
	help := bulkHelp[verb]
	cmd := &cobra.Command{
		Use: string(verb), Short: help.short, Long: help.long, Example: help.example,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, none, err := f.filter(cmd)
			if err != nil {
				return err
			}
			if none != all {
				return wrongUse("choose jobs with --tag, --kind and the like, or take all of them with --all",
					"jobs %s needs either a filter or --all", verb)
			}
			b := &bulk{app: a, verb: verb, filter: filter, reason: reason}
			b.result.DryRun = dryRun
			return a.with(cmd.Context(), func(s *session) error { return b.run(cmd.Context(), s) })
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the events: one line")
	cmd.Flags().BoolVar(&all, "all", false, "all jobs, without a filter")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only count the jobs that it would take")
	return cmd
}

// bulk is one run of a bulk command.
type bulk struct {
	*app
	verb   domain.Verb
	filter projections.Filter
	reason string
	result bulkJSON
}

// run goes through the matching jobs page by page. Jobs that are enqueued meanwhile are newer than the first page, so
// it ends.
func (b *bulk) run(ctx context.Context, s *session) (err error) {
	if b.result.Operation, err = newOperation(); err != nil {
		return err
	}
	b.result.Refused = map[string]int{}
	b.filter.Limit = bulkPage
	for {
		jobs, err := s.Read().List(ctx, b.filter)
		if err != nil {
			return b.stopped(err)
		}
		if err := b.page(ctx, s, jobs); err != nil {
			return b.stopped(err)
		}
		if len(jobs) < bulkPage {
			break
		}
		b.filter.Before = jobs[len(jobs)-1].ID
	}
	return b.print()
}

// page acts on the jobs of one page that the verb is for; the others match the filter alone.
func (b *bulk) page(ctx context.Context, s *session, jobs []projections.Job) error {
	var ids []uuid.UUID
	for _, j := range jobs {
		if b.isFor(j) {
			ids = append(ids, j.ID)
		}
	}
	b.result.Matched += len(ids)
	if b.result.DryRun {
		return nil
	}
	act := s.CancelMany
	if b.verb == domain.VerbRedrive {
		act = s.RedriveMany
	}
	answers, err := act(ctx, ids, ledger.ByOperator{Reason: b.reason, Operation: b.result.Operation})
	if err != nil {
		return asFlags(err)
	}
	for _, answer := range answers {
		if answer.Err != nil {
			b.result.Refused[code(answer.Err)]++
		} else {
			b.result.Done++
		}
	}
	return nil
}

func (b *bulk) isFor(j projections.Job) bool {
	if b.verb == domain.VerbRedrive {
		return j.State == domain.Ended && j.Outcome != domain.Success
	}
	return j.State != domain.Ended
}

// stopped says how far it had come.
func (b *bulk) stopped(err error) error {
	if b.result.Done == 0 {
		return err
	}
	return fmt.Errorf("after %s: %w", plural(int64(b.result.Done), "job"), err)
}

func (b *bulk) print() error {
	if b.json {
		return b.printJSON(b.result)
	}
	done := map[domain.Verb]string{domain.VerbCancel: "canceled or asked to stop", domain.VerbRedrive: "redriven"}[b.verb]
	if b.result.DryRun {
		_, err := fmt.Fprintf(b.stdout, "%s would be %s\n", plural(int64(b.result.Matched), "job"), done)
		return err
	}
	text := fmt.Sprintf("%s %s", plural(int64(b.result.Done), "job"), done)
	for _, why := range slices.Sorted(maps.Keys(b.result.Refused)) {
		text += fmt.Sprintf(", %d refused (%s)", b.result.Refused[why], why)
	}
	_, err := fmt.Fprintf(b.stdout, "%s; operation %s\n", text, b.result.Operation)
	return err
}
