package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func workersCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "workers",
		Short: "List the workers that have not said goodbye and were seen within the last day",
		Example: `  jobledger workers
  jobledger workers --json | jq 'select(.seen_ago_seconds > 60)'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(s *session) error { return a.listWorkers(cmd.Context(), s) })
		},
	}
}

func (a *app) listWorkers(ctx context.Context, s *session) error {
	workers, err := s.Read().Workers(ctx)
	if err != nil {
		return err
	}
	if a.json {
		for _, w := range workers {
			if err := a.printJSON(workerOf(w)); err != nil {
				return err
			}
		}
		return nil
	}
	t := newTable(a.stdout, "WORKER", "STATE", "RUNNING", "LEASES", "TAGS", "KINDS", "SEEN", "HOST", "PID")
	for _, w := range workers {
		state := w.State
		if w.Silent() {
			state = "silent"
		}
		t.row(w.Worker, state, fmt.Sprintf("%d/%d", w.Running, w.Slots), fmt.Sprint(w.Leases), clip(strings.Join(w.Tags, ","), 40),
			clip(strings.Join(w.Kinds, ","), 40), span(w.SeenAgo)+" ago", clip(w.Host, 40), fmt.Sprint(w.PID))
	}
	return t.flush()
}
