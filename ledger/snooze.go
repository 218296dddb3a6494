package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jobledger/jobledger/domain"
)

// Snooze is a run to be put off.
type Snooze struct {
	Held
	// Delay is how long, from the database's now. 0 to ten years.
	Delay time.Duration
	// Reason is kept in the event: one line of at most 1 KiB; "" for none.
	Reason string
}

// Snooze puts runs off unspent: no attempt is counted. A job whose cancellation had been asked for
// ends canceled instead. Answers come in the order of snoozes.
func (l *Ledger) Snooze(ctx context.Context, worker string, snoozes ...Snooze) ([]Answer, error) {
	if len(snoozes) == 0 {
		return nil, nil
	}
	n := len(snoozes)
	held, delays, reasons := make([]Held, n), make([]time.Duration, n), make([]*string, n)
	for i, s := range snoozes {
		if err := domain.CheckDelay("delay", s.Delay); err != nil {
			return nil, fmt.Errorf("snooze: job %d: %w", i, atIndex(err, i))
		}
		if s.Reason != "" {
			if err := domain.CheckText("reason", s.Reason, domain.MaxReasonBytes); err != nil {
				return nil, fmt.Errorf("snooze: job %d: %w", i, atIndex(err, i))
			}
		}
		held[i], delays[i], reasons[i] = s.Held, s.Delay, nullable(s.Reason)
	}
	if err := checkHeld(worker, held); err != nil {
		return nil, fmt.Errorf("snooze: %w", err)
	}
	jobs, generations := split(held)
	return l.call(ctx, poolQuerier{l.pool}, domain.VerbSnooze, held, n, worker, jobs, generations, delays, reasons)
}
