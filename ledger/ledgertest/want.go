package ledgertest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jobledger/jobledger/domain"
)

// Want describes a job. A zero field asks for nothing.
type Want struct {
	Kind, Tag string
	// Args are compared as JSON: a string, []byte or json.RawMessage is JSON text, as in ledger.EnqueueParams; the order
	// of keys and white space don't matter, the digits of numbers do.
	Args any
	// ArgsWith asks for these members of args and leaves others open, at every depth.
	ArgsWith map[string]any
	Key      string
	Priority *int // new(5)
	// ScheduledFor is when it is due, give or take Within, by default 1 s.
	ScheduledFor time.Time
	Within       time.Duration
	// Delay is for how long it waits from its enqueue, to the microsecond.
	Delay         time.Duration
	Labels        map[string]string // these, and perhaps others
	CorrelationID string
	State         domain.State
	Outcome       domain.Outcome
}

// RequireEnqueued returns the job that is as wanted. None, or more than one, fails the test; the message shows what was
// enqueued, nearest first, and what is different about it. Jobs count in every state; see Want.State.
func (s Scope) RequireEnqueued(t testing.TB, want Want) Job {
	t.Helper()
	jobs := s.Jobs(t)
	found := want.among(t, jobs)
	switch len(found) {
	case 1:
		return found[0]
	case 0:
		t.Fatalf("ledgertest: no such job was enqueued\n  want: %s\n%s", want, want.nearest(jobs))
	default:
		t.Fatalf("ledgertest: %d such jobs were enqueued, want one\n  want: %s\n%s", len(found), want, list("have", found))
	}
	panic("unreachable")
}

// RequireNotEnqueued fails the test if a job is as described. Want{} describes any job.
func (s Scope) RequireNotEnqueued(t testing.TB, want Want) {
	t.Helper()
	if found := want.among(t, s.Jobs(t)); len(found) > 0 {
		t.Fatalf("ledgertest: a job was enqueued that should not be\n  unwanted: %s\n%s", want, list("have", found))
	}
}

// RequireEnqueuedMany returns the jobs that are as wanted, one for each of wants and in their order. It fails the test
// if one is missing, or if others have been enqueued; in which order they were does not matter.
func (s Scope) RequireEnqueuedMany(t testing.TB, wants ...Want) []Job {
	t.Helper()
	jobs := s.Jobs(t)
	given := assign(t, wants, jobs)
	var b strings.Builder
	out := make([]Job, len(wants))
	for i, j := range given {
		if j < 0 {
			fmt.Fprintf(&b, "  missing: %s\n", wants[i])
			continue
		}
		out[i] = jobs[j]
	}
	for j, job := range jobs {
		if !slices.Contains(given, j) {
			fmt.Fprintf(&b, "  too many: %s\n", job)
		}
	}
	if b.Len() > 0 {
		t.Fatalf("ledgertest: other jobs were enqueued than these %d\n%s", len(wants), strings.TrimRight(b.String(), "\n"))
	}
	return out
}

// among returns the jobs that are as wanted.
func (w Want) among(t testing.TB, jobs []Job) (found []Job) {
	t.Helper()
	for name, v := range map[string]any{"Args": w.Args, "ArgsWith": w.ArgsWith} {
		if _, err := asJSON(v); err != nil {
			t.Fatalf("ledgertest: Want.%s: %v", name, err)
		}
	}
	for _, j := range jobs {
		if len(w.differences(j)) == 0 {
			found = append(found, j)
		}
	}
	return found
}

// assign gives each of wants a job of its own, as many as possible, as an index; -1 for none. A want that fits many jobs
// makes room for one that fits few.
func assign(t testing.TB, wants []Want, jobs []Job) []int {
	t.Helper()
	fits := make([][]int, len(wants))
	for i, w := range wants {
		for j, job := range jobs {
			if len(w.among(t, []Job{job})) > 0 {
				fits[i] = append(fits[i], j)
			}
		}
	}
	taker := map[int]int{}
	var give func(i int, tried map[int]bool) bool
	give = func(i int, tried map[int]bool) bool {
		for _, j := range fits[i] {
			if tried[j] {
				continue
			}
			tried[j] = true
			if other, taken := taker[j]; !taken || give(other, tried) {
				taker[j] = i
				return true
			}
		}
		return false
	}
	given := make([]int, len(wants))
	for i := range wants {
		give(i, map[int]bool{})
		given[i] = -1
	}
	for j, i := range taker {
		given[i] = j
	}
	return given
}

