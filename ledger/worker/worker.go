// Package worker runs jobs: it claims what is due, keeps the leases alive, calls the handler of each
// kind and reports how the run ended.
//
//	w, err := worker.New(l, worker.Config{Tags: []string{"mail"}, Concurrency: 20})
//	worker.Handle(w, "send", func(ctx context.Context, job worker.Job[Mail]) (Receipt, error) { ... })
//	err = w.Run(ctx) // until ctx is done, then a graceful stop
//
// What holds, and where it is done:
//
//   - A run is reported as done only after the commit of its outcome (finish.go).
//   - Cut off from the database, a worker stops its handlers by its own monotonic clock before their
//     leases end (lease.go). The clock stands still while the machine is suspended, as any does: what
//     such a handler reports afterwards is refused by its generation.
//   - A handler is told to stop by its context; context.Cause says why: ErrCanceled, ErrLeaseLost,
//     ErrTimedOut, ErrStopping or ErrKilled. A handler that does not listen keeps its slot until it
//     ends: Go cannot stop it. Its job is taken back all the same.
//   - While the database is away, outcomes are kept and reported again until it answers (finish.go), and
//     the log has few lines of it (outage.go). Jobs of a claim whose answer was lost are given back (astray.go).
//   - A lease is in one call at a time, be it a ping or its outcome, so that a worker never competes
//     with itself.
//
// A worker seldom has more than three calls to the database under way at once, and never more than
// nine. It needs no more than one connection, never waits for itself and takes turns with its handlers,
// so that these should not hold connections for long (a ping that waits for one is a late ping), or have
// a pool of their own. A handler that has a transaction open and asks the same pool for another
// connection may wait for handlers that do as much: enqueue with EnqueueTx there, not with Enqueue.
//
// Beside the pool it has one connection on which it hears of new jobs (listen.go); without it, it polls.
package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// Config is how a worker works. The zero value is right for production.
type Config struct {
	// Name is the owner of the leases and stands in every event. Two living workers must not share
	// one: they would refuse each other's reports. 1 to 255 bytes of UTF-8 without control
	// characters. Default: host name, process id and a random part, new for each Worker.
	Name string

	// Tags are the labels of the jobs that it claims. Default: the tag "default".
	Tags []string

	// Concurrency is how many handlers run at once (slots). A slot is free as soon as its handler has
	// returned; at most twice as many leases are held, the rest being outcomes on their way. 1 to
	// 4000, default 10.
	Concurrency int

	// Prefetch is how many jobs it claims beyond its free slots. It saves the round trip between two
	// short jobs; the price is that these jobs wait here while another worker could start them, and
	// that their time-out runs meanwhile. 0 to 1000, default 0.
	Prefetch int

	// Lease is how long a claim lasts without a ping. Too short doubles work, too long delays
	// recovery. 1 s to 24 h, default 60 s.
	Lease time.Duration

	// PingEvery is how often leases are extended, and so how soon a handler hears of a cancellation;
	// a lease younger than half of it is left out, unless it has progress to tell. Each ping of a job
	// is an event: 10,000 running jobs with 20 s write 43 million a day, so stay above 5 s in
	// production. At most half of Lease less Margin. Default a third of Lease.
	PingEvery time.Duration

	// Margin is how long before the end of its lease a handler is stopped when no ping has got
	// through: the time that it has to react before another worker may start the job. Default a
	// sixth of Lease.
	Margin time.Duration

	// Poll is how long it sleeps when nothing is due, give or take a fifth, unless it is woken. It is
	// the guarantee: nothing that goes wrong with wake-ups delays a job beyond it. Default 1 s.
	Poll time.Duration

	// ListenURL is where it listens for wake-ups. Behind a transaction pooler, through which none
	// come, give the URL of the database itself. Default: as its ledger's pool connects.
	ListenURL string

	// NoListen saves the connection for wake-ups: an idle worker then finds a job at its next poll.
	NoListen bool

	// ReapEvery is how often its own reaper looks for leases that have ended, of any tag; for its own
	// tags it also looks when it finds nothing to do. Default 5 s.
	ReapEvery time.Duration

	// StopTimeout is how long a graceful stop waits for handlers before it cancels them with
	// ErrStopping. Default 20 s, less than the 30 s that most supervisors wait.
	StopTimeout time.Duration

	// StopGrace is how long canceled handlers have to return before their jobs are released while
	// they still run. Default 5 s.
	StopGrace time.Duration

	// Drain makes Run return once nothing is left: no job of its tags, of a kind that it has a
	// handler for, waits (be it due now, scheduled or to be retried later, on a paused tag too) or
	// runs, here or at another worker. Jobs of other kinds don't count.
	Drain bool

	// Logger gets what people must know: Error when somebody must act, Warn when it recovered by
	// itself, Info for its own life. Errors that last are told once every ten seconds, single jobs
	// in at most eight lines in that time. Default slog.Default().
	Logger *slog.Logger
}

// The limits of Config.
const (
	MaxConcurrency = 4000
	MaxPrefetch    = 1000
)

