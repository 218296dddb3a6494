package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/jobledger/jobledger/adapters/postgres/embedded"
	"github.com/jobledger/jobledger/ledger/worker"
)

func upCommand(a *app) *cobra.Command {
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run the private Postgres and the reaper in the foreground, until a signal",
		Long: `Run the private Postgres and the reaper in the foreground, until SIGINT or SIGTERM. It prints the URL of the
database as soon as it can be used. With --database-url or DATABASE_URL it runs the reaper alone.`,
		Example: `  jobledger up
  jobledger up --data-dir ./data
  jobledger up --database-url postgres://me@db/app`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			outlivePipes()
			if every < time.Millisecond {
				return wrongUse("give a duration such as 5s", "--reap-every: got %s", every)
			}
			return a.with(cmd.Context(), func(s *session) error { return a.up(cmd.Context(), s, every) })
		},
	}
	cmd.Flags().DurationVar(&every, "reap-every", 5*time.Second, "how often the reaper looks for leases that are over")
	return cmd
}

// up serves until a signal, which is its proper end, or until somebody stops the private Postgres.
func (a *app) up(ctx context.Context, s *session, every time.Duration) error {
	r, err := worker.NewReaper(s.Ledger, worker.ReaperConfig{Actor: a.actor, Every: every, Logger: a.log})
	if err != nil {
		return asFlags(err)
	}
	if err := a.printUp(s); err != nil {
		return err
	}
	serving, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if a.private() {
		go a.watchPostgres(serving, stop)
	}
	if err := r.Run(serving); err != nil && serving.Err() == nil {
		return err
	}
	if ctx.Err() == nil {
		return context.Cause(serving)
	}
	return nil
}

// printUp says that the ledger can be used, and where.
func (a *app) printUp(s *session) error {
	if a.json {
		out := upJSON{Schema: a.schema}
		if a.private() {
			out.URL = s.url
		}
		return a.printJSON(out)
	}
	if !a.private() {
		_, err := fmt.Fprintf(a.stdout, "the reaper runs on schema %s; stop it with ^C\n", inert(a.schema))
		return err
	}
	_, err := fmt.Fprintf(a.stdout, "%s\nPostgres %d and the reaper run, schema %s; stop them with ^C\n", s.url, s.lease.Major(), inert(a.schema))
	return err
}

// watchEvery is how often `up` looks whether its Postgres is still there.
const watchEvery = 2 * time.Second

// watchPostgres ends the service when somebody has stopped the private Postgres (pg stop): it does not come back by
// itself, as it does after a crash.
func (a *app) watchPostgres(ctx context.Context, stop context.CancelCauseFunc) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		status, err := embedded.ReadStatus(a.pgOptions())
		if err == nil && !status.Running {
			stop(failed("start it again: jobledger up"+a.flagsAgain(), "the private Postgres was stopped"))
			return
		}
	}
}
