package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/jobledger/jobledger/projections"
)

func verifyCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "verify",
		Short: "Prove that what is stored about every job is what its events say",
		Long: `Fold the events of every job and compare the outcome with its row in the projections; compute the digest of every
args, result, error and progress again. All in one snapshot, so that workers may go on meanwhile.

Exit code 1 at a difference, with a line for each that names the job.`,
		Example: `  jobledger verify
  jobledger verify --json | jq .findings`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(s *session) error { return a.verify(cmd.Context(), s) })
		},
	}
}

func (a *app) verify(ctx context.Context, s *session) error {
	bar := a.progressBar(-1, "verify")
	v, err := s.Read().Verify(ctx, s.pool, func(events int64) { _ = bar.Set64(events) }) // a matter of looks
	endBar(bar)
	if err != nil {
		return err
	}
	if err := a.printVerified(v); err != nil {
		return err
	}
	if len(v.Findings) > 0 {
		return &cliError{err: fmt.Errorf("verify: %s found", plural(int64(len(v.Findings)), "difference")), code: exitFailed, quiet: true}
	}
	return nil
}

func (a *app) printVerified(v projections.Verified) error {
	if a.json {
		out := verifiedJSON{OK: len(v.Findings) == 0, Jobs: v.Jobs, Events: v.Events, Bodies: v.Bodies, More: v.More, Findings: []findingJSON{}}
		for _, f := range v.Findings {
			out.Findings = append(out.Findings, findingJSON{JobID: f.JobID, Version: f.Version, Problem: f.Problem})
		}
		return a.printJSON(out)
	}
	for _, f := range v.Findings {
		about := "job " + f.JobID.String()
		if f.Version > 0 {
			about += fmt.Sprintf(" version %d", f.Version)
		}
		fmt.Fprintf(a.stdout, "verify: %s: %s\n", about, inert(f.Problem))
	}
	counts := fmt.Sprintf("(%s, %s, %s)", plural(v.Jobs, "job"), plural(v.Events, "event"), plural(v.Bodies, "body"))
	if len(v.Findings) == 0 {
		_, err := fmt.Fprintf(a.stdout, "verify: ok %s\n", counts)
		return err
	}
	more := ""
	if v.More {
		more = "more than "
	}
	_, err := fmt.Fprintf(a.stdout, "verify: NOT ok: %s%s %s\n", more, plural(int64(len(v.Findings)), "difference"), counts)
	return err
}
