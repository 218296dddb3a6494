package modeltest

import (
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
				err := tableOf(g, tr, "*", func(c cell, word string) {
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
	if len(words) < everyCell() { // a cell failed, or -run chose some verbs only
		return
	}
	for _, problem := range compareLiteral(words) {
		t.Error(problem)
	}
}

// everyCell counts the cells of the whole table.
func everyCell() (n int) {
	for _, tr := range domain.Transitions {
		for _, st := range states {
			n += len(relationsFor(tr, st.name))
		}
	}
	return n
}

// tableRelations are what a caller can show. The first four show the job's own generation: other_body with
// another report than the owner may have sent before; for_good and invalid_input are failures that rule
// out another attempt.
var tableRelations = []string{"current", "other_body", "for_good", "invalid_input", "older", "foreign", "above", "never"}

// tableOf runs one verb's part of the table, in the states that fit the pattern, and tells each cell's answer
// in one word. It goes on after a difference, up to a number of them, and returns them all.
func tableOf(g *ground, tr domain.Transition, pattern string, tell func(cell, string), limit int) error {
	var errs []error
	for _, st := range states {
		if !fits(pattern, st.name) {
			continue
		}
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
		return r == "other_body" && !withBody || (r == "for_good" || r == "invalid_input") && tr.Verb != domain.VerbFail ||
			strings.Contains(state, "fresh") && r != "above" && r != "never"
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
	w, err := g.watch(b.id)
	if err != nil {
		return "", err
	}
	k := callFor(c, b)
	first, err := g.observe(k, b, w)
	if err != nil {
		return "", err
	}
	if _, err := g.observe(k, b, w); err != nil {
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
		k.actor, k.reason, k.operation = "second", "late wish", uuid.New()
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
	case "for_good":
		i.text, i.permanent = another, true
	case "invalid_input":
		i.class = domain.ClassInvalidInput
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
