package modeltest

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jobledger/jobledger/domain"
)

// cell is one kind of situation: a verb, the state of the job that it meets, and how the generation shown
// stands to the job's own.
type cell struct {
	verb     domain.Verb
	state    string
	relation string
}

// The states of a cell are finer than domain.State: what a guard has to tell apart.
var cellStates = []string{
	"gone", "fresh", "later", "requeued", "redriven",
	"running", "marked", "lease_over", "timed_out", "marked_over",
	"success", "failure", "canceled",
}

// stateOf names the state of a job at now.
func stateOf(h *history, now time.Time) string {
	j := h.job
	switch j.State {
	case domain.Waiting:
		switch {
		case !j.Due(now):
			return "later"
		case lastFact(h.events) == domain.Redriven:
			return "redriven"
		case j.Generation == 0:
			return "fresh"
		}
		return "requeued"
	case domain.Running:
		timedOut := !j.TimeoutAt.IsZero() && !now.Before(j.TimeoutAt)
		leaseOver := !j.LeaseUntil.IsZero() && !now.Before(j.LeaseUntil)
		switch {
		case j.CanceledBy != "" && (timedOut || leaseOver):
			return "marked_over"
		case timedOut:
			return "timed_out"
		case leaseOver:
			return "lease_over"
		case j.CanceledBy != "":
			return "marked"
		}
		return "running"
	case domain.Ended:
		return string(j.Outcome)
	}
	return "gone"
}

// lastFact is the type of the newest event that changed the job.
func lastFact(events []domain.Event) domain.EventType {
	for _, e := range slices.Backward(events) {
		if e.Type != domain.Rejected {
			return e.Type
		}
	}
	return ""
}

// relationOf says how what the caller shows stands to the job: never a generation at all (they begin with
// 1), above or older than its own one; foreign where it is the job's own, but another worker's; else current.
func relationOf(h *history, c domain.Command) string {
	switch {
	case h.job.State == domain.Gone:
		return "any"
	case c.Generation < 1:
		return "never"
	case c.Generation > h.job.Generation:
		return "above"
	case c.Generation < h.job.Generation:
		return "older"
	case c.Actor != h.lastWorker():
		return "foreign"
	}
	return "current"
}

// coverage counts how often each cell was met.
type coverage struct {
	met     map[cell]int
	longest int // commands in the longest sequence
	least   int // in the shortest one
	calls   int
	runs    int
}

func newCoverage() *coverage {
	return &coverage{met: map[cell]int{}, least: 1 << 30}
}

func (v *coverage) note(c cell) { v.met[c]++ }

func (v *coverage) sequence(commands int) {
	v.runs++
	v.calls += commands
	v.longest, v.least = max(v.longest, commands), min(v.least, commands)
}

// relationsOf lists the relations that can be met in a state. A job that nobody ever claimed has no
// generation that could be shown.
func relationsOf(verb domain.Verb, state string) []string {
	switch {
	case !(call{verb: verb}).fenced():
		return []string{"-"}
	case state == "gone":
		return []string{"any"}
	case state == "fresh":
		return []string{"above", "never"}
	}
	return []string{"current", "older", "foreign", "above", "never"}
}

// allCells is every cell that a sequence can meet.
func allCells() []cell {
	var out []cell
	for _, t := range domain.Transitions {
		for _, state := range cellStates {
			if meets(t.Verb, state) {
				for _, r := range relationsOf(t.Verb, state) {
					out = append(out, cell{t.Verb, state, r})
				}
			}
		}
	}
	return out
}

// meets: claim and reap choose their jobs and are not asked about one that is not there, and an enqueue
// makes a job.
func meets(verb domain.Verb, state string) bool {
	switch verb {
	case domain.VerbEnqueue:
		return state == "gone"
	case domain.VerbClaim, domain.VerbReap:
		return state != "gone"
	}
	return true
}

// rarest lists the cells, of those that count, that were met less than least times.
func (v *coverage) rarest(least int, counts func(cell) bool) []string {
	var out []string
	for _, c := range allCells() {
		if counts(c) && v.met[c] < least {
			out = append(out, fmt.Sprintf("%s of a job that is %s, generation %s: %d times", c.verb, c.state, c.relation, v.met[c]))
		}
	}
	return out
}

// String is the table of the cells, one row for each verb and relation.
func (v *coverage) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d sequences of %d to %d commands, %d in all\n", v.runs, v.least, v.longest, v.calls)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "verb\tgeneration\t%s\t\n", strings.Join(cellStates, "\t"))
	for _, t := range domain.Transitions {
		for _, r := range []string{"-", "any", "current", "older", "foreign", "above", "never"} {
			row, some := fmt.Sprintf("%s\t%s\t", t.Verb, r), false
			for _, state := range cellStates {
				possible := meets(t.Verb, state) && slices.Contains(relationsOf(t.Verb, state), r)
				some = some || possible
				row += v.count(cell{t.Verb, state, r}, possible) + "\t"
			}
			if some {
				fmt.Fprintln(w, row)
			}
		}
	}
	w.Flush()
	return b.String()
}

func (v *coverage) count(c cell, possible bool) string {
	if !possible && v.met[c] == 0 {
		return "."
	}
	return fmt.Sprint(v.met[c])
}
