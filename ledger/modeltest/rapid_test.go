package modeltest

import (
	"flag"
	"math/bits"
	"os"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// sequencesVariable says how many sequences TestModel runs; `make soak` sets it.
const sequencesVariable = "JOBLEDGER_MODEL_SEQUENCES"

// sampleSequences is how many it runs when nothing is said.
const sampleSequences = 40

// sampleSeed makes the sample the same each time; -rapid.seed overrides it.
const sampleSeed = "20260329"

// TestModel runs sequences of random commands over a handful of jobs and three workers, against Postgres
// and against the model, and compares every answer, every home row and every event. A failure is shrunk
// and shown as the list of its commands.
func TestModel(t *testing.T) {
	t.Parallel()
	n := sequences(t)
	setFlag(t, "rapid.checks", strconv.Itoa(n))
	setFlag(t, "rapid.seed", sampleSeed)
	setFlag(t, "rapid.nofailfile", "true")
	g, seen, began := newGround(t), newCoverage(), time.Now()
	rapid.Check(t, func(r *rapid.T) {
		if err := runSequence(g, drawer{r}, seen); err != nil {
			r.Fatal(err)
		}
	})
	t.Logf("%s\n%s", time.Since(began).Round(time.Second), seen)
	if seen.least < minCommands {
		t.Errorf("the shortest sequence had %d commands, want %d", seen.least, minCommands)
	}
	least, where := 1, inSample
	if n >= 2000 {
		least, where = 20, func(cell) bool { return true }
	}
	for _, c := range seen.rarest(least, where) {
		t.Errorf("met too seldom: %s, want %d", c, least)
	}
}

// inSample are the cells that already the sample has to meet: every verb that shows no generation in every
// state, and every other one on a running job with every kind of generation.
func inSample(c cell) bool { return c.relation == "-" || c.state == "running" }

func sequences(t *testing.T) int {
	t.Helper()
	text, ok := os.LookupEnv(sequencesVariable)
	if !ok {
		return sampleSequences
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q, want a number of sequences", sequencesVariable, text)
	}
	return n
}

// setFlag sets a flag of rapid's unless the command line has set it.
func setFlag(t *testing.T, name, value string) {
	t.Helper()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if given {
		return
	}
	if err := flag.Set(name, value); err != nil {
		t.Fatal(err)
	}
}

// drawer lets rapid choose, bit by bit: its ranges prefer small numbers, and so would verbs and jobs.
type drawer struct{ t *rapid.T }

func (d drawer) pick(what string, n int) int {
	size := bits.Len(uint(n)) + 3
	v := rapid.Custom(func(t *rapid.T) int {
		v := 0
		for range size {
			v <<= 1
			if rapid.Bool().Draw(t, what) {
				v++
			}
		}
		return v
	}).Draw(d.t, what)
	return v * n >> size
}
