package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/jobledger/jobledger/projections"
)

func statusCommand(a *app) *cobra.Command {
	var watch bool
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what is stuck: the oldest jobs, leases past their end, and counts by tag",
		Long: `Show what an operator looks at first: the job that has run for the longest time and the one that could run since
the longest time, leases past their end, jobs that no worker serves, retries, dead letters by reason and kind, and the
jobs of each tag. Success is a share of all jobs that have ended, dead letters and canceled ones included.`,
		Example: `  jobledger status
  jobledger status --watch --every 5s
  jobledger status --json | jq .longest_waiting.for_seconds`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond || every > time.Hour {
				return wrongUse("use 100ms to 1h", "--every: got %s", every)
			}
			return a.with(cmd.Context(), func(s *session) error {
				if !watch {
					return a.status(cmd.Context(), s, "")
				}
				return a.watchStatus(cmd.Context(), s, every)
			})
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "show it again and again, until interrupted; with --json one object a line")
	cmd.Flags().DurationVar(&every, "every", 2*time.Second, "how often, with --watch")
	return cmd
}

// watchStatus draws over what it drew before where a person looks at it.
func (a *app) watchStatus(ctx context.Context, s *session, every time.Duration) error {
	before := ""
	if isTerminal(a.stdout) && !a.json {
		before = "\x1b[H\x1b[2J"
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := a.status(ctx, s, before); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// status prints it once, in one write, so that a screen never shows half of it.
func (a *app) status(ctx context.Context, s *session, before string) error {
	status, err := s.Read().Status(ctx, s.pool)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(statusOf(status))
	}
	var b bytes.Buffer
	b.WriteString(before)
	if err := showStatus(&b, status); err != nil {
		return err
	}
	_, err = a.stdout.Write(b.Bytes())
	return err
}

func showStatus(out io.Writer, s projections.Status) error {
	t := newTable(out)
	t.row("longest running", statusLine(s.LongestRunning, s.Now, "none runs"))
	t.row("longest waiting", statusLine(s.LongestWaiting, s.Now, "none could run"))
	t.row("leases past their end", fmt.Sprint(s.LeasesOver))
	t.row("without a worker", plural(s.Unserved, "due job"))
	t.row("retries", fmt.Sprintf("%d due, %d later", s.RetriesDue, s.RetriesLater))
	t.row("workers", fmt.Sprintf("%d live with %d of %d slots taken, %d silent", s.Workers, s.Occupied, s.Slots, s.Silent))
	success := "no job has ended"
	if rate, ok := s.SuccessRate(); ok {
		success = fmt.Sprintf("%.2f %% of all jobs that have ended", 100*rate)
	}
	t.row("success", success)
	t.row("leases lost", fmt.Sprint(s.Restarts))
	t.row("late reports refused", fmt.Sprint(s.LateReports))
	t.row("replays of keys", fmt.Sprint(s.KeyReplays))
	if err := t.flush(); err != nil {
		return err
	}
	if len(s.Tags) > 0 {
		fmt.Fprintln(out)
		t = newTable(out, "TAG", "DUE", "LATER", "HELD", "RUNNING", "SUCCESS", "FAILURE", "CANCELED")
		for _, g := range s.Tags {
			name := clip(g.Tag, 40)
			if g.Paused {
				name += " (paused)"
			}
			t.row(name, fmt.Sprint(g.Due), fmt.Sprint(g.Later), fmt.Sprint(g.Held), fmt.Sprint(g.Running), fmt.Sprint(g.Success), fmt.Sprint(g.Failure), fmt.Sprint(g.Canceled))
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	if len(s.DeadLetters) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	t = newTable(out, "DEAD LETTERS", "REASON", "KIND")
	for _, d := range s.DeadLetters {
		t.row(fmt.Sprint(d.Jobs), clip(d.Reason, 40), clip(d.Kind, 60))
	}
	return t.flush()
}

// statusLine is a job that stands out, in a line.
func statusLine(j *projections.StatusJob, now time.Time, none string) string {
	if j == nil {
		return none
	}
	text := fmt.Sprintf("%s  job %s  %s  tag %s", span(now.Sub(j.Since)), j.ID, clip(j.Kind, 40), clip(j.Tag, 40))
	if j.Worker == "" {
		return text
	}
	progress := "no progress reported"
	if !j.ProgressAt.IsZero() {
		progress = "progress " + ago(now, j.ProgressAt)
	}
	return text + "  on " + clip(j.Worker, 60) + "  " + progress
}

// statusJSON is what `status` prints.
type statusJSON struct {
	Now            time.Time         `json:"now"`
	LongestRunning *statusJobJSON    `json:"longest_running,omitempty"`
	LongestWaiting *statusJobJSON    `json:"longest_waiting,omitempty"`
	LeasesOver     int64             `json:"leases_over"`
	Unserved       int64             `json:"unserved"`
	RetriesDue     int64             `json:"retries_due"`
	RetriesLater   int64             `json:"retries_later"`
	Restarts       int64             `json:"restarts"`
	LateReports    int64             `json:"late_reports"`
	KeyReplays     int64             `json:"key_replays"`
	Workers        int64             `json:"workers"`
	Silent         int64             `json:"workers_silent"`
	Slots          int64             `json:"slots"`
	Occupied       int64             `json:"slots_occupied"`
	SuccessRate    *float64          `json:"success_rate,omitempty"`
	Tags           []tagStatusJSON   `json:"tags"`
	DeadLetters    []deadLettersJSON `json:"dead_letters"`
}

type statusJobJSON struct {
	JobID      uuid.UUID `json:"job_id"`
	Kind       string    `json:"kind"`
	Tag        string    `json:"tag"`
	Since      time.Time `json:"since"`
	ForSeconds float64   `json:"for_seconds"`
	Worker     string    `json:"worker,omitempty"`
	ProgressAt time.Time `json:"progress_at,omitzero"`
}

type tagStatusJSON struct {
	Tag      string `json:"tag"`
	Paused   bool   `json:"paused"`
	Due      int64  `json:"due"`
	Later    int64  `json:"later"`
	Held     int64  `json:"held"`
	Running  int64  `json:"running"`
	Success  int64  `json:"success"`
	Failure  int64  `json:"failure"`
	Canceled int64  `json:"canceled"`
}

type deadLettersJSON struct {
	Reason string `json:"reason"`
	Kind   string `json:"kind"`
	Jobs   int64  `json:"jobs"`
}

func statusOf(s projections.Status) statusJSON {
	job := func(j *projections.StatusJob) *statusJobJSON {
		if j == nil {
			return nil
		}
		return &statusJobJSON{JobID: j.ID, Kind: j.Kind, Tag: j.Tag, Since: j.Since, ForSeconds: s.Now.Sub(j.Since).Seconds(), Worker: j.Worker, ProgressAt: j.ProgressAt}
	}
	out := statusJSON{
		Now: s.Now, LongestRunning: job(s.LongestRunning), LongestWaiting: job(s.LongestWaiting), LeasesOver: s.LeasesOver, Unserved: s.Unserved,
		RetriesDue: s.RetriesDue, RetriesLater: s.RetriesLater, Restarts: s.Restarts, LateReports: s.LateReports, KeyReplays: s.KeyReplays,
		Workers: s.Workers, Silent: s.Silent, Slots: s.Slots, Occupied: s.Occupied, Tags: []tagStatusJSON{}, DeadLetters: []deadLettersJSON{},
	}
	if rate, ok := s.SuccessRate(); ok {
		out.SuccessRate = &rate
	}
	for _, g := range s.Tags {
		out.Tags = append(out.Tags, tagStatusJSON(g))
	}
	for _, d := range s.DeadLetters {
		out.DeadLetters = append(out.DeadLetters, deadLettersJSON(d))
	}
	return out
}
