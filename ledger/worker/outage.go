package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// outageEvery is how often an outage is told of, be it one that lasts or one that comes and goes.
const outageEvery = 10 * time.Second

// What a worker has the database do again and again, as its log and Healthy name it.
const (
	doesClaim  = "claim"
	doesPing   = "ping"
	doesReport = "report outcomes"
	doesReap   = "reap"
	doesShow   = "show this worker"
	doesDrain  = "look for what is left"
	doesListen = "listen"
)

// outages turns the errors of all loops into few lines: one when something stops working, one every ten
// seconds while anything does not, and one when everything works again. An outage that begins within ten
// seconds of the last line is told of when they are over, if it still lasts.
type outages struct {
	log *slog.Logger

	mu     sync.Mutex
	broken map[string]trouble // by what does not work
	since  time.Time          // when the first of them stopped working
	errors int                // since then
	told   time.Time          // the last line
	open   bool               // this outage has been told of
	count  int64              // of outages
}

// trouble is one thing that does not work.
type trouble struct {
	since, last time.Time
	err         error // the last
}

func newOutages(log *slog.Logger) *outages { return &outages{log: log, broken: map[string]trouble{}} }

// failed notes that something does not work. The errors of a worker that is being stopped are no news.
func (o *outages) failed(ctx context.Context, what string, err error) {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if len(o.broken) == 0 {
		o.since, o.errors, o.open = now, 0, false
		o.count++
	}
	t, known := o.broken[what]
	if !known {
		t.since = now
	}
	t.last, t.err = now, err
	o.broken[what] = t
	o.errors++
	if !o.told.IsZero() && now.Sub(o.told) < outageEvery {
		return
	}
	o.told, o.open = now, true
	o.log.LogAttrs(ctx, slog.LevelWarn, "the database does not do what it is asked, trying again", slog.String("what", o.what()),
		slog.Any("error", err), slog.Int("errors", o.errors), slog.Duration("for", now.Sub(o.since)))
}

// over notes that something works, or that it is not needed any more.
func (o *outages) over(ctx context.Context, what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, broken := o.broken[what]; !broken {
		return
	}
	delete(o.broken, what)
	if len(o.broken) > 0 || !o.open {
		return
	}
	o.told = time.Now()
	o.log.LogAttrs(ctx, slog.LevelInfo, "the database works again", slog.Int("errors", o.errors), slog.Duration("after", o.told.Sub(o.since)))
}

// what does not work.
func (o *outages) what() string {
	return strings.Join(slices.Sorted(maps.Keys(o.broken)), ", ")
}

// of is the newest trouble with one of the given things, nil if they work.
func (o *outages) of(what ...string) (err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var newest time.Time
	for _, w := range what {
		if t, broken := o.broken[w]; broken && t.last.After(newest) {
			newest = t.last
			err = fmt.Errorf("%s has not worked for %s: %w", w, time.Since(t.since).Round(time.Millisecond), t.err)
		}
	}
	return err
}

func (o *outages) counted() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.count
}

// A worker tells of at most tellMost single jobs in tellEvery, however many have the same trouble.
const (
	tellMost  = 8
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
