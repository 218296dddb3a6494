package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// outageEvery is how often an outage that lasts is told of.
const outageEvery = 10 * time.Second

// outage turns errors that repeat into few lines: the first one, one every ten seconds while they
// last, and one when they are over. It belongs to one goroutine.
type outage struct {
	log    *slog.Logger
	what   string // what does not work: "claim"
	since  time.Time
	told   time.Time
	errors int
}

// failed notes one more error. Those of a worker that is being stopped are no news.
func (o *outage) failed(ctx context.Context, err error) {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return
	}
	now := time.Now()
	if o.errors == 0 {
		o.since = now
	}
	o.errors++
	if o.errors > 1 && now.Sub(o.told) < outageEvery {
		return
	}
	o.told = now
	o.log.LogAttrs(ctx, slog.LevelWarn, o.what+" does not work, trying again", slog.Any("error", err),
		slog.Int("errors", o.errors), slog.Duration("for", now.Sub(o.since)))
}

// over notes that it works.
func (o *outage) over(ctx context.Context) {
	if o.errors == 0 {
		return
	}
	o.log.LogAttrs(ctx, slog.LevelInfo, o.what+" works again", slog.Int("errors", o.errors), slog.Duration("after", time.Since(o.since)))
	o.errors = 0
}

// A worker tells of at most tellMost single jobs in tellEvery, however many have the same trouble.
const (
	tellMost  = 20
	tellEvery = 10 * time.Second
)

// sparse lets a few lines through in each period and counts the others.
type sparse struct {
	mu     sync.Mutex
	since  time.Time
	told   int
	untold int
}

// admit reports whether a line may be written, and how many were not since the last one.
func (s *sparse) admit() (ok bool, untold int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.since.IsZero() || now.Sub(s.since) >= tellEvery {
		s.since, s.told = now, 0
	}
	if s.told >= tellMost {
		s.untold++
		return false, 0
	}
	s.told++
	untold, s.untold = s.untold, 0
	return true, untold
}

// tell writes a line about one job, unless there were many just now.
func (w *Worker) tell(level slog.Level, what string, l *lease, attrs ...slog.Attr) {
	ok, untold := w.sparse.admit()
	if !ok {
		return
	}
	attrs = append(attrs, l.logged())
	if untold > 0 {
		attrs = append(attrs, slog.Int("lines_left_out_before", untold))
	}
	w.log.LogAttrs(context.Background(), level, what, attrs...)
}