// Worker runs the jobs of its tags. Register handlers with Handle and middleware with Use, then call
// Run once.
type Worker struct {
	l        *ledger.Ledger
	cfg      Config
	host     string
	log      *slog.Logger
	handlers map[string]Handler
	around   []Middleware
	wrapped  map[string]Handler // handlers inside their middleware, made by Run
	reaper   *Reaper
	listener *listener
	stats    counters
	sparse   sparse
	trouble  *outages

	started atomic.Bool
	ended   atomic.Bool
	reached atomic.Bool // a claim has been answered
	astray  astray      // belongs to who claims
	killed  chan struct{}
	kill    sync.Once // closes killed
	hurried chan struct{}
	hurry   sync.Once // closes hurried
	beating sync.Mutex

	// pulse says that a slot or a lease has become free; the loop of Run alone listens.
	pulse chan struct{}

	rest rest // belongs to the claim loop

	mu       sync.Mutex // guards what follows and the fields of leases
	leases   map[*lease]struct{}
	ready    []*lease // claimed, waiting for a slot; stays empty once stopping
	running  int      // handlers
	reported int      // outcomes that are not committed yet
	state    ledger.WorkerState
	lanes    map[domain.Verb]*lane
	slow     lane
}

// New returns a Worker on l. It asks the database nothing. A *domain.FieldError names an option
// outside its bounds.
func New(l *ledger.Ledger, cfg Config) (*Worker, error) {
	host, _ := os.Hostname() // for people to see
	host = cmp.Or(oneLine(host, domain.MaxNameBytes), "unknown")
	named := cfg.Name != ""
	cfg = cfg.withDefaults(host)
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("new worker: %w", err)
	}
	w := &Worker{
		l: l, cfg: cfg, host: host, log: cfg.Logger.With(slog.String("worker", cfg.Name)),
		handlers: map[string]Handler{}, wrapped: map[string]Handler{}, killed: make(chan struct{}), hurried: make(chan struct{}), pulse: make(chan struct{}, 1),
		leases: map[*lease]struct{}{}, state: ledger.Working,
		lanes: map[domain.Verb]*lane{}, slow: newLane(),
	}
	w.trouble = newOutages(w.log)
	w.astray.named = named
	for _, verb := range outcomeVerbs {
		lane := newLane()
		w.lanes[verb] = &lane
	}
	var err error
	if w.reaper, err = NewReaper(l, ReaperConfig{Actor: cfg.Name, Every: cfg.ReapEvery, Logger: cfg.Logger}); err != nil {
		return nil, fmt.Errorf("new worker: %w", err)
	}
	w.reaper.trouble = w.trouble
	w.listener = newListener(l, cfg.ListenURL, min(cfg.PingEvery, askMost), w.callTimeout(), w.log, w.trouble)
	return w, nil
}

func (c Config) withDefaults(host string) Config {
	if c.Name == "" {
		c.Name = defaultName(host)
	}
	if len(c.Tags) == 0 {
		c.Tags = []string{domain.DefaultTag}
	}
	if c.Concurrency == 0 {
		c.Concurrency = 10
	}
	if c.Lease == 0 {
		c.Lease = domain.DefaultLease
	}
	if c.PingEvery == 0 {
		c.PingEvery = c.Lease / 3
	}
	if c.Margin == 0 {
		c.Margin = c.Lease / 6
	}
	if c.Poll == 0 {
		c.Poll = time.Second
	}
	if c.ReapEvery == 0 {
		c.ReapEvery = 5 * time.Second
	}
	if c.StopTimeout == 0 {
		c.StopTimeout = 20 * time.Second
	}
	if c.StopGrace == 0 {
		c.StopGrace = 5 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// defaultName is unique to this Worker: whoever starts again under an old name would otherwise pass
// as the owner of leases that a process before it held.
func defaultName(host string) string {
	host = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '_'
		}
		return r
	}, host)
	return fmt.Sprintf("%.200s-%d-%.8s", host, os.Getpid(), uuid.NewString())
}

func (c Config) check() error {
	if err := domain.CheckText("name", c.Name, domain.MaxActorBytes); err != nil {
		return err
	}
	if err := domain.CheckNames("tags", c.Tags, 0); err != nil {
		return err
	}
	if err := domain.CheckLease(c.Lease); err != nil {
		return err
	}
	if c.ListenURL != "" {
		if _, err := pgxpool.ParseConfig(c.ListenURL); err != nil {
			return &domain.FieldError{Field: "listen_url", Value: "(not shown)", Want: "a Postgres connection URL"} // it may hold a password
		}
	}
	switch {
	case c.Concurrency < 1 || c.Concurrency > MaxConcurrency:
		return &domain.FieldError{Field: "concurrency", Value: c.Concurrency, Want: "1 to 4000"}
	case c.Prefetch < 0 || c.Prefetch > MaxPrefetch:
		return &domain.FieldError{Field: "prefetch", Value: c.Prefetch, Want: "0 to 1000"}
	case c.Margin < 0 || c.Margin > c.Lease/2:
		return &domain.FieldError{Field: "margin", Value: c.Margin, Want: "0 to half of the lease"}
	case c.PingEvery < time.Millisecond || c.PingEvery > (c.Lease-c.Margin)/2:
		return &domain.FieldError{Field: "ping_every", Value: c.PingEvery, Want: "1ms to half of lease less margin"}
	case c.Poll < time.Millisecond || c.Poll > time.Hour:
		return &domain.FieldError{Field: "poll", Value: c.Poll, Want: "1ms to 1h"}
	case c.StopTimeout < 0:
		return &domain.FieldError{Field: "stop_timeout", Value: c.StopTimeout, Want: "0 or more"}
	case c.StopGrace < 0:
		return &domain.FieldError{Field: "stop_grace", Value: c.StopGrace, Want: "0 or more"}
	}
	return nil
}

