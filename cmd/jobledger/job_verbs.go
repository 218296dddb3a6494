package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/projections"
)

// jobVerbHelp is what differs between `job cancel` and `job redrive`.
var jobVerbHelp = map[domain.Verb]struct{ short, long, example string }{
	domain.VerbCancel: {
		"Cancel a job, or ask it to stop while it runs",
		`Cancel a job that waits, at once, or ask one that runs to stop: its worker hears of it with its next ping, and from
then on everything but success ends it as canceled. A job that has ended cannot be canceled: exit code 1.`,
		`  jobledger job cancel 01890a5d-ac96-774b-bcce-b302099a8057 --reason "wrong input"`,
	},
	domain.VerbRedrive: {
		"Give a job that failed or was canceled a new life",
		`Give a job that ended with failure, or was canceled, a new life, due now: attempts, restarts and time budget begin
anew, generation and history go on.`,
		`  jobledger job redrive 01890a5d-ac96-774b-bcce-b302099a8057 --reason "fixed in 1.4"`,
	},
}

func jobVerbCommand(a *app, verb domain.Verb) *cobra.Command {
	var reason string
	help := jobVerbHelp[verb]
	cmd := &cobra.Command{
		Use: string(verb) + " ID", Short: help.short, Long: help.long, Example: help.example,
		Args: oneArg("a job ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withJob(cmd, args, func(ctx context.Context, s *session, id uuid.UUID) error {
				act := s.Cancel
				if verb == domain.VerbRedrive {
					act = s.Redrive
				}
				answer, err := act(ctx, id, ledger.ByOperator{Reason: reason})
				if err != nil {
					return asFlags(err)
				}
				if a.json {
					return a.printJSON(answerOf(answer))
				}
				_, err = fmt.Fprintln(a.stdout, answered(answer))
				return err
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the event: one line")
	return cmd
}

// answered says what a verb did, and never more than it did.
func answered(answer ledger.Answer) string {
	switch {
	case answer.Event == domain.CanceledEvent:
		return "canceled"
	case answer.Event == domain.CancelRequested:
		return "cancel requested: it runs, and stops when its worker hears of it"
	case answer.CancelRequested:
		return "cancel was requested before: it runs, and stops when its worker hears of it"
	}
	return string(answer.Event)
}

// The exit codes of `job wait`, beside the usual ones.
const (
	exitFailure  = 3
	exitCanceled = 4
	exitNotEnded = 5
)

func jobWaitCommand(a *app) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait ID",
		Short: "Wait until a job has ended, and print its result",
		Long: `Wait until a job has ended, and print its result on standard output; with --json the whole job.

Exit codes: 0 success, 3 failure, 4 canceled, 5 it has not ended within --timeout; 1 if there is no such job, or it
cannot be read.`,
		Example: `  jobledger job wait 01890a5d-ac96-774b-bcce-b302099a8057
  id=$(jobledger enqueue report) && jobledger job wait "$id" --timeout 5m`,
		Args: oneArg("a job ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("timeout") && timeout <= 0 {
				return wrongUse("give a duration such as 30s, or leave it out to wait for ever", "--timeout: got %s", timeout)
			}
			return a.withJob(cmd, args, func(ctx context.Context, s *session, id uuid.UUID) error {
				return a.waitForJob(ctx, s, id, timeout)
			})
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait at most (default: for ever)")
	return cmd
}

// errWaited is the cause of a wait that has lasted long enough.
var errWaited = errors.New("waited long enough")

func (a *app) waitForJob(ctx context.Context, s *session, id uuid.UUID, timeout time.Duration) error {
	waiting := ctx
	if timeout > 0 {
		var stop context.CancelFunc
		waiting, stop = context.WithTimeoutCause(ctx, timeout, errWaited)
		defer stop()
	}
	job, err := s.Wait(waiting, id)
	switch {
	case err == nil:
		return a.printWaited(job)
	case ctx.Err() == nil && context.Cause(waiting) == errWaited:
		return &cliError{err: fmt.Errorf("job %s has not ended within %s", id, timeout), code: exitNotEnded, hint: "what it does: jobledger job show " + id.String() + a.flagsAgain()}
	}
	return err
}

// printWaited prints what came out, and says by the exit code which outcome it is.
func (a *app) printWaited(job projections.Job) error {
	if a.json {
		if err := a.printJSON(jobOf(job)); err != nil {
			return err
		}
	} else if job.Outcome == domain.Success && job.Result != nil {
		result := []byte(job.Result)
		if isTerminal(a.stdout) {
			result = inertJSON(result)
		}
		if _, err := fmt.Fprintf(a.stdout, "%s\n", result); err != nil {
			return err
		}
	}
	end := &cliError{quiet: a.json, hint: "more: jobledger job show " + job.ID.String() + a.flagsAgain()}
	switch job.Outcome {
	case domain.Success:
		return nil
	case domain.Failure:
		end.code, end.err = exitFailure, fmt.Errorf("job %s ended with failure: %s (%s): %s", job.ID, job.Reason, job.Class, job.Error)
	default:
		end.code, end.err = exitCanceled, fmt.Errorf("job %s was canceled by %s%s", job.ID, job.CanceledBy, withReason(job.CancelReason))
	}
	return end
}
