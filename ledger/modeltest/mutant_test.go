package modeltest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// finder is a test that returns what it finds, with its name.
type finder struct {
	name string
	run  func(g *ground) error
}

// sampled is TestModel with a source of choices of its own, up to as many sequences as its sample has.
var sampled = finder{"TestModel", func(g *ground) error {
	for seed := range uint64(sampleSequences) {
		if err := runSequence(g, random{rand.New(rand.NewPCG(seed, 1))}, newCoverage()); err != nil {
			return fmt.Errorf("sequence %d: %w", seed+1, err)
		}
	}
	return nil
}}

// random chooses without shrinking.
type random struct{ *rand.Rand }

func (r random) pick(_ string, n int) int { return r.IntN(n) }

// table is the part of TestTable about one verb and the states that fit the pattern, up to the first
// difference.
func table(verb domain.Verb, pattern string) finder {
	return finder{"TestTable/" + string(verb) + " " + pattern, func(g *ground) error {
		for _, tr := range domain.Transitions {
			if tr.Verb == verb {
				return tableOf(g, tr, pattern, func(cell, string) {}, 1)
			}
		}
		return nil
	}}
}

// forced is one of the forced races.
func forced(run func(*ground) error) finder {
	return finder{"TestForced", run}
}

// mutantTimeout bounds what a broken function may do before the search ends.
const mutantTimeout = 2 * time.Minute

// TestMutants plants faults into the SQL functions, one at a time, and wants each to be found by the test
// that is there for it. -v prints which test found what.
func TestMutants(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	found := map[string]string{}
	const lanes = 2 // databases; the mutants of a lane follow each other in the same one
	t.Run("lanes", func(t *testing.T) {
		for lane := range lanes {
			t.Run(fmt.Sprint(lane), func(t *testing.T) {
				t.Parallel()
				db := pgtest.New(t)
				for i := lane; i < len(mutants); i += lanes {
					m := mutants[i]
					t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
						err := m.hunt(t, db)
						if pg, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(pg.Code, "42") {
							t.Fatalf("the mutant is no SQL, which proves nothing: %v", err)
						}
						if err == nil {
							t.Errorf("%s does not find it", m.by.name)
							return
						}
						mu.Lock()
						defer mu.Unlock()
						found[m.name] = firstLines(err)
					})
				}
			})
		}
	})
	t.Run("none", func(t *testing.T) {
		// Where there is nothing to find, the same search has to come back empty.
		if err := (mutant{by: sampled}).hunt(t, pgtest.New(t)); err != nil {
			t.Error(err)
		}
	})
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, m := range mutants {
		fmt.Fprintf(w, "%s\t%s\t%s\n", m.name, m.by.name, found[m.name])
	}
	w.Flush()
	t.Logf("%d of %d mutants found\n%s", len(found), len(mutants), b.String())
}

// hunt puts all functions of the database anew, with the mutant's edits, and lets its test look for it.
func (m mutant) hunt(t *testing.T, db *pgtest.DB) error {
	ctx, cancel := context.WithTimeout(t.Context(), mutantTimeout)
	defer cancel()
	text := ledger.Functions()
	for _, e := range m.edits {
		var err error
		if text, err = e.apply(text); err != nil {
			t.Fatal(err)
		}
	}
	conn := db.Connect(t)
	if _, err := conn.PgConn().Exec(ctx, "BEGIN; SET LOCAL search_path = jobledger, pg_temp;\n"+text+"COMMIT;").ReadAll(); err != nil {
		t.Fatalf("apply: %v", err)
	}
	g := groundOn(t, db)
	g.ctx = ctx
	return m.by.run(g)
}

// apply edits the text of one function. It is an error if there is nothing to replace: the mutant would be
// the real thing.
func (e edit) apply(text string) (string, error) {
	from := strings.Index(text, "FUNCTION "+e.function+"(")
	if from < 0 {
		return "", fmt.Errorf("there is no function %s", e.function)
	}
	size := strings.Index(text[from:], "\n$$;")
	if size < 0 {
		return "", fmt.Errorf("function %s has no end", e.function)
	}
	body := text[from : from+size]
	if !strings.Contains(body, e.from) {
		return "", fmt.Errorf("function %s does not contain %q", e.function, e.from)
	}
	return text[:from] + strings.ReplaceAll(body, e.from, e.to) + text[from+size:], nil
}

// firstLines is the head of what was found, in one line.
func firstLines(err error) string {
	s := strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "\u00a0", " ")), " ")
	if r := []rune(s); len(r) > 150 {
		return string(r[:150]) + "..."
	}
	return s
}

// TestMutantEdit makes sure that a mutant cannot silently be the real thing.
func TestMutantEdit(t *testing.T) {
	t.Parallel()
	for _, e := range []edit{{"no_such_function", "a", "b"}, {"complete", "no such text", "b"}} {
		if _, err := e.apply(ledger.Functions()); err == nil {
			t.Errorf("edit %+v was accepted", e)
		}
	}
	if text, err := (edit{"complete", "r.generation", "r.g"}).apply(ledger.Functions()); err != nil || text == ledger.Functions() {
		t.Error(errors.Join(err, errors.New("a good edit changed nothing")))
	}
}
