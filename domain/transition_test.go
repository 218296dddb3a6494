package domain_test

import (
	"flag"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/jobledger/jobledger/domain"
)

// TestDecide lets random commands happen to one job and holds what must be true of every decision,
// whatever the database does with it.
func TestDecide(t *testing.T) {
	t.Parallel()
	// A failure prints its seed, which is enough to see it again.
	if err := flag.Set("rapid.nofailfile", "true"); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(r *rapid.T) {
		w := walk{r: r, now: noon}
		w.policy = domain.DefaultPolicy
		w.policy.MaxAttempts, w.policy.RestartLimit = rapid.IntRange(1, 3).Draw(r, "attempts"), rapid.IntRange(0, 2).Draw(r, "restarts")
		w.policy.Timeout = time.Duration(rapid.IntRange(1, 20).Draw(r, "timeout")) * time.Second
		w.policy.OnLostLease = rapid.SampledFrom([]domain.OnLostLease{domain.Restart, domain.FailIt, domain.Reconcile}).Draw(r, "on_lost_lease")
		for range 60 {
			w.step()
		}
	})
}

type walk struct {
	r      *rapid.T
	policy domain.Policy
	now    time.Time
	past   []domain.Event
	job    domain.Job
}

func (w *walk) step() {
	w.now = w.now.Add(time.Duration(rapid.IntRange(0, 12).Draw(w.r, "seconds")) * time.Second)
	c := w.command()
	a, err := domain.Decide(w.past, c, w.now)
	if err != nil {
		w.r.Fatal(err)
	}
	if again, _ := domain.Decide(w.past, c, w.now); !reflect.DeepEqual(a, again) {
		w.r.Fatalf("decided %+v, and then %+v", a, again)
	}
	i := slices.IndexFunc(domain.Transitions, func(t domain.Transition) bool { return t.Verb == c.Verb })
	w.check(domain.Transitions[i], c, a)
	if a.Event.Type == "" || a.Repeated {
		return
	}
	before := w.job
	if err := w.job.Apply(a.Event); err != nil {
		w.r.Fatalf("%s decided an event that cannot follow: %v", c.Verb, err)
	}
	w.past = append(w.past, a.Event)
	w.checkMove(before, a.Event)
}

func (w *walk) command() domain.Command {
	verbs := each(domain.Transitions, func(t domain.Transition) domain.Verb { return t.Verb })
	after := time.Duration(rapid.IntRange(0, 9).Draw(w.r, "after")) * time.Second
	c := domain.Command{
		Verb:       rapid.SampledFrom(verbs[1:]).Draw(w.r, "verb"),
		Actor:      rapid.SampledFrom([]string{"w1", "w2"}).Draw(w.r, "actor"),
		Generation: w.job.Generation + rapid.SampledFrom([]int{0, 0, 0, -1, 1, -7}).Draw(w.r, "generation"),
		Lease:      10 * time.Second,
		Class:      rapid.SampledFrom(domain.Classes).Draw(w.r, "class"),
		Digest:     rapid.SampledFrom([][]byte{nil, []byte("a")}).Draw(w.r, "digest"),
		Permanent:  rapid.IntRange(0, 9).Draw(w.r, "permanent") == 9,
		After:      &after,
	}
	if w.job.State == domain.Gone {
		c.Verb = domain.VerbEnqueue
		c.Enqueue = domain.Event{JobID: numbered(1), Kind: "k", Tag: "t", Policy: w.policy}
	}
	return c
}

// check holds the decision against the row of the table.
func (w *walk) check(t domain.Transition, c domain.Command, a domain.Answer) {
	switch {
	case a.Repeated:
		if !t.Fenced || c.Verb == domain.VerbPing || a.Refusal != "" || !slices.Contains(t.Events, a.Event.Type) {
			w.r.Fatalf("%s is answered as a repetition of %+v", c.Verb, a.Event)
		}
	case a.Refusal == "":
		if !slices.Contains(t.From, w.job.State) || !slices.Contains(t.Events, a.Event.Type) {
			w.r.Fatalf("%s of a job that is %s appends %s, which its row does not allow", c.Verb, w.job.State, a.Event.Type)
		}
		if t.Fenced && (c.Generation != w.job.Generation || c.Actor != w.job.Worker) {
			w.r.Fatalf("%s by %s with generation %d was allowed, but %s holds %d", c.Verb, c.Actor, c.Generation, w.job.Worker, w.job.Generation)
		}
	case a.Event.Type != "":
		if a.Event.Type != domain.Rejected || !t.Fenced || c.Generation < 1 || c.Generation > w.job.Generation {
			w.r.Fatalf("%s was refused with %s and yet appends %+v", c.Verb, a.Refusal, a.Event)
		}
		for _, e := range w.past {
			if e.Type == domain.Rejected && e.Generation == c.Generation && e.Verb == c.Verb {
				w.r.Fatalf("%s of generation %d was rejected twice", c.Verb, c.Generation)
			}
		}
	}
}

// checkMove holds what is true between two neighbouring versions of a job.
func (w *walk) checkMove(before domain.Job, e domain.Event) {
	j := w.job
	gained := 0
	if e.Type == domain.Claimed {
		gained = 1
	}
	switch {
	case j.Version != before.Version+1 || !e.At.Equal(w.now):
		w.r.Fatalf("version %d at %s follows version %d at %s", j.Version, e.At, before.Version, w.now)
	case j.Generation != before.Generation+gained:
		w.r.Fatalf("%s took generation %d to %d", e.Type, before.Generation, j.Generation)
	case j.Attempt < 0 || j.Attempt > j.Policy.MaxAttempts || j.Restarts > j.Policy.RestartLimit:
		w.r.Fatalf("attempt %d and %d restarts, but the policy has %d and %d", j.Attempt, j.Restarts, j.Policy.MaxAttempts, j.Policy.RestartLimit)
	case before.State == domain.Running && before.CanceledBy != "" && j.State == domain.Waiting:
		w.r.Fatalf("a job that was to be canceled is waiting again after %s", e.Type)
	case (j.State == domain.Ended) != (j.Outcome != "") || (j.State == domain.Running) != (j.State != domain.Ended && j.Worker != ""):
		w.r.Fatalf("a job that is %s has outcome %q and worker %q", j.State, j.Outcome, j.Worker)
	case before.State == domain.Ended && e.Type != domain.Rejected && e.Type != domain.Redriven:
		w.r.Fatalf("%s happened to a job that had ended", e.Type)
	}
}

func each[A, B any](in []A, f func(A) B) []B {
	out := make([]B, len(in))
	for i, v := range in {
		out[i] = f(v)
	}
	return out
}
