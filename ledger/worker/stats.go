package worker

import (
	"log/slog"
	"sync/atomic"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// Stats counts what a worker has done since New. All but Running, Leases, Listening and Sleeping only grow.
type Stats struct {
	Claimed   int64 // jobs it was given
	Succeeded int64
	Retried   int64 // failed attempts that will be retried
	Failed    int64 // dead letters
	Canceled  int64
	Released  int64 // given back unspent
	Snoozed   int64 // put off, for want of a handler too
	Refused   int64 // outcomes that the ledger did not take: another generation or the end of the lease came first
	Repeated  int64 // outcomes whose first report had got through without its answer; counted above too
	Lost      int64 // leases that were lost, or given up because no ping got through
	TimedOut  int64 // runs left to the reaper because they timed out
	Panics    int64 // counted above too
	Pings     int64 // leases pinged
	Reaped    int64 // jobs of any worker that its reaper has taken back
	Astray    int64 // jobs of claims whose answer was lost, given back unspent
	Outages   int64 // times that the database did not do what it was asked, for a moment or longer
	Woken     int64 // sleeps that a notification ended
	Listening bool  // it hears notifications now
	Sleeping  bool  // it waits for its poll or to be woken
	Relistens int64 // times that it had to connect again to hear them
	Running   int   // handlers now
	Leases    int   // held now: running, prefetched, or with an outcome that is not committed yet
}

type counters struct {
	claimed, succeeded, retried, failed, canceled, released, snoozed, refused, repeated, lost, timedOut, panics, pings, astray, woken atomic.Int64
}

// Stats reads the counters. It may be called at any time.
func (w *Worker) Stats() Stats {
	w.mu.Lock()
	running, leases, sleeping := w.running, len(w.leases), w.state == ledger.Sleeping
	w.mu.Unlock()
	c := &w.stats
	return Stats{
		Claimed: c.claimed.Load(), Succeeded: c.succeeded.Load(), Retried: c.retried.Load(), Failed: c.failed.Load(),
		Canceled: c.canceled.Load(), Released: c.released.Load(), Snoozed: c.snoozed.Load(), Refused: c.refused.Load(),
		Repeated: c.repeated.Load(), Lost: c.lost.Load(), TimedOut: c.timedOut.Load(), Panics: c.panics.Load(), Pings: c.pings.Load(),
		Reaped: w.reaper.Reaped(), Astray: c.astray.Load(), Outages: w.trouble.counted(), Woken: c.woken.Load(),
		Listening: w.listener.hears() > 0, Sleeping: sleeping, Relistens: max(0, w.listener.connections()-1), Running: running, Leases: leases,
	}
}

// LogValue is the counters that are not zero, each an attribute of its own.
func (s Stats) LogValue() slog.Value {
	var attrs []slog.Attr
	for _, c := range []struct {
		name string
		n    int64
	}{
		{"claimed", s.Claimed}, {"succeeded", s.Succeeded}, {"retried", s.Retried}, {"failed", s.Failed}, {"canceled", s.Canceled},
		{"released", s.Released}, {"snoozed", s.Snoozed}, {"refused", s.Refused}, {"repeated", s.Repeated}, {"lost", s.Lost},
		{"timed_out", s.TimedOut}, {"panics", s.Panics}, {"pings", s.Pings}, {"reaped", s.Reaped}, {"astray", s.Astray}, {"outages", s.Outages},
		{"woken", s.Woken}, {"relistens", s.Relistens},
		{"running", int64(s.Running)}, {"leases", int64(s.Leases)},
	} {
		if c.n != 0 {
			attrs = append(attrs, slog.Int64(c.name, c.n))
		}
	}
	return slog.GroupValue(attrs...)
}

// count notes how the report of an outcome was answered.
func (c *counters) count(a ledger.Answer) {
	if a.Err != nil {
		c.refused.Add(1)
		return
	}
	if a.Repeated {
		c.repeated.Add(1)
	}
	switch a.Event {
	case domain.Completed:
		c.succeeded.Add(1)
	case domain.Retried:
		c.retried.Add(1)
	case domain.Failed:
		c.failed.Add(1)
	case domain.CanceledEvent:
		c.canceled.Add(1)
	case domain.Released:
		c.released.Add(1)
	case domain.Snoozed:
		c.snoozed.Add(1)
	}
}
