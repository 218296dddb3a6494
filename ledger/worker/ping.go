package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// pingLoop extends all leases in one call every PingEvery, sooner after an error, until ctx ends.
func (w *Worker) pingLoop(ctx context.Context) {
	pauses := newBackoff()
	pauses.MaxInterval = min(retryLongest, w.cfg.PingEvery)
	pauses.InitialInterval = min(retryFirst, pauses.MaxInterval)
	pauses.Reset()
	for wait := jittered(w.cfg.PingEvery); ; {
		sleep(ctx, wait)
		if ctx.Err() != nil {
			return
		}
		wait = jittered(w.cfg.PingEvery)
		if w.countLeases() == 0 {
			w.trouble.over(ctx, doesPing) // nothing to ping
			continue
		}
		more, err := w.pingDue(ctx)
		if more {
			wait /= 10
		}
		if err != nil {
			w.trouble.failed(ctx, doesPing, err)
			wait = pauses.NextBackOff()
			continue
		}
		w.trouble.over(ctx, doesPing)
		pauses.Reset()
	}
}

// pingDue pings the leases whose time has come. They are marked only when there is a connection: a
// handler that waits for the mark to go, with a transaction of its own open, may be the one who has
// the last.
func (w *Worker) pingDue(ctx context.Context) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, w.callTimeout())
	defer cancel()
	var c pingCall
	var over chan struct{}
	answers, err := w.l.PingWhenConnected(ctx, w.pingParams(nil), func() []ledger.Ping {
		var batch []*lease
		batch, over, more = w.takeForPing()
		c = w.newPingCall(batch)
		return c.pings
	})
	if over == nil {
		return false, err
	}
	defer w.pinged(c.batch, over)
	if err = c.check(answers, err); err != nil {
		w.giveUpProgress(ctx, c.batch, err)
		return more, err
	}
	w.heardAll(c, answers)
	return more, nil
}

// giveUpProgress forgets a progress that the database finds fault with, and says whether it was that:
// it must not cost the leases.
func (w *Worker) giveUpProgress(ctx context.Context, batch []*lease, err error) bool {
	if !isDataError(err) {
		return false
	}
	w.mu.Lock()
	for _, l := range batch {
		l.unsent = false
	}
	w.mu.Unlock()
	w.log.LogAttrs(ctx, slog.LevelError, "progress cannot be stored", slog.Any("error", err))
	return true
}

// takeForPing marks and returns the leases to ping: of running handlers and of outcomes that were sent
// in vain, older than half an interval or with progress to tell. over is to be closed by pinged. more
// says that there are others, whose outcomes are being sent once more just now.
func (w *Worker) takeForPing() (batch []*lease, over chan struct{}, more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	over = make(chan struct{})
	for l := range w.leases {
		if l.lost || l.inTx || (time.Since(l.renewed) < w.cfg.PingEvery/2 && !l.unsent) {
			continue
		}
		if l.calling {
			more = more || l.stuck
			continue
		}
		l.calling, l.pinging = true, over
		batch = append(batch, l)
	}
	return batch, over, more
}

// pinged hands on the outcomes that have come up while their leases were being pinged.
func (w *Worker) pinged(batch []*lease, over chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(over)
	for _, l := range batch {
		l.calling, l.pinging = false, nil
		if l.outcome != nil && !l.stuck {
			w.enqueue(l)
		}
	}
}

// pingCall is one call for leases that are marked.
type pingCall struct {
	batch []*lease
	pings []ledger.Ping
	told  []json.RawMessage // the progress that goes with it
	sent  time.Time
}

func (w *Worker) newPingCall(batch []*lease) pingCall {
	c := pingCall{batch: batch, pings: make([]ledger.Ping, len(batch)), told: make([]json.RawMessage, len(batch))}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, l := range batch {
		c.pings[i].Held = l.held()
		if l.unsent {
			c.told[i] = l.progress
			c.pings[i].Progress = l.progress
			if l.altered {
				c.pings[i].Progress = ledger.Altered{Value: l.progress}
			}
		}
	}
	c.sent = time.Now()
	return c
}

