package modeltest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// call is one call of a verb as a caller makes it: by one worker, operator or reaper, about any number of jobs.
type call struct {
	verb      domain.Verb
	actor     string
	items     []item                 // fenced verbs, cancel, redrive
	lease     time.Duration          // claim, ping
	max       int                    // claim, reap
	tags      []string               // claim, reap
	reason    string                 // cancel, redrive
	operation uuid.UUID              // cancel, redrive
	enqueue   []ledger.EnqueueParams // enqueue
}

// item is what a call says about one job.
type item struct {
	job        uuid.UUID
	generation int           // fenced verbs
	text       string        // result, error or progress; "" for none
	class      domain.Class  // fail
	permanent  bool          // fail
	after      time.Duration // snooze; fail, where not negative
	reason     string        // snooze
}

// byPolicy as after of a fail leaves the delay to the job's policy.
const byPolicy time.Duration = -1

// command is what the domain is asked for one item.
func (c call) command(i item) domain.Command {
	d := domain.Command{Verb: c.verb, Actor: c.actor, Lease: c.lease, Generation: i.generation, Digest: digest(c.stored(i))}
	switch c.verb {
	case domain.VerbFail:
		d.Class, d.Permanent = i.class, i.permanent
		if i.after != byPolicy {
			d.After = &i.after
		}
	case domain.VerbSnooze:
		d.After, d.Reason = &i.after, i.reason
	case domain.VerbCancel, domain.VerbRedrive:
		d.Reason, d.Operation = c.reason, c.operation
	}
	return d
}

// stored is the body as it has to lie in the database: what cannot be stored is replaced, and a result
// that is no JSON becomes a JSON string.
func (c call) stored(i item) *string {
	if i.text == "" {
		return nil
	}
	text := strings.ReplaceAll(i.text, "\x00", "\uFFFD")
	if c.verb == domain.VerbComplete && !json.Valid([]byte(text)) {
		text = `"` + text + `"`
	}
	return &text
}

// given is a body as it is handed to the API.
func given(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// fenced reports whether the verb shows a generation.
func (c call) fenced() bool {
	i := slices.IndexFunc(domain.Transitions, func(t domain.Transition) bool { return t.Verb == c.verb })
	return domain.Transitions[i].Fenced
}

// make makes the call on the ledger; claim and enqueue have answers of their own.
func (c call) make(ctx context.Context, l *ledger.Ledger) ([]ledger.Answer, error) {
	by := ledger.ByOperator{Actor: c.actor, Reason: c.reason, Operation: c.operation}
	switch c.verb {
	case domain.VerbPing:
		return l.Ping(ctx, ledger.PingParams{Worker: c.actor, Lease: c.lease, Pings: each(c.items, func(i item) ledger.Ping {
			return ledger.Ping{Held: i.held(), Progress: given(i.text)}
		})})
	case domain.VerbComplete:
		return l.CompleteMany(ctx, c.actor, each(c.items, func(i item) ledger.Completion {
			return ledger.Completion{Held: i.held(), Result: given(i.text)}
		}))
	case domain.VerbFail:
		return l.FailMany(ctx, c.actor, each(c.items, func(i item) ledger.Failure {
			return ledger.Failure{Held: i.held(), Class: i.class, Error: i.text, Permanent: i.permanent, After: i.delay()}
		}))
	case domain.VerbRelease:
		return l.Release(ctx, c.actor, each(c.items, item.held)...)
	case domain.VerbSnooze:
		return l.Snooze(ctx, c.actor, each(c.items, func(i item) ledger.Snooze {
			return ledger.Snooze{Held: i.held(), Delay: i.after, Reason: i.reason}
		})...)
	case domain.VerbCancel:
		return l.CancelMany(ctx, c.jobs(), by)
	case domain.VerbRedrive:
		return l.RedriveMany(ctx, c.jobs(), by)
	case domain.VerbReap:
		return l.Reap(ctx, ledger.ReapParams{Actor: c.actor, Max: c.max, Tags: c.tags})
	}
	return nil, fmt.Errorf("verb %s is not called this way", c.verb)
}

func (c call) jobs() []uuid.UUID { return each(c.items, func(i item) uuid.UUID { return i.job }) }

func (i item) held() ledger.Held { return ledger.Held{JobID: i.job, Generation: i.generation} }

func (i item) delay() *time.Duration {
	if i.after == byPolicy {
		return nil
	}
	return &i.after
}

func each[A, B any](in []A, f func(A) B) []B {
	out := make([]B, len(in))
	for i, v := range in {
		out[i] = f(v)
	}
	return out
}

// String is a line of a sequence's log.
func (c call) String() string {
	s := fmt.Sprintf("%s by %q", c.verb, c.actor)
	if c.verb == domain.VerbClaim || c.verb == domain.VerbReap {
		s += fmt.Sprintf(" max %d tags %q", c.max, c.tags)
	}
	if c.lease > 0 {
		s += fmt.Sprintf(" lease %s", c.lease)
	}
	if c.reason != "" {
		s += fmt.Sprintf(" reason %q", c.reason)
	}
	for _, i := range c.items {
		s += "\n      " + short(i.job)
		if c.fenced() {
			s += fmt.Sprintf(" generation %d", i.generation)
		}
		if i.text != "" {
			s += fmt.Sprintf(" body %q", i.text)
		}
		if c.verb == domain.VerbFail {
			s += fmt.Sprintf(" class %s permanent %t", i.class, i.permanent)
		}
		if c.verb == domain.VerbFail || c.verb == domain.VerbSnooze {
			s += fmt.Sprintf(" after %s", i.after)
		}
	}
	for _, p := range c.enqueue {
		s += fmt.Sprintf("\n      %s kind %s tag %s priority %d args %v delay %s at %s key %q ttl %s policy %+v",
			short(p.ID), p.Kind, p.Tag, p.Priority, p.Args, p.Delay, p.ScheduledFor, p.Key, p.KeyTTL, p.Policy)
	}
	return s
}

// short is the part of an id that tells the jobs of a sequence apart.
func short(id uuid.UUID) string { return "…" + id.String()[28:] }
