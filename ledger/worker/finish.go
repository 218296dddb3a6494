package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// outcome is how a run ended, to be reported with verb.
type outcome struct {
	verb    domain.Verb
	result  any            // complete
	failure ledger.Failure // fail; Held is filled in later
	delay   time.Duration  // snooze
	reason  string         // snooze
}

// size is about how many bytes of bodies it has.
func (o *outcome) size() int {
	result := o.result
	if a, ok := result.(ledger.Altered); ok {
		result = a.Value
	}
	text, _ := result.(json.RawMessage)
	return len(text) + len(o.failure.Error)
}

// outcomeVerbs are the verbs that end a run. Each has a lane: what has gathered while its last batch
// was under way is the next batch.
var outcomeVerbs = []domain.Verb{domain.VerbComplete, domain.VerbFail, domain.VerbRelease, domain.VerbSnooze}

// A batch has at most batchMost outcomes and, unless a single one is larger, batchBytes of bodies: the
// statement must be done well before the leases end.
const (
	batchMost  = 1000
	batchBytes = 8 << 20
)

// lane is a queue of outcomes. Those of Worker.lanes are tried once; what fails goes to Worker.slow,
// which tries again and again, so that one locked row or one bad answer does not hold the others up.
type lane struct {
	batches [][]*lease // all leases of a batch have the same verb
	bytes   int        // of the last batch
	wake    chan struct{}
}

func newLane() lane { return lane{wake: make(chan struct{}, 1)} }

func (q *lane) put(batch []*lease) {
	q.batches = append(q.batches, batch)
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// report takes an outcome up. The caller holds mu. While a ping of the lease is under way, the
// outcome waits for it: see pinged.
func (w *Worker) report(l *lease, o *outcome) {
	l.outcome = o
	w.reported++
	if !l.calling {
		w.enqueue(l)
	}
}

// enqueue puts an outcome into the lane of its verb. The caller holds mu.
func (w *Worker) enqueue(l *lease) {
	l.calling = true
	q, size := w.lanes[l.outcome.verb], l.outcome.size()
	if n := len(q.batches); n > 0 && len(q.batches[n-1]) < batchMost && q.bytes+size <= batchBytes {
		q.batches[n-1] = append(q.batches[n-1], l)
		q.bytes += size
		return
	}
	q.put([]*lease{l})
	q.bytes = size
}

// laneLoop reports what gathers in a lane until ctx ends.
func (w *Worker) laneLoop(ctx context.Context, q *lane) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		}
		for batch := w.take(q); batch != nil; batch = w.take(q) {
			if left, err := w.deliver(ctx, batch); err != nil {
				w.log.LogAttrs(ctx, slog.LevelDebug, "outcomes must be reported again", slog.Int("jobs", len(batch)), slog.Any("error", err))
				w.putSlow(left)
			}
		}
	}
}

func (w *Worker) take(q *lane) []*lease {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(q.batches) == 0 {
		return nil
	}
	batch := q.batches[0]
	q.batches = q.batches[1:]
	return batch
}

// putSlow hands batches that failed to the slow lane. From now on their leases are pinged again.
func (w *Worker) putSlow(batches [][]*lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, batch := range batches {
		for _, l := range batch {
			l.stuck, l.calling = true, false
		}
		w.slow.put(batch)
	}
}

// takeSlow returns the next batch of the slow lane, nil if there is none. Leases that a ping has in
// hand go to the end of the lane.
func (w *Worker) takeSlow() []*lease {
	w.mu.Lock()
	defer w.mu.Unlock()
	for range len(w.slow.batches) {
		batch := w.slow.batches[0]
		w.slow.batches = w.slow.batches[1:]
		var free, pinged []*lease
		for _, l := range batch {
			if l.calling {
				pinged = append(pinged, l)
				continue
			}
			l.calling = true
			free = append(free, l)
		}
		if len(pinged) > 0 {
			w.slow.put(pinged)
		}
		if len(free) > 0 {
			return free
		}
	}
	return nil
}

// slowLoop reports again what could not be reported, with pauses that grow, until the database has
// answered: a refusal is an answer, too. Late reports are made because the database alone knows that
// they are late, and because an earlier one may have been carried out without its answer getting here.
func (w *Worker) slowLoop(ctx context.Context) {
	pauses := newBackoff()
	pauses.MaxInterval = min(retryLongest, w.cfg.Lease/8)
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.slow.wake:
		}
		sleep(ctx, pauses.NextBackOff())
		for batch := w.takeSlow(); batch != nil; batch = w.takeSlow() {
			// What failed goes behind the others: a single locked row does not keep them waiting.
			left, err := w.deliver(ctx, batch)
			if err != nil {
				w.putSlow(left)
				w.trouble.failed(ctx, doesReport, err)
				break
			}
			pauses.Reset()
			w.trouble.over(ctx, doesReport)
		}
	}
}

