package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jobledger/jobledger/domain"
)

// Failure is a run that did not succeed.
type Failure struct {
	Held
	// Class says why. Default domain.ClassTransient; domain.ClassInvalidInput makes it a dead letter
	// at once.
	Class domain.Class
	// Error is kept with the job: text, cut in the middle beyond 64 KiB, with substitutes for what
	// cannot be stored, and then a flag. Altered sets the flag for what the caller has changed itself.
	Error   string
	Altered bool
	// Permanent: trying again is pointless, make it a dead letter now.
	Permanent bool
	// After is when the next attempt is due, counted from the database's now; nil: by the job's policy.
	After *time.Duration
}

// Fail ends one attempt. The answer's Event says what became of the job: retried, failed (a dead
// letter) or, where cancellation had been asked for, canceled.
func (l *Ledger) Fail(ctx context.Context, worker string, f Failure) (Answer, error) {
	return one(l.FailMany(ctx, worker, []Failure{f}))
}

// FailMany is Fail for many runs of one worker in one statement, each ended or refused on its own.
func (l *Ledger) FailMany(ctx context.Context, worker string, fs []Failure) ([]Answer, error) {
	if len(fs) == 0 {
		return nil, nil
	}
	n := len(fs)
	held, classes, errs, salts := make([]Held, n), make([]string, n), make([]*string, n), newSalts(n)
	delays, permanent, altered := make([]*time.Duration, n), make([]bool, n), make([]bool, n)
	for i, f := range fs {
		if f.Class == "" {
			f.Class = domain.ClassTransient
		}
		if f.After != nil {
			if err := domain.CheckDelay("delay", *f.After); err != nil {
				return nil, fmt.Errorf("fail: job %d: %w", i, atIndex(err, i))
			}
		}
		held[i], classes[i] = f.Held, string(f.Class)
		errs[i], altered[i] = output(f.Error, domain.MaxErrorBytes)
		altered[i] = altered[i] || f.Altered
		delays[i], permanent[i] = f.After, f.Permanent
	}
	if err := checkHeld(worker, held); err != nil {
		return nil, fmt.Errorf("fail: %w", err)
	}
	jobs, generations := split(held)
	return l.call(ctx, poolQuerier{l.pool}, domain.VerbFail, held, n, worker, jobs, generations, classes, errs, salts, delays, permanent, noneAsNil(altered))
}
