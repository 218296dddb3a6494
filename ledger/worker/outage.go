package worker

import (
	"context"
	"errors"
	"log/slog"
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
