package modeltest

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// watched is a job as the last look found it: what the domain makes of its events, and what is stored.
type watched struct {
	*history
	stored snapshot
}

// watch reads a job. Its home row has to be what its events say before anything is called.
func (g *ground) watch(id uuid.UUID) (*watched, error) {
	past, texts, err := g.past(id)
	if err != nil {
		return nil, err
	}
	w := &watched{history: &history{events: past, bodies: texts}}
	if w.job, err = domain.Fold(past); err != nil {
		return nil, err
	}
	if w.job.State != domain.Gone {
		if err := g.atHome(w.job); err != nil {
			return nil, err
		}
	}
	w.stored, err = g.snapshot(id)
	return w, err
}

// atHome compares the home row of a job with what it has to be.
func (g *ground) atHome(want domain.Job) error {
	got, err := g.l.Job(g.ctx, want.ID)
	if err != nil {
		return err
	}
	return sameHome(got, want)
}

// observe makes one call and compares the answer and what it left behind with the domain's decision.
func (g *ground) observe(k call, b *builder, w *watched) (string, error) {
	c, body := k.command(k.items[0]), k.stored(k.items[0])
	if k.verb == domain.VerbEnqueue {
		var err error
		if c, body, err = newModel(g.now).enqueueCommand(k, b.params); err != nil {
			return "", err
		}
	}
	before, events := w.job, len(w.events)
	want, err := domain.Decide(w.events, c, g.now)
	if err != nil {
		return "", err
	}
	if want.Event.Type != "" && !want.Repeated {
		if err := newModel(g.now).append(w.history, want.Event, body); err != nil {
			return "", err
		}
	}
	got, err := g.answer(k, c, b.id)
	if err != nil {
		return "", err
	}
	if err := sameReply(k, got, expected(before, w.job, c, want)); err != nil {
		return "", err
	}
	if len(w.events) == events {
		return word(want), g.unchanged(b.id, w)
	}
	return word(want), g.changed(b.id, w)
}

// past reads a job's events as the domain sees them: what only the database knows is taken out, and a
// digest stands for its text without the salt.
func (g *ground) past(id uuid.UUID) ([]domain.Event, bodies, error) {
	events, err := g.l.History(g.ctx, id)
	if err != nil && !errors.Is(err, domain.ErrNotFound) {
		return nil, nil, err
	}
	stored, err := readBodies(g.ctx, g.db, id)
	if err != nil {
		return nil, nil, err
	}
	texts := bodies{}
	for i := range events {
		e := &events[i]
		e.Seq, e.DBUser = 0, ""
		b, ok := stored[e.Version]
		if ok != (e.Digest != nil) || ok && !bytes.Equal(e.Digest, b.digest()) {
			return nil, nil, fmt.Errorf("version %d: the digest is not that of the body", e.Version)
		}
		if ok {
			texts[e.Version], e.Digest = b.text, digest(&b.text)
		}
	}
	return events, texts, nil
}

// answer makes the call and returns what was told about the job; nil where the verb chose its jobs and
// passed this one by.
func (g *ground) answer(k call, c domain.Command, id uuid.UUID) (*reply, error) {
	switch k.verb {
	case domain.VerbEnqueue:
		got, err := g.l.EnqueueMany(g.ctx, k.enqueue)
		var refused *domain.RefusedError
		if errors.As(err, &refused) && refused.JobID == id {
			return &reply{Refusal: refused.Refusal}, nil
		}
		if err != nil || len(got) != 1 || got[0].JobID != id || got[0].Replayed {
			return nil, errors.Join(err, fmt.Errorf("enqueue answered %+v", got))
		}
		return nil, nil
	case domain.VerbClaim:
		got, err := g.l.Claim(g.ctx, ledger.ClaimParams{Worker: k.actor, Tags: k.tags, Max: k.max, Lease: k.lease})
		if err != nil || len(got.Jobs) == 0 {
			return nil, err
		}
		j := got.Jobs[0]
		r := reply{Event: domain.Claimed, Version: j.Version, Generation: j.Generation, Attempt: j.Attempt, At: j.StartedAt}
		if j.Lease > 0 {
			r.LeaseUntil = j.StartedAt.Add(j.Lease)
		}
		return &r, nil
	}
	got, err := k.make(g.ctx, g.l)
	if err != nil || len(got) == 0 {
		return nil, err
	}
	if len(got) > 1 || got[0].JobID != id {
		return nil, fmt.Errorf("got answers about other jobs: %+v", got)
	}
	r, err := told(c, got[0])
	return &r, err
}

// sameReply compares the answer with what was expected of the verb.
func sameReply(k call, got *reply, want reply) error {
	choosing := k.verb == domain.VerbClaim || k.verb == domain.VerbReap
	switch {
	case k.verb == domain.VerbEnqueue && got == nil && want.Refusal == "":
		return nil
	case k.verb == domain.VerbEnqueue && got != nil && got.Refusal == want.Refusal:
		return nil // the Go API tells the reason alone
	case choosing && want.Refusal != "" && got == nil:
		return nil
	case got == nil:
		return fmt.Errorf("the job was passed by, want %+v", want)
	}
	return same("answer", *got, want)
}