// differences says in what j is not as wanted, a line each.
func (w Want) differences(j Job) (lines []string) {
	differ := func(what string, have, want any) {
		lines = append(lines, fmt.Sprintf("%s is %v, want %v", what, have, want))
	}
	text := func(what, have, want string) {
		if want != "" && have != want {
			differ(what, fmt.Sprintf("%q", have), fmt.Sprintf("%q", want))
		}
	}
	text("kind", j.Kind, w.Kind)
	text("tag", j.Tag, w.Tag)
	text("key", j.Key, w.Key)
	text("correlation id", j.Facts.CorrelationID, w.CorrelationID)
	text("state", string(j.State), string(w.State))
	text("outcome", string(j.Outcome), string(w.Outcome))
	for _, name := range sortedKeys(w.Labels) {
		text("label "+name, j.Facts.Labels[name], w.Labels[name])
	}
	if w.Priority != nil && j.Priority != *w.Priority {
		differ("priority", j.Priority, *w.Priority)
	}
	if within := w.within(); !w.ScheduledFor.IsZero() && j.ScheduledFor.Sub(w.ScheduledFor).Abs() > within {
		differ("due time", j.ScheduledFor.Format(time.RFC3339Nano), fmt.Sprintf("%s within %s", w.ScheduledFor.UTC().Format(time.RFC3339Nano), within))
	}
	if delay := j.ScheduledFor.Sub(j.EnqueuedAt); w.Delay != 0 && delay != w.Delay {
		differ("delay", delay, w.Delay)
	}
	if w.Args != nil {
		lines = append(lines, compareJSON("args", decoded(j.Args), decodedValue(w.Args), false)...)
	}
	if w.ArgsWith != nil {
		lines = append(lines, compareJSON("args", decoded(j.Args), decodedValue(w.ArgsWith), true)...)
	}
	return lines
}

func (w Want) within() time.Duration {
	if w.Within == 0 {
		return time.Second
	}
	return w.Within
}

// The number of jobs that a message shows, at most.
const shown = 5

// nearest tells of the jobs that there are, those with the fewest differences first.
func (w Want) nearest(jobs []Job) string {
	distance := func(j Job) int {
		d := len(w.differences(j))
		if w.Kind != "" && j.Kind != w.Kind {
			d += 1000 // a job of another kind is hardly what was meant
		}
		return d
	}
	jobs = slices.Clone(jobs)
	slices.SortStableFunc(jobs, func(a, b Job) int { return distance(a) - distance(b) })
	return listWith("have", jobs, w.differences)
}

func list(title string, jobs []Job) string {
	return listWith(title, jobs, func(Job) []string { return nil })
}

func listWith(title string, jobs []Job, more func(Job) []string) string {
	if len(jobs) == 0 {
		return "  " + title + ": no job at all"
	}
	var b strings.Builder
	for i, j := range jobs {
		if i == shown {
			fmt.Fprintf(&b, "  and %d more\n", len(jobs)-shown)
			break
		}
		fmt.Fprintf(&b, "  %s: %s\n", title, j)
		for _, line := range more(j) {
			fmt.Fprintf(&b, "        %s\n", line)
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// String is the job in one line.
func (j Job) String() string {
	s := fmt.Sprintf("kind %q, tag %q, args %s", j.Kind, j.Tag, shorten(string(j.Args), "none"))
	if j.Key != "" {
		s += fmt.Sprintf(", key %q", j.Key)
	}
	state := string(j.State)
	switch j.State {
	case domain.Waiting:
		state += " until " + j.ScheduledFor.Format(time.RFC3339Nano)
	case domain.Ended:
		state += " with " + string(j.Outcome)
	}
	return fmt.Sprintf("%s, %s (%s)", s, state, j.ID)
}

// String is what is asked for, in one line.
func (w Want) String() string {
	var parts []string
	add := func(ask bool, format string, args ...any) {
		if ask {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(w.Kind != "", "kind %q", w.Kind)
	add(w.Tag != "", "tag %q", w.Tag)
	if w.Args != nil {
		text, _ := asJSON(w.Args) // among has looked at the error
		add(true, "args %s", shorten(text, "none"))
	}
	if w.ArgsWith != nil {
		text, _ := json.Marshal(w.ArgsWith)
		add(true, "args with %s", shorten(string(text), "none"))
	}
	add(w.Key != "", "key %q", w.Key)
	if w.Priority != nil {
		add(true, "priority %d", *w.Priority)
	}
	add(!w.ScheduledFor.IsZero(), "due at %s within %s", w.ScheduledFor.UTC().Format(time.RFC3339Nano), w.within())
	add(w.Delay != 0, "delay %s", w.Delay)
	for _, name := range sortedKeys(w.Labels) {
		add(true, "label %s=%q", name, w.Labels[name])
	}
	add(w.CorrelationID != "", "correlation id %q", w.CorrelationID)
	add(w.State != "", "state %s", w.State)
	add(w.Outcome != "", "outcome %s", w.Outcome)
	if len(parts) == 0 {
		return "any job"
	}
	return strings.Join(parts, ", ")
}
