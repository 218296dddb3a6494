package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jobledger/jobledger/domain"
)

// MaxSleep bounds how long a worker's word that it sleeps is believed.
const MaxSleep = time.Hour

// SleepParams is what a worker that has nothing to do says of itself.
type SleepParams struct {
	Worker string
	Tags   []string
	// Lasting is how long it may be believed without saying it again: up to MaxSleep. Zero takes back
	// what was said.
	Lasting time.Duration
	// Watching says that it does not sleep yet: it has room and claims again in a few milliseconds, so
	// that nobody need be woken for its tags.
	Watching bool
}

// Sleep says that a worker listens (Listen) and wants to be woken for its tags. It returns the number by
// which notifications name it. Claim once more after it, and only then wait: what became due before it
// notified nobody.
func (l *Ledger) Sleep(ctx context.Context, p SleepParams) (int, error) {
	if err := p.check(); err != nil {
		return 0, fmt.Errorf("sleep: %w", err)
	}
	var number int
	if err := l.pool.QueryRow(ctx, l.stmts["sleep"], p.Worker, p.Tags, p.Lasting, p.Watching).Scan(&number); err != nil {
		return 0, fmt.Errorf("sleep: %w", fromPostgres(err))
	}
	return number, nil
}

func (p SleepParams) check() error {
	if err := domain.CheckText("worker", p.Worker, domain.MaxActorBytes); err != nil {
		return err
	}
	if err := domain.CheckNames("tags", p.Tags, 1); err != nil {
		return err
	}
	if p.Lasting < 0 || p.Lasting > MaxSleep {
		return &domain.FieldError{Field: "lasting", Value: p.Lasting, Want: "0 to 1h"}
	}
	return nil
}

// Wake tells workers that sleep on these tags, one element for each job, to look for jobs, unless somebody
// watches a tag. The verbs do this by themselves.
func (l *Ledger) Wake(ctx context.Context, tags ...string) error {
	if _, err := l.pool.Exec(ctx, l.stmts["wake"], tags); err != nil {
		return fmt.Errorf("wake: %w", fromPostgres(err))
	}
	return nil
}

// Notify sends a payload of at most 7,999 bytes to all who listen on the ledger's wake channel. It
// proves to a listener that it hears.
func (l *Ledger) Notify(ctx context.Context, payload string) error {
	if _, err := l.pool.Exec(ctx, l.stmts["notify"], payload); err != nil {
		return fmt.Errorf("notify: %w", fromPostgres(err))
	}
	return nil
}