// Healthy tells, for readiness checks, why the worker does no work: it has not started, or no claim of
// its has been answered yet; its claims, pings or outcomes don't get through; it has stopped. nil otherwise, also
// when it is busy or has nothing to do. A worker whose database is away recovers by itself: don't restart it
// for that.
func (w *Worker) Healthy() error {
	switch {
	case w.ended.Load():
		return errors.New("worker has stopped")
	case !w.started.Load():
		return errors.New("worker has not started")
	}
	if err := w.trouble.of(doesClaim, doesPing, doesReport); err != nil {
		return err
	}
	if !w.reached.Load() {
		return errors.New("worker has not reached the database yet")
	}
	return nil
}

// Name returns the name under which it holds leases.
func (w *Worker) Name() string { return w.cfg.Name }

// Tags returns the tags whose jobs it claims.
func (w *Worker) Tags() []string { return slices.Clone(w.cfg.Tags) }

// Run claims and runs jobs until ctx is done, or until nothing is left where Config.Drain is set, and
// then stops gracefully: no new claims; handlers have StopTimeout to end and, canceled with
// ErrStopping, StopGrace to return; what has not ended is released, so that others start it at once;
// outcomes are committed. It returns nil, a *StopError if something could not be brought to its end,
// or ErrKilled; or at once a *domain.SchemaError if the ledger is missing or of another release
// (ledger.CheckSchema). Handlers inherit the values of ctx but not its end.
func (w *Worker) Run(ctx context.Context) error {
	if !w.started.CompareAndSwap(false, true) {
		return errors.New("run worker: it was run before")
	}
	if len(w.handlers) == 0 {
		return errors.New("run worker: it has no handler")
	}
	if err := w.fits(ctx); err != nil {
		return err
	}
	// life outlives ctx: what is under way at the stop must come to its end.
	life, die := context.WithCancelCause(context.WithoutCancel(ctx))
	defer die(nil)
	claiming, stopClaiming := context.WithCancel(ctx)
	defer stopClaiming()
	defer context.AfterFunc(life, stopClaiming)()
	w.wrap()

	w.log.LogAttrs(ctx, slog.LevelInfo, "worker starts", slog.Any("tags", w.cfg.Tags), slog.Int("slots", w.cfg.Concurrency))
	reaping, stopReaping := context.WithCancel(life)
	serving, stopServing := context.WithCancel(life)
	listening, stopListening := context.WithCancel(life)
	var loops sync.WaitGroup
	loops.Go(func() {
		select {
		case <-w.killed:
			die(ErrKilled)
		case <-serving.Done():
		}
	})
	loops.Go(func() { _ = w.reaper.Run(reaping) }) // it returns nothing but the end of its context
	if !w.cfg.NoListen {
		loops.Go(func() { w.listener.run(listening) })
	}
	loops.Go(func() { w.beatLoop(serving) })
	w.serve(serving, &loops)

	w.claimLoop(claiming, life)
	w.handOver(life) // what it was woken for is for others
	stopListening()
	w.leaveAstray(life)
	stopReaping()
	err := w.stop(life)
	stopServing()
	loops.Wait()
	w.leave(life)
	w.ended.Store(true)
	w.log.LogAttrs(context.WithoutCancel(ctx), slog.LevelInfo, "worker has stopped", slog.Any("stats", w.Stats()))
	return err
}

// Hurry leaves StopTimeout out of the stop that is under way, or that will be: handlers are canceled with ErrStopping
// at once. What they have done by then is reported, and the rest is released, as ever.
func (w *Worker) Hurry() { w.hurry.Do(func() { close(w.hurried) }) }

// Kill ends Run at once: handlers are canceled with ErrKilled and not waited
// for, nothing is released, outcomes that are not committed are lost. Their jobs are taken back when
// the leases end.
func (w *Worker) Kill() { w.kill.Do(func() { close(w.killed) }) }

// jittered is d give or take a fifth, so that many workers don't act in step.
func jittered(d time.Duration) time.Duration {
	return d - d/5 + rand.N(d*2/5+1)
}

// sleep waits for d, or less if ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