// deliver reports a batch of one verb. Where the database finds fault with the data, it is split until
// the culprit is alone. It returns what must be tried again, in batches, and why.
func (w *Worker) deliver(ctx context.Context, batch []*lease) (left [][]*lease, err error) {
	answers, err := w.send(ctx, batch)
	half := len(batch) / 2
	switch {
	case err == nil:
		var again []*lease
		for i, l := range batch {
			if errors.Is(answers[i].Err, domain.ErrContended) {
				again = append(again, l)
				continue
			}
			w.answered(l, answers[i])
		}
		if again != nil {
			return [][]*lease{again}, domain.ErrContended
		}
		return nil, nil
	case isDataError(err) && half > 0:
		left, err = w.deliver(ctx, batch[:half])
		more, err2 := w.deliver(ctx, batch[half:])
		return append(left, more...), errors.Join(err, err2)
	case isDataError(err):
		return w.substitute(ctx, batch[0], err)
	case isTimeout(err) && half > 0:
		// Perhaps one row is locked for long. Tenths find it in a few rounds.
		return slices.Collect(slices.Chunk(batch, (len(batch)+9)/10)), err
	}
	return [][]*lease{batch}, err
}

// isTimeout: the call took too long for us, or for the limits of the database's role.
func isTimeout(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code == pgerrcode.QueryCanceled || pg.Code == pgerrcode.LockNotAvailable
	}
	return pgconn.Timeout(err)
}

// substitute reports, in place of an outcome that the database will never store, that it is unknown.
func (w *Worker) substitute(ctx context.Context, l *lease, why error) ([][]*lease, error) {
	w.tell(slog.LevelError, "outcome cannot be stored", l, slog.Any("error", why))
	if l.outcome.failure.Class == domain.ClassUnknown {
		w.stats.refused.Add(1)
		w.settle(l) // not even that: the lease ends, and the reaper takes the job back
		return nil, nil
	}
	w.mu.Lock()
	l.outcome = &outcome{verb: domain.VerbFail, failure: ledger.Failure{
		Class: domain.ClassUnknown, Error: fmt.Sprintf("the outcome could not be stored: %+q", why.Error())}}
	w.mu.Unlock()
	return w.deliver(ctx, []*lease{l})
}

// isDataError: the same call will be refused again, because of what is in it.
func isDataError(err error) bool {
	var field *domain.FieldError
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		class := pg.Code[:min(2, len(pg.Code))]
		return class == "22" || class == "23" || class == "54" || pg.Code == "JL400"
	}
	return errors.As(err, &field)
}

// send makes one call for a batch. Its time is its own: a stop must not lose outcomes, and ctx is
// that of the whole life.
func (w *Worker) send(ctx context.Context, batch []*lease) ([]ledger.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, w.callTimeout())
	defer cancel()
	verb := batch[0].outcome.verb
	if verb != domain.VerbComplete {
		if err := w.tellProgress(ctx, batch); err != nil {
			return nil, err
		}
	}
	var answers []ledger.Answer
	var err error
	switch verb {
	case domain.VerbComplete:
		cs := make([]ledger.Completion, len(batch))
		for i, l := range batch {
			cs[i] = ledger.Completion{Held: l.held(), Result: l.outcome.result}
		}
		answers, err = w.l.CompleteMany(ctx, w.cfg.Name, cs)
	case domain.VerbFail:
		fs := make([]ledger.Failure, len(batch))
		for i, l := range batch {
			fs[i] = l.outcome.failure
			fs[i].Held = l.held()
		}
		answers, err = w.l.FailMany(ctx, w.cfg.Name, fs)
	case domain.VerbRelease:
		held := make([]ledger.Held, len(batch))
		for i, l := range batch {
			held[i] = l.held()
		}
		answers, err = w.l.Release(ctx, w.cfg.Name, held...)
	case domain.VerbSnooze:
		ss := make([]ledger.Snooze, len(batch))
		for i, l := range batch {
			ss[i] = ledger.Snooze{Held: l.held(), Delay: l.outcome.delay, Reason: l.outcome.reason}
		}
		answers, err = w.l.Snooze(ctx, w.cfg.Name, ss...)
	}
	if err == nil && len(answers) != len(batch) {
		err = fmt.Errorf("%s: got %d answers for %d jobs", verb, len(answers), len(batch))
	}
	return answers, err
}

// callTimeout bounds a call of pings or outcomes, so that there is time for another one while the
// leases live.
func (w *Worker) callTimeout() time.Duration {
	return min(claimTimeout, max(w.cfg.Lease/4, min(w.cfg.Lease/2, time.Second)))
}

// answered settles a lease whose outcome the database has decided on.
func (w *Worker) answered(l *lease, a ledger.Answer) {
	w.stats.count(a)
	if a.Err != nil {
		w.tell(slog.LevelWarn, "outcome was refused", l, slog.Any("error", a.Err))
		if errors.Is(a.Err, domain.ErrTimedOut) {
			w.stats.timedOut.Add(1)
		}
		w.reaper.hurry() // the lease or the time-out may be over without anyone having looked
	}
	w.settle(l)
}
