package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

// reapPage is how many jobs one statement takes back.
const reapPage = 500

func reapCommand(a *app) *cobra.Command {
	var once bool
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "reap",
		Short: "Take back the jobs whose lease or time-out is over",
		Long: `Take back the jobs whose lease or time-out is over, once. Workers and "up" do that all the time, so this is for a
ledger whose workers are elsewhere, or dead. Any number may run at once.`,
		Example: `  jobledger reap
  jobledger reap --once=false --every 10s
  * * * * *  jobledger reap --database-url "$URL"     # in a crontab`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < time.Millisecond {
				return wrongUse("give a duration such as 5s", "--every: got %s", every)
			}
			return a.with(cmd.Context(), func(s *session) error {
				if once {
					return a.reapOnce(cmd.Context(), s)
				}
				return a.reapOn(cmd.Context(), s, every)
			})
		},
	}
	cmd.Flags().BoolVar(&once, "once", true, "one pass; --once=false goes on until a signal")
	cmd.Flags().DurationVar(&every, "every", 5*time.Second, "the time between two passes with --once=false")
	return cmd
}

// reapOnce takes back everything that is due now, and says what became of it.
func (a *app) reapOnce(ctx context.Context, s *session) error {
	if err := s.ExtendEvents(ctx); err != nil {
		return err
	}
	out := reapedJSON{Events: map[domain.EventType]int{}}
	for {
		answers, err := s.Reap(ctx, ledger.ReapParams{Actor: a.actor, Max: reapPage})
		if err != nil {
			return asFlags(err)
		}
		out.Jobs += len(answers)
		for _, answer := range answers {
			out.Events[answer.Event]++
		}
		if len(answers) < reapPage {
			break
		}
	}
	if a.json {
		return a.printJSON(out)
	}
	text := plural(int64(out.Jobs), "job") + " taken back"
	for i, event := range slices.Sorted(maps.Keys(out.Events)) {
		text += fmt.Sprintf("%s%d %s", map[bool]string{true: ": ", false: ", "}[i == 0], out.Events[event], event)
	}
	_, err := fmt.Fprintln(a.stdout, text)
	return err
}

// reapOn goes on until a signal, which is its proper end.
func (a *app) reapOn(ctx context.Context, s *session, every time.Duration) error {
	outlivePipes()
	r, err := worker.NewReaper(s.Ledger, worker.ReaperConfig{Actor: a.actor, Every: every, Logger: a.log})
	if err != nil {
		return err
	}
	if err := r.Run(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}
