package worker

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// ReaperConfig is how a reaper works.
type ReaperConfig struct {
	// Actor is written into the events as who took the leases back. 1 to 255 bytes.
	Actor string
	// Every is how often it looks, give or take a fifth. With the lease it bounds how long a job of a
	// dead worker waits. 1 ms to 1 h, default 5 s.
	Every time.Duration
	// Batch is how many jobs one call takes back; it calls again until there are fewer. 1 to
	// domain.MaxBatch, default 500.
	Batch int
	// Tags limits it to jobs of these tags. Default: all.
	Tags []string
	// Logger gets an Info line for what was taken back and a Warn line for errors that last. Default
	// slog.Default().
	Logger *slog.Logger
}

// Reaper takes back the jobs of workers that are dead or cut off. Any number may run at once, in
// workers and elsewhere.
type Reaper struct {
	l       *ledger.Ledger
	cfg     ReaperConfig
	log     *slog.Logger
	taken   atomic.Int64
	now     chan struct{}
	trouble *outages
	due     chan struct{} // tells the worker around it that a job is due again; it may be asleep
}

const (
	reapTimeout = 30 * time.Second // bounds one call
	extendEvery = time.Hour        // how often event partitions are added
	extendAgain = time.Minute      // and after it could not be done
)

// NewReaper returns a Reaper on l.
func NewReaper(l *ledger.Ledger, cfg ReaperConfig) (*Reaper, error) {
	if cfg.Every == 0 {
		cfg.Every = 5 * time.Second
	}
	if cfg.Batch == 0 {
		cfg.Batch = 500
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("new reaper: %w", err)
	}
	log := cfg.Logger.With(slog.String("reaper", cfg.Actor))
	return &Reaper{l: l, cfg: cfg, log: log, trouble: newOutages(log), now: make(chan struct{}, 1), due: make(chan struct{}, 1)}, nil
}

func (c ReaperConfig) check() error {
	if err := domain.CheckText("actor", c.Actor, domain.MaxActorBytes); err != nil {
		return err
	}
	for _, tag := range c.Tags {
		if err := domain.CheckName("tags", tag); err != nil {
			return err
		}
	}
	switch {
	case c.Every < time.Millisecond || c.Every > time.Hour:
		return &domain.FieldError{Field: "reap_every", Value: c.Every, Want: "1ms to 1h"}
	case c.Batch < 1 || c.Batch > domain.MaxBatch:
		return &domain.FieldError{Field: "batch", Value: c.Batch, Want: "1 to 10000"}
	}
	return nil
}

// Run reaps until ctx ends and returns nil then. Errors don't end it: it logs them, waits longer and
// goes on. Once an hour it also adds event partitions (Ledger.ExtendEvents).
func (r *Reaper) Run(ctx context.Context) error {
	pauses := newBackoff()
	var extended time.Time
	for {
		err := r.all(ctx)
		if err == nil && time.Since(extended) >= extendEvery {
			// A long reader of the events may keep it from it: there are days until it is needed.
			extended = time.Now()
			if err := r.extend(ctx); err != nil {
				extended = extended.Add(extendAgain - extendEvery)
				r.log.LogAttrs(ctx, slog.LevelDebug, "event partitions must be added later", slog.Any("error", err))
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		wait := jittered(r.cfg.Every)
		if err != nil {
			r.trouble.failed(ctx, doesReap, err)
			wait = max(wait, pauses.NextBackOff())
		} else {
			r.trouble.over(ctx, doesReap)
			pauses.Reset()
		}
		r.pause(ctx, wait)
	}
}

// Reaped is how many jobs it has taken back.
func (r *Reaper) Reaped() int64 { return r.taken.Load() }

// all takes back what is due, page by page.
func (r *Reaper) all(ctx context.Context) error {
	for {
		answers, err := r.page(ctx)
		if err != nil {
			return err
		}
		r.count(answers)
		if len(answers) < r.cfg.Batch {
			return nil
		}
	}
}

func (r *Reaper) page(ctx context.Context) ([]ledger.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, reapTimeout)
	defer cancel()
	return r.l.Reap(ctx, ledger.ReapParams{Actor: r.cfg.Actor, Max: r.cfg.Batch, Tags: r.cfg.Tags})
}

// count notes what was taken back.
func (r *Reaper) count(answers []ledger.Answer) {
	if len(answers) == 0 {
		return
	}
	r.taken.Add(int64(len(answers)))
	became := map[domain.EventType]int{}
	for _, a := range answers {
		became[a.Event]++
	}
	if became[domain.Reaped] > 0 {
		select {
		case r.due <- struct{}{}:
		default:
		}
	}
	attrs := []slog.Attr{slog.Int("jobs", len(answers))}
	for event, n := range became {
		attrs = append(attrs, slog.Int(string(event), n))
	}
	r.log.LogAttrs(context.Background(), slog.LevelInfo, "took jobs back", attrs...)
}

func (r *Reaper) extend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reapTimeout)
	defer cancel()
	return r.l.ExtendEvents(ctx)
}

// hurry makes a running reaper look at once.
func (r *Reaper) hurry() {
	select {
	case r.now <- struct{}{}:
	default:
	}
}

func (r *Reaper) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-r.now:
	}
}
