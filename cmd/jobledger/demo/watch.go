package demo

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// pollEvery is how often the demo looks at the ledger.
const pollEvery = 10 * time.Millisecond

// waitFor looks until ok says yes or the demo's time is up.
func (d *demo) waitFor(ctx context.Context, what string, ok func() (bool, error)) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		done, err := ok()
		if err != nil || done {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// waitEnded waits until n jobs have their outcome.
func (d *demo) waitEnded(ctx context.Context, n int) error {
	return d.waitFor(ctx, fmt.Sprintf("%d jobs to end", n), func() (bool, error) {
		ended, err := d.count(ctx, `SELECT count(*) FROM {schema}.job_completed`)
		return ended >= int64(n), err
	})
}

// waitHolds waits until a worker holds at least one job.
func (d *demo) waitHolds(ctx context.Context, name string) error {
	return d.waitFor(ctx, name+" to hold a job", func() (bool, error) {
		n, err := d.holds(ctx, name)
		return n > 0, err
	})
}

// holds counts the leases of a worker, jobs on pipes aside: those it holds for good.
func (d *demo) holds(ctx context.Context, name string) (int64, error) {
	return d.count(ctx, `SELECT count(*) FROM {schema}.job_runtime WHERE worker = $1 AND job_id <> ALL ($2)`, name, d.hanging)
}

// atWork counts, after a while, the jobs that a worker has begun with and still holds.
func (d *demo) atWork(ctx context.Context, w process, while time.Duration) (int, error) {
	select {
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-time.After(while):
	}
	rows, err := d.Pool.Query(ctx, d.sql(`SELECT job_id FROM {schema}.job_runtime WHERE worker = $1 AND job_id <> ALL ($2)`), w.name, d.hanging)
	if err != nil {
		return 0, err
	}
	held, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return 0, err
	}
	return w.started.among(held), nil
}

// ids is what a worker process has written.
type ids struct {
	mu   sync.Mutex
	seen map[string]bool
}

// readIDs takes up the lines of r until its end.
func readIDs(r io.ReadCloser) *ids {
	started := &ids{seen: map[string]bool{}}
	go func() {
		defer r.Close()
		for lines := bufio.NewScanner(r); lines.Scan(); {
			started.mu.Lock()
			started.seen[lines.Text()] = true
			started.mu.Unlock()
		}
	}()
	return started
}

func (i *ids) among(held []uuid.UUID) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := 0
	for _, id := range held {
		if i.seen[id.String()] {
			n++
		}
	}
	return n
}

func (d *demo) count(ctx context.Context, text string, args ...any) (int64, error) {
	rows, err := d.Pool.Query(ctx, d.sql(text), args...)
	if err != nil {
		return 0, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64])
}

func (d *demo) sql(text string) string { return strings.ReplaceAll(text, "{schema}", d.Schema) }
