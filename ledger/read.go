package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/projections"
)

// Job reads one job from its home, with its bodies. ErrNotFound if there is none.
func (l *Ledger) Job(ctx context.Context, id uuid.UUID) (projections.Job, error) {
	return l.read.Job(ctx, id)
}

// History reads all events of a job in order. ErrNotFound if there are none.
func (l *Ledger) History(ctx context.Context, id uuid.UUID) ([]domain.Event, error) {
	return l.read.History(ctx, id)
}

// The steps at which Wait looks: it starts quick and grows slow, since a wait may last for days.
const (
	waitFirst   = 20 * time.Millisecond
	waitLongest = 2 * time.Second
)

// Wait returns the job once it has ended, whatever its outcome; the result is in Result, the error
// text in Error. It polls, from every 20 ms to every 2 s, until ctx is done. A job that is redriven
// between two looks is waited for further. ErrNotFound if there is no such job.
func (l *Ledger) Wait(ctx context.Context, id uuid.UUID) (projections.Job, error) {
	for step := waitFirst; ; step = min(step*3/2, waitLongest) {
		job, err := l.read.Job(ctx, id)
		if err != nil {
			return job, fmt.Errorf("wait: %w", err)
		}
		if job.State == domain.Ended {
			return job, nil
		}
		select {
		case <-ctx.Done():
			return job, fmt.Errorf("wait for job %s, which is %s: %w", id, job.State, context.Cause(ctx))
		case <-time.After(step):
		}
	}
}
