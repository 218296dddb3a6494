package modeltest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// TestTable makes every call that the domain's table knows on a job in every state, with every kind of
// generation, and compares the answer, the home row, the events and the bodies with what domain.Decide
// says of the job's stored past. Then it makes the same call again. -v prints the table.
func TestTable(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	words := map[cell]string{}
	t.Run("verbs", func(t *testing.T) {
		for _, tr := range domain.Transitions {
			t.Run(string(tr.Verb), func(t *testing.T) {
				t.Parallel()
				g := newGround(t)
				err := tableOf(g, tr, func(c cell, word string) {
					mu.Lock()
					defer mu.Unlock()
					words[c] = word
				}, 20)
				if err != nil {
					t.Error(err)
				}
			})
		}
	})
	t.Logf("%d cells\n%s", len(words), printTable(words))
	if t.Failed() {
		return
	}
	for _, problem := range compareLiteral(words) {
		t.Error(problem)
	}
}

// tableRelations are what a caller can show; other_body is the job's own generation with another report
// than the owner may have sent before.
var tableRelations = []string{"current", "other_body", "older", "foreign", "above", "never"}

// tableOf runs one verb's part of the table and tells each cell's answer in one word. It goes on after a
// difference, up to a number of them, and returns them all.
func tableOf(g *ground, tr domain.Transition, tell func(cell, string), limit int) error {
	var errs []error
	for _, st := range states {
		for _, relation := range relationsFor(tr, st.name) {
			c := cell{tr.Verb, st.name, relation}
			word, err := g.cell(c, st)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s of a job that is %s, generation %s: %w", c.verb, c.state, c.relation, err))
				if len(errs) == limit {
					return errors.Join(errs...)
				}
				continue
			}
			tell(c, word)
		}
	}
	return errors.Join(errs...)
}

// relationsFor lists the rows of a state: a verb without a generation has one, and so has a job that does
// not exist; a job that never ran has no generation that could be shown.
func relationsFor(tr domain.Transition, state string) []string {
	withBody := tr.Verb == domain.VerbComplete || tr.Verb == domain.VerbFail
	switch {
	case !tr.Fenced:
		return []string{"-"}
	case state == "gone":
		return []string{"any"}
	}
	return slices.DeleteFunc(slices.Clone(tableRelations), func(r string) bool {
		return r == "other_body" && !withBody || strings.Contains(state, "fresh") && r != "above" && r != "never"
	})
}

// cell brings a job of its own into the state, makes the call twice, and compares what it finds.
func (g *ground) cell(c cell, st state) (string, error) {
	b := &builder{ground: g, lease: tableLease, params: ledger.EnqueueParams{Kind: "table", Tag: "t-" + uuid.NewString(),
		Args: `{"n":1}`, Priority: 3, Policy: domain.DefaultPolicy, Labels: map[string]string{"row": "1"}}}
	st.build(b)
	if b.err != nil {
		return "", fmt.Errorf("the state cannot be reached: %w", b.err)
	}
	k := callFor(c, b)
	first, err := g.observe(k, b)
	if err != nil {
		return "", err
	}
	if _, err := g.observe(k, b); err != nil {
		return "", fmt.Errorf("the same call again: %w", err)
	}
	return first, nil
}

// callFor is the call of a cell.
func callFor(c cell, b *builder) call {
	i := item{job: b.id, after: byPolicy}
	k := call{verb: c.verb, actor: owner}
	if k.fenced() {
		i.generation = b.held.Generation
	}
	switch c.verb {
	case domain.VerbPing:
		k.lease, i.text = 20*time.Second, `{"half":true}`
	case domain.VerbComplete, domain.VerbFail:
		i.text, i.class = someBody, domain.ClassTransient
	case domain.VerbSnooze:
		i.after, i.reason = 3*time.Second, "not now"
	case domain.VerbCancel, domain.VerbRedrive:
		k.actor, k.reason = "second", "late wish"
	case domain.VerbClaim:
		k.actor, k.lease, k.max, k.tags = late, 20*time.Second, 5, []string{b.params.Tag}
	case domain.VerbReap:
		k.actor, k.max, k.tags = reaper, 5, []string{b.params.Tag}
	case domain.VerbEnqueue:
		k.actor = enqueuer
		b.params.ID = b.id
		k.enqueue = []ledger.EnqueueParams{b.params}
	}
	switch c.relation {
	case "other_body":
		i.text = another
	case "older":
		i.generation--
	case "above", "any":
		i.generation++
	case "foreign":
		k.actor = stranger
	case "never":
		i.generation = 0
	}
	k.items = []item{i}
	return k
}

// observe makes one call and compares the answer and what it left behind with the domain's decision.
func (g *ground) observe(k call, b *builder) (string, error) {
	past, texts, err := g.past(b.id)
	if err != nil {
		return "", err
	}
	before, err := domain.Fold(past)
	if err != nil {
		return "", err
	}
	rest, err := g.snapshot(b.id)
	if err != nil {
		return "", err
	}
	c, body := k.command(k.items[0]), k.stored(k.items[0])
	if k.verb == domain.VerbEnqueue {
		if c, body, err = newModel(g.now).enqueueCommand(k, b.params); err != nil {
			return "", err
		}
	}
	want, err := domain.Decide(past, c, g.now)
	if err != nil {
		return "", err
	}
	h := &history{events: past, job: before, bodies: texts}
	if want.Event.Type != "" && !want.Repeated {
		if err := newModel(g.now).append(h, want.Event, body); err != nil {
			return impossible, g.refusedOutright(k, c, b.id, rest)
		}
	}
	got, err := g.answer(k, c, b.id)
	if err != nil {
		return "", err
	}
	if err := sameReply(k, got, expected(before, h.job, c, want)); err != nil {
		return "", err
	}
	if len(h.events) == len(past) {
		return word(want), g.unchanged(b.id, rest)
	}
	return word(want), g.changed(b.id, rest, h)
}

// impossible is the word for a call whose event no history allows: an enqueue under the id of a job that
// exists. It has no refusal of its own; the database answers with an error.
const impossible = "impossible"

func (g *ground) refusedOutright(k call, c domain.Command, id uuid.UUID, before snapshot) error {
	if got, err := g.answer(k, c, id); err == nil {
		return fmt.Errorf("answered %+v, want an error", got)
	}
	return g.unchanged(id, before)
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
	case k.verb == domain.VerbEnqueue:
		return nil
	case choosing && want.Refusal != "" && got == nil:
		return nil
	case got == nil:
		return fmt.Errorf("the job was passed by, want %+v", want)
	}
	return same("answer", *got, want)
}

// printTable shows the table of answers as the literal one is written.
func printTable(words map[cell]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, fenced := range []bool{true, false} {
		var verbs []domain.Verb
		for _, tr := range domain.Transitions {
			if tr.Fenced == fenced {
				verbs = append(verbs, tr.Verb)
			}
		}
		fmt.Fprint(w, "state\tgeneration")
		for _, v := range verbs {
			fmt.Fprintf(w, "\t%s", v)
		}
		fmt.Fprintln(w)
		for _, st := range states {
			for _, r := range append([]string{"-", "any"}, tableRelations...) {
				line, some := st.name+"\t"+r, false
				for _, v := range verbs {
					word := words[cell{v, st.name, r}]
					some = some || word != ""
					line += "\t" + or(word, ".")
				}
				if some {
					fmt.Fprintln(w, line)
				}
			}
		}
	}
	w.Flush()
	return b.String()
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
