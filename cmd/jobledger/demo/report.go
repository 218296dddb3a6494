package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/domain"
)

// report compares the ledger with the direct count, prints what happened and verifies the ledger.
func (d *demo) report(ctx context.Context) error {
	totals, err := d.compare(ctx)
	if err != nil {
		return err
	}
	takenOver, err := d.count(ctx, `SELECT count(DISTINCT job_id) FROM {schema}.job_event WHERE type = 'reaped'`)
	if err != nil {
		return err
	}
	late, err := d.count(ctx, `SELECT count(*) FROM {schema}.job_event WHERE type = 'rejected' AND verb = 'complete'`)
	if err != nil {
		return err
	}
	fmt.Fprintln(d.Out)
	for _, line := range []struct {
		what string
		n    int64
		note string
	}{
		{"success", int64(totals[domain.Success]), "every Go file once"},
		{"failure (dead letters)", int64(totals[domain.Failure]), "the missing paths and the folder"},
		{"canceled", int64(totals[domain.Canceled]), "while waiting, and the pipes while running"},
		{"taken over", takenOver, "jobs of the killed and the frozen worker, begun or not"},
		{"late completions refused", late, "what the thawed worker reported"},
	} {
		fmt.Fprintf(d.Out, "%-26s %6d   %s\n", line.what, line.n, line.note)
	}
	if takenOver == 0 || late == 0 {
		return fmt.Errorf("%d jobs taken over and %d late completions refused: both must have happened", takenOver, late)
	}
	if err := d.printHistory(ctx); err != nil {
		return err
	}
	v, err := d.Ledger.Read().Verify(ctx, d.Pool, nil)
	if err != nil {
		return err
	}
	for _, f := range v.Findings {
		fmt.Fprintf(d.Out, "verify: job %s version %d: %s\n", f.JobID, f.Version, f.Problem)
	}
	if len(v.Findings) > 0 {
		return fmt.Errorf("verify found %d differences", len(v.Findings))
	}
	fmt.Fprintf(d.Out, "\nverify: ok (%d jobs, %d events, %d bodies)\n", v.Jobs, v.Events, v.Bodies)
	return nil
}

// compare checks every ended job against what direct counting found, and every file against its job.
func (d *demo) compare(ctx context.Context) (map[domain.Outcome]int, error) {
	rows, err := d.Pool.Query(ctx, d.sql(`
SELECT c.job_id, c.outcome, a.body, coalesce(r.body, '')
FROM {schema}.job_completed c
JOIN {schema}.job_payload a ON a.job_id = c.job_id AND a.version = 1
LEFT JOIN {schema}.job_payload r ON r.job_id = c.job_id AND r.version = c.result_version`))
	if err != nil {
		return nil, err
	}
	totals := map[domain.Outcome]int{}
	seen := map[string]int{}
	var lines, bytes int64
	var id uuid.UUID
	var outcome, argsText, result string
	_, err = pgx.ForEachRow(rows, []any{&id, &outcome, &argsText, &result}, func() error {
		totals[domain.Outcome(outcome)]++
		var args Args
		if err := json.Unmarshal([]byte(argsText), &args); err != nil {
			return fmt.Errorf("args of job %s: %w", id, err)
		}
		want, isFile := d.want[args.Path]
		if domain.Outcome(outcome) != domain.Success {
			return d.mayFail(id, domain.Outcome(outcome), args.Path, isFile)
		}
		var got Found
		if err := json.Unmarshal([]byte(result), &got); err != nil {
			return fmt.Errorf("result of job %s: %w", id, err)
		}
		if !isFile || got != want {
			return fmt.Errorf("job %s says %+v of %s, counted directly: %+v", id, got, args.Path, want)
		}
		seen[args.Path]++
		lines, bytes = lines+got.Lines, bytes+got.Bytes
		return nil
	})
	if err != nil {
		return nil, err
	}
	var wantLines, wantBytes int64
	for path, want := range d.want {
		if seen[path] != 1 {
			return nil, fmt.Errorf("%s has %d successful jobs, want 1", path, seen[path])
		}
		wantLines, wantBytes = wantLines+want.Lines, wantBytes+want.Bytes
	}
	if lines != wantLines || bytes != wantBytes || totals[domain.Failure] != missing+1 || totals[domain.Canceled] != canceled+pipes {
		return nil, fmt.Errorf("totals differ: %d lines and %d bytes, counted directly %d and %d; outcomes %v", lines, bytes, wantLines, wantBytes, totals)
	}
	fmt.Fprintf(d.Out, "\n%d files, %d lines, %d bytes, all digests: the same as counted directly\n", len(d.want), lines, bytes)
	return totals, nil
}

// mayFail says whether a job was meant to end without success.
func (d *demo) mayFail(id uuid.UUID, outcome domain.Outcome, path string, isFile bool) error {
	_, err := os.Lstat(path)
	meant := outcome == domain.Canceled && (isFile || filepath.Dir(path) == d.temp) ||
		outcome == domain.Failure && (path == d.Dir || errors.Is(err, fs.ErrNotExist))
	if !meant {
		return fmt.Errorf("job %s for %s ended with %s", id, path, outcome)
	}
	return nil
}

// printHistory shows one job that was taken over, from its first event to its last: one whose first
// owner came back, if there is one.
func (d *demo) printHistory(ctx context.Context) error {
	rows, err := d.Pool.Query(ctx, d.sql(`
SELECT e.job_id
FROM {schema}.job_event e
JOIN {schema}.job_completed c ON c.job_id = e.job_id AND c.outcome = 'success'
GROUP BY e.job_id
HAVING bool_or(e.type = 'reaped')
ORDER BY bool_or(e.type = 'rejected') DESC, e.job_id
LIMIT 1`))
	if err != nil {
		return err
	}
	id, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("find a job that was taken over: %w", err)
	}
	events, err := d.Ledger.History(ctx, id)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.Out, "\nhistory of job %s\n", id)
	start := events[0].At
	for _, e := range events {
		note := ""
		if e.Type == domain.Rejected {
			note = fmt.Sprintf("  late %s refused: %s", e.Verb, e.Reason)
		}
		fmt.Fprintf(d.Out, "%4d  %+8.3fs  %-10s generation %d  attempt %d  by %s%s\n",
			e.Version, e.At.Sub(start).Round(time.Millisecond).Seconds(), e.Type, e.Generation, e.Attempt, e.Actor, note)
	}
	return nil
}
