package worker

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/projections"
)

// reasonNoHandler is the reason of a snooze for a kind that this worker has no handler for.
const reasonNoHandler = "no_handler"

const (
	// claimMost bounds one claim, whose answer holds the args of its jobs.
	claimMost = 1000
	// claimTimeout bounds a claim. When its answer is lost the jobs stay claimed until their leases end.
	claimTimeout = 10 * time.Second
	// reapOwnEvery bounds how often a claim that came back short reaps its own tags.
	reapOwnEvery = time.Second
	// The pauses after a claim that others' locks had kept short, from ... to.
	contendedFirst, contendedLongest = time.Millisecond, 100 * time.Millisecond
	// The pauses after errors of the database, from ... to, with jitter.
	retryFirst, retryLongest = 100 * time.Millisecond, 5 * time.Second
	// A kind without a handler is put off, at first and at most.
	noHandlerFirst, noHandlerLongest = time.Second, time.Minute
)

// claimLoop claims for free slots until ctx is done, or, for a draining worker, until nothing is left.
// What it does for the database runs under life: a claim whose answer is not waited for would leave
// its jobs to nobody.
func (w *Worker) claimLoop(ctx, life context.Context) {
	pauses := newBackoff()
	contended := contendedFirst
	var reaped time.Time
	w.rest.found = time.Now() // so that it begins wide awake
	for ctx.Err() == nil {
		n := w.room()
		if n == 0 {
			w.waitPulse(ctx, life)
			continue
		}
		w.deafen()
		claims, err := w.claim(life, n)
		if err != nil {
			w.trouble.failed(life, doesClaim, err)
			sleep(ctx, pauses.NextBackOff())
			continue
		}
		pauses.Reset()
		w.trouble.over(life, doesClaim)
		if ctx.Err() != nil {
			return // what was claimed just now is released by the stop
		}
		w.startReady(life)
		if len(claims.Jobs) > 0 {
			w.rest.found = time.Now()
		}

		switch got := len(claims.Jobs); {
		case got == n:
			contended = contendedFirst
			if time.Since(w.rest.room) > tired {
				w.handOver(life)
			}
		case claims.Contended:
			// Due jobs are there, in the hands of others for a moment: no reason to sleep.
			if got > 0 {
				contended = contendedFirst
			}
			sleep(ctx, rand.N(contended)+contended/2)
			contended = min(2*contended, contendedLongest)
		default:
			contended = contendedFirst
			if time.Since(reaped) >= reapOwnEvery {
				reaped = time.Now()
				if w.reapOwn(life) {
					continue
				}
			}
			if w.cfg.Drain && w.drained(life) {
				return
			}
			w.takeRest(ctx, life)
		}
	}
}

func newBackoff() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = retryFirst, retryLongest
	b.Reset()
	return b
}

// room is how many jobs may be claimed now: as many as can start, or be prefetched, while outcomes
// that are not committed yet stay within the same bound.
func (w *Worker) room() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return min(claimMost, max(0, w.cfg.Concurrency+w.cfg.Prefetch-max(w.running+len(w.ready), w.reported)))
}

// claim takes up to n jobs and admits them. The local end of each lease counts from before the
// statement was sent.
func (w *Worker) claim(ctx context.Context, n int) (ledger.Claims, error) {
	ctx, cancel := context.WithTimeout(ctx, min(claimTimeout, w.cfg.Lease/2))
	defer cancel()
	if err := w.giveBackAstray(ctx); err != nil {
		return ledger.Claims{}, err
	}
	sent := time.Now()
	claims, err := w.l.Claim(ctx, ledger.ClaimParams{Worker: w.cfg.Name, Tags: w.cfg.Tags, Max: n, Lease: w.cfg.Lease})
	w.astray.lost = errors.Is(err, domain.ErrUnknownOutcome)
	if err != nil {
		return claims, err
	}
	w.reached.Store(true)
	for _, job := range claims.Jobs {
		w.admit(job, sent)
		w.astray.known(job)
	}
	w.stats.claimed.Add(int64(len(claims.Jobs)))
	return claims, nil
}

// startReady starts handlers, each in a goroutine of its own, while there are slots and jobs. A job
// of a kind that has no handler here is put off.
func (w *Worker) startReady(life context.Context) {
	for {
		w.mu.Lock()
		if len(w.ready) == 0 || w.running >= w.cfg.Concurrency {
			w.mu.Unlock()
			return
		}
		l := w.ready[0]
		w.ready = w.ready[1:]
		handle, known := w.wrapped[l.job.Kind]
		if known {
			w.running++
			var ctx context.Context
			ctx, l.cancel = context.WithCancelCause(life)
			go w.attempt(ctx, life, l, handle)
		}
		w.mu.Unlock()
		if !known {
			d := noHandlerDelay(l.job)
			w.log.LogAttrs(life, slog.LevelDebug, "no handler for this kind: put off", l.logged(), slog.Duration("delay", d))
			w.over(l, &outcome{verb: domain.VerbSnooze, delay: d, reason: reasonNoHandler})
		}
	}
}

// noHandlerDelay is how long a job of an unknown kind is put off: long enough not to spin, short
// enough that the next worker of a rolling deploy has it soon. It doubles with each claim and is at
// most half of the job's age, whichever is less, so that a job that was retried often before, or that
// was scheduled long ago, starts small too.
func noHandlerDelay(job ledger.Claimed) time.Duration {
	byClaims := noHandlerFirst << min(max(job.Generation-1, 0), 16)
	byAge := job.StartedAt.Sub(job.EnqueuedAt) / 2
	return min(max(min(byClaims, byAge), noHandlerFirst), noHandlerLongest)
}

// reapOwn takes back what has ended of this worker's tags; it reports whether something is due again.
func (w *Worker) reapOwn(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	answers, err := w.l.Reap(ctx, ledger.ReapParams{Actor: w.cfg.Name, Tags: w.cfg.Tags})
	if err != nil {
		return false // the reaper's own loop tells of errors; here it is only the quicker way
	}
	due := false
	for _, a := range answers {
		due = due || a.Event == domain.Reaped
	}
	w.reaper.count(answers)
	return due
}

// drained reports whether nothing is left of this worker's tags and kinds. A job may move while it is
// looked for in one state after the other, so each is looked at twice.
func (w *Worker) drained(ctx context.Context) bool {
	w.mu.Lock()
	busy := len(w.leases) > 0
	w.mu.Unlock()
	if busy {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	for _, state := range []domain.State{domain.Waiting, domain.Running, domain.Waiting, domain.Running} {
		for _, tag := range w.cfg.Tags {
			for kind := range w.handlers {
				jobs, err := w.l.Read().List(ctx, projections.Filter{State: state, Tag: tag, Kind: kind, Limit: 1})
				if err != nil {
					w.trouble.failed(ctx, doesDrain, err)
					return false
				}
				if len(jobs) > 0 {
					return false
				}
			}
		}
	}
	w.trouble.over(ctx, doesDrain)
	return true
}
