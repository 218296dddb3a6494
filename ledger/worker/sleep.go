package worker

import (
	"context"
	"log/slog"
	"time"

	"github.com/jobledger/jobledger/ledger"
)

// A worker that finds nothing looks again after as long as it has been since it last found a job, and
// after deepAfter only once in each Poll, or when it is woken. So a transaction that was open when
// nobody was to be woken is found out soon after its commit, and the price is small.
const (
	deepAfter = time.Second
	// watches is for how long it watches before it says that it sleeps: notifications are for jobs
	// that come more slowly. The looks meanwhile are from ... to apart.
	watches             = 30 * time.Millisecond
	lookFirst, lookMost = time.Millisecond, 5 * time.Millisecond
	// What it says of itself is believed so long, and said again when half of that is over. A worker that
	// was killed is named, or keeps others from being named, until then.
	watchLasts, sleepLasts = 2 * time.Second, time.Minute
	// tired is how long it may be without room before it takes back what it said and wakes others in its
	// place; it does not say that it watches again within relieved.
	tired, relieved = 10 * time.Millisecond, time.Second
)

// rest is what the claim loop knows of its rest.
type rest struct {
	said   said
	found  time.Time // when it last found a job
	room   time.Time // when it last had more room than there were jobs
	relief time.Time // when it last woke others in its place
}

// said is what it has told the ledger of itself; the zero value is nothing.
type said struct {
	watching bool
	until    time.Time // by this machine's clock, a little early
	lasts    time.Duration
	ear      int64 // the connection of the listener under which it was said
}

// stale reports whether it must be said again, under this connection.
func (s said) stale(ear int64) bool {
	return s.ear != ear || time.Until(s.until) < s.lasts/2
}

// takeRest lets a worker that found nothing wait for more. It watches, then says that it sleeps, claims
// once more, and then waits for its next poll or to be woken. A worker without ears only polls.
func (w *Worker) takeRest(ctx, life context.Context) {
	defer func() { w.rest.room = time.Now() }()
	ear, idle := w.listener.hears(), time.Since(w.rest.found)
	switch {
	case ear == 0:
		w.getUp(life)
		w.nap(ctx, life)
	case idle < watches:
		if said := w.rest.said; (!said.watching || said.stale(ear)) && time.Since(w.rest.relief) > relieved {
			w.say(life, ear, true)
		}
		w.pause(ctx, min(w.cfg.Poll, max(lookFirst, min(idle, lookMost))))
	case w.rest.said.watching || w.rest.said.stale(ear):
		if !w.say(life, ear, false) {
			w.nap(ctx, life)
		}
	case idle < deepAfter:
		w.pause(ctx, min(w.cfg.Poll, idle))
	default:
		w.nap(ctx, life)
	}
}

// say tells the ledger that the worker watches or sleeps.
func (w *Worker) say(life context.Context, ear int64, watching bool) bool {
	ctx, cancel := context.WithTimeout(life, claimTimeout)
	defer cancel()
	s := said{watching: watching, lasts: sleepLasts, ear: ear}
	if watching {
		s.lasts = watchLasts
	}
	s.until = time.Now().Add(s.lasts)
	number, err := w.l.Sleep(ctx, ledger.SleepParams{Worker: w.cfg.Name, Tags: w.cfg.Tags, Lasting: s.lasts, Watching: watching})
	if err != nil {
		// It only polls, then. A database that is away is told of by the claims.
		w.log.LogAttrs(life, slog.LevelDebug, "cannot say that it sleeps", slog.Any("error", err))
		w.rest.said = said{}
		return false
	}
	w.listener.number.Store(int64(number))
	w.rest.said = s
	return true
}

// getUp takes back what it has said, if anything. When that fails it lapses by itself.
func (w *Worker) getUp(life context.Context) {
	if w.rest.said == (said{}) {
		return
	}
	w.rest.said = said{}
	ctx, cancel := context.WithTimeout(life, claimTimeout)
	defer cancel()
	if _, err := w.l.Sleep(ctx, ledger.SleepParams{Worker: w.cfg.Name, Tags: w.cfg.Tags}); err != nil {
		w.log.LogAttrs(life, slog.LevelDebug, "cannot say that it is awake", slog.Any("error", err))
	}
}

// handOver wakes others in place of a worker that watched or slept and has no room for more: nobody
// else was named for what it may have left.
func (w *Worker) handOver(life context.Context) {
	if w.rest.said == (said{}) {
		return
	}
	w.getUp(life) // or it would name itself
	w.rest.relief = time.Now()
	ctx, cancel := context.WithTimeout(life, claimTimeout)
	defer cancel()
	if err := w.l.Wake(ctx, w.cfg.Tags...); err != nil {
		w.log.LogAttrs(life, slog.LevelDebug, "cannot wake others", slog.Any("error", err))
	}
}

// nap sleeps until the next poll, until it is woken, or until its own reaper has taken back a job: it
// may have done so just after the claim that found nothing.
func (w *Worker) nap(ctx, life context.Context) {
	w.setState(ledger.Sleeping)
	defer w.setState(ledger.Working)
	poll := time.NewTimer(jittered(w.cfg.Poll))
	defer poll.Stop()
	for {
		var again <-chan time.Time
		if s := w.rest.said; s != (said{}) {
			again = time.After(time.Until(s.until) - s.lasts/2)
		}
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
			return
		case <-w.reaper.due:
			return
		case <-w.listener.woken:
			w.stats.woken.Add(1)
			return
		case <-again:
			if !w.say(life, w.rest.said.ear, false) {
				return
			}
		}
	}
}

// pause is a short nap.
func (w *Worker) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(jittered(d))
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-w.reaper.due:
	case <-w.listener.woken:
		w.stats.woken.Add(1)
	}
}

// waitPulse waits until a slot or a lease has become free. When that takes long, others are woken.
func (w *Worker) waitPulse(ctx, life context.Context) {
	for {
		var late <-chan time.Time
		if w.rest.said != (said{}) {
			late = time.After(tired - time.Since(w.rest.room))
		}
		select {
		case <-w.pulse:
			return
		case <-ctx.Done():
			return
		case <-late:
			w.handOver(life)
		}
	}
}

// deafen forgets what it was woken for: the claim that follows sees it.
func (w *Worker) deafen() {
	select {
	case <-w.listener.woken:
	default:
	}
}