func (w *Worker) pingParams(pings []ledger.Ping) ledger.PingParams {
	return ledger.PingParams{Worker: w.cfg.Name, Lease: w.cfg.Lease, Pings: pings}
}

// check wants an answer for each lease.
func (c pingCall) check(answers []ledger.Answer, err error) error {
	if err == nil && len(answers) != len(c.batch) {
		return fmt.Errorf("ping: got %d answers for %d jobs", len(answers), len(c.batch))
	}
	return err
}

// heardAll acts on the answers.
func (w *Worker) heardAll(c pingCall, answers []ledger.Answer) {
	w.stats.pings.Add(int64(len(c.batch)))
	for i, a := range answers {
		w.heard(c.batch[i], a, c.sent, c.told[i])
	}
}

// heard acts on the answer to the ping of one lease.
func (w *Worker) heard(l *lease, a ledger.Answer, sent time.Time, told json.RawMessage) {
	switch {
	case a.Err == nil:
		w.mu.Lock()
		w.extend(l, sent)
		if told != nil && bytes.Equal(l.progress, told) {
			l.unsent = false
		}
		w.mu.Unlock()
		if a.CancelRequested {
			w.interrupt(l, ErrCanceled)
		}
	case errors.Is(a.Err, domain.ErrBusy):
		// Somebody has the row locked; the lease stands as it was.
	default:
		w.mu.Lock()
		l.lost = true
		w.mu.Unlock()
		cause := ErrLeaseLost
		if errors.Is(a.Err, domain.ErrTimedOut) {
			cause = ErrTimedOut
		}
		w.interrupt(l, cause)
	}
}

// tellProgress sends what the next ping would have carried for runs that end before it: the next
// attempt shall start from there.
func (w *Worker) tellProgress(ctx context.Context, batch []*lease) error {
	w.mu.Lock()
	batch = slices.DeleteFunc(slices.Clone(batch), func(l *lease) bool { return !l.unsent || l.lost })
	w.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, w.callTimeout())
	defer cancel()
	c := w.newPingCall(batch)
	answers, err := w.l.Ping(ctx, w.pingParams(c.pings))
	if err = c.check(answers, err); err != nil {
		if w.giveUpProgress(ctx, batch, err) {
			return nil
		}
		return err
	}
	w.heardAll(c, answers)
	return nil
}

// beatLoop shows the worker to people, every PingEvery and at least every half a minute.
func (w *Worker) beatLoop(ctx context.Context) {
	pauses := newBackoff()
	for {
		wait := min(jittered(w.cfg.PingEvery), 30*time.Second)
		if err := w.beat(ctx); err != nil {
			w.trouble.failed(ctx, doesShow, err)
			wait = min(wait, pauses.NextBackOff())
		} else {
			w.trouble.over(ctx, doesShow)
			pauses.Reset()
		}
		sleep(ctx, wait)
		if ctx.Err() != nil {
			return
		}
	}
}

// beat shows the worker as it is now. One at a time: what an earlier one saw must not be written over
// what a later one did.
func (w *Worker) beat(ctx context.Context) error {
	w.beating.Lock()
	defer w.beating.Unlock()
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	w.mu.Lock()
	seen := ledger.WorkerSeen{Worker: w.cfg.Name, Tags: w.cfg.Tags, Kinds: w.kinds(), Host: w.host, PID: os.Getpid(),
		Slots: w.cfg.Concurrency, Running: w.running, State: w.state}
	if w.running > 0 && seen.State == ledger.Sleeping {
		seen.State = ledger.Working
	}
	w.mu.Unlock()
	slices.Sort(seen.Kinds)
	seen.Kinds = seen.Kinds[:min(len(seen.Kinds), domain.MaxNames)] // for people to see: not all of them, then
	return w.l.WorkerSeen(ctx, seen)
}

func (w *Worker) setState(s ledger.WorkerState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = s
}

// leave takes the worker out of the list of the living.
func (w *Worker) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	if err := w.l.WorkerGone(ctx, w.cfg.Name); err != nil && context.Cause(ctx) != ErrKilled {
		w.log.LogAttrs(ctx, slog.LevelWarn, "take this worker off the list", slog.Any("error", err))
	}
}
