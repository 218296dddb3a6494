package modeltest

import (
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// chooser decides what happens next: rapid in the model test, where it can shrink, and a plain
// pseudo-random source in the mutant test. pick returns 0 to n-1; 0 is the simplest.
type chooser interface {
	pick(what string, n int) int
}

func oneOf[T any](ch chooser, what string, from []T) T { return from[ch.pick(what, len(from))] }

// chance is true in n of 100 cases.
func chance(ch chooser, what string, n int) bool { return ch.pick(what, 100) >= 100-n }

// generator makes the commands of one sequence.
type generator struct {
	ch   chooser
	m    *model
	last []call // closing calls made so far: an owner may send one again
}

// What a sequence is made of. Few values of each, so that they meet.
var (
	workers   = []string{"w1", "w2", "w3"}
	reapers   = []string{"reaper", "w1", "w2"} // workers reap, too
	operators = []string{"boss", "w3"}
	tags      = []string{"a", "b", "c"}
	kinds     = []string{"mail", "report"}
	keys      = []string{"k1", "k2"}
	leases    = []time.Duration{10 * time.Second, time.Second, 5 * time.Second, 30 * time.Second}
	delays    = []time.Duration{0, time.Second, 7 * time.Second}
	results   = []string{"", `{"n":1}`, `"done"`, "no json \x00"}
	failures  = []string{"", "boom", "bad \x00 byte"}
	reports   = []string{"", "", `{"done":1}`, `{"done":2}`}
	reasons   = []string{"", "because"}
)

// policies of all kinds: budgets of one to three attempts, none to two restarts, every on_lost_lease,
// time-outs before, at and after the end of a lease.
var policies = []domain.Policy{
	{},
	{MaxAttempts: 1, Timeout: 20 * time.Second, RestartLimit: domain.None, BackoffBase: time.Second, BackoffJitter: domain.None},
	{MaxAttempts: 2, Timeout: 5 * time.Second, RestartLimit: 1, BackoffBase: time.Second, BackoffFactor: 300, BackoffJitter: 50},
	{MaxAttempts: 3, Timeout: 10 * time.Second, RestartLimit: 2, BackoffBase: 10 * time.Millisecond, BackoffCap: 15 * time.Millisecond, BackoffJitter: 100},
	{MaxAttempts: 3, Timeout: 7 * time.Second, RestartLimit: 2, OnLostLease: domain.FailIt, BackoffBase: 2 * time.Second},
	{MaxAttempts: 2, RestartLimit: 2, OnLostLease: domain.Reconcile, BackoffBase: time.Millisecond},
	{MaxAttempts: 25, Timeout: time.Minute, RestartLimit: 1, BackoffBase: 3 * time.Second, StallAfter: time.Minute},
}

// The verbs by how often they come. Ending verbs are rare, so that jobs live long.
var mix = slices.Concat(
	slices.Repeat([]domain.Verb{domain.VerbClaim}, 11),
	slices.Repeat([]domain.Verb{domain.VerbReap}, 6),
	slices.Repeat([]domain.Verb{domain.VerbFail}, 3),
	slices.Repeat([]domain.Verb{domain.VerbRelease}, 3),
	slices.Repeat([]domain.Verb{domain.VerbPing}, 4),
	slices.Repeat([]domain.Verb{domain.VerbSnooze}, 3),
	slices.Repeat([]domain.Verb{domain.VerbComplete}, 3),
	slices.Repeat([]domain.Verb{domain.VerbCancel}, 3),
	slices.Repeat([]domain.Verb{domain.VerbRedrive}, 5),
	slices.Repeat([]domain.Verb{domain.VerbEnqueue}, 2),
)

// maxJobs bounds the jobs of a sequence: with more, each is met too seldom.
const maxJobs = 10

// next makes the next call. The first ones enqueue, until there are at least five jobs.
func (g *generator) next() call {
	verb := oneOf(g.ch, "verb", mix)
	if len(g.m.ids) < 5 || verb == domain.VerbEnqueue && len(g.m.ids) < maxJobs {
		return g.enqueue()
	}
	switch verb {
	case domain.VerbClaim:
		return call{verb: verb, actor: oneOf(g.ch, "worker", workers), lease: oneOf(g.ch, "lease", leases),
			tags: g.tags(), max: 1 + g.ch.pick("max", 4)}
	case domain.VerbReap:
		c := call{verb: verb, actor: oneOf(g.ch, "reaper", reapers), max: oneOf(g.ch, "max", []int{500, 1, 2})}
		if chance(g.ch, "some tags", 20) {
			c.tags = g.tags()
		}
		return c
	case domain.VerbCancel, domain.VerbRedrive:
		return g.byOperator(verb)
	case domain.VerbEnqueue:
		verb = domain.VerbPing
	}
	return g.byOwner(verb)
}

// tags draws one to three tags.
func (g *generator) tags() []string {
	return [][]string{{"a", "b", "c"}, {"a"}, {"b", "c"}, {"c", "a", "c"}, {"b"}}[g.ch.pick("tags", 5)]
}

func (g *generator) byOperator(verb domain.Verb) call {
	c := call{verb: verb, actor: oneOf(g.ch, "operator", operators), reason: oneOf(g.ch, "reason", reasons), operation: uuid.New()}
	if chance(g.ch, "bulk, or sent again", 20) {
		c.operation = jobID(0xffff, g.ch.pick("operation", 3))
	}
	for range 1 + g.ch.pick("more jobs", 2) {
		i := item{job: g.job(g.m.ids)}
		if verb == domain.VerbCancel && chance(g.ch, "running", 50) {
			i.job = g.held("", i.job)
		}
		c.items = append(c.items, i)
	}
	return c
}

// rare are the states that few jobs are in, or not for long.
var rare = []string{"redriven", "marked", "lease_over", "marked_over", "success", "failure"}

// job draws a state that some of the jobs are in, rare ones with preference, and then one of these jobs;
// now and then a job that does not exist.
func (g *generator) job(from []uuid.UUID) uuid.UUID {
	if chance(g.ch, "unknown job", 5) {
		return jobID(0x8000, 9999)
	}
	in := map[string][]uuid.UUID{}
	for _, id := range from {
		state := stateOf(g.m.jobs[id], g.m.now)
		in[state] = append(in[state], id)
	}
	present := slices.Sorted(maps.Keys(in))
	for _, state := range rare {
		if in[state] != nil {
			present = append(present, state, state, state)
		}
	}
	return oneOf(g.ch, "job", in[oneOf(g.ch, "state", present)])
}

// byOwner makes a fenced call about one to four leases, or sends an earlier one again.
func (g *generator) byOwner(verb domain.Verb) call {
	if len(g.last) > 0 && chance(g.ch, "again", 10) {
		return g.last[len(g.last)-1-g.ch.pick("which", min(len(g.last), 3))]
	}
	c := call{verb: verb}
	if verb == domain.VerbPing {
		c.lease = oneOf(g.ch, "lease", leases)
	}
	for n := range 1 + g.ch.pick("more leases", 4) {
		i := g.lease(c.actor)
		if n == 0 {
			c.actor = g.owner(g.m.of(i.job))
		}
		if n > 0 && chance(g.ch, "same job", 10) {
			i = c.items[0]
		}
		g.fill(verb, &i)
		c.items = append(c.items, i)
	}
	if verb != domain.VerbPing {
		g.last = append(g.last, c)
	}
	return c
}

// lease draws a job and the generation shown for it: in more than half of the cases its own, mostly of a
// job that the worker holds; else an older one, one that is still to come, or none at all.
func (g *generator) lease(worker string) item {
	i := item{job: g.job(g.m.ids), after: byPolicy}
	switch g.ch.pick("generation", 22) {
	case 12, 13, 14, 15, 16:
		ran := slices.DeleteFunc(slices.Clone(g.m.ids), func(id uuid.UUID) bool { return g.m.jobs[id].job.Generation < 2 })
		if len(ran) > 0 {
			i.job = g.job(ran)
			i.generation = 1 + g.ch.pick("older", max(g.m.of(i.job).job.Generation-1, 1))
			return i
		}
	case 17, 18, 19:
		i.generation = g.m.of(i.job).job.Generation + 1 + g.ch.pick("above", 3)
		return i
	case 20, 21:
		i.generation = -g.ch.pick("never", 3)
		return i
	}
	if chance(g.ch, "held", 50) {
		i.job = g.held(worker, i.job)
	}
	i.generation = g.m.of(i.job).job.Generation
	return i
}

// held draws a job that the worker (or, if none is chosen yet, any worker) runs; otherwise if there is none.
func (g *generator) held(worker string, otherwise uuid.UUID) uuid.UUID {
	running := slices.DeleteFunc(slices.Clone(g.m.ids), func(id uuid.UUID) bool {
		h := g.m.jobs[id]
		state := stateOf(h, g.m.now)
		return state != "running" && state != "marked" || worker != "" && h.job.Worker != worker
	})
	if len(running) == 0 {
		return otherwise
	}
	return oneOf(g.ch, "held job", running)
}

// owner draws the last worker of the job in three cases of four, else another one.
func (g *generator) owner(h *history) string {
	if w := h.lastWorker(); w != "" && !chance(g.ch, "foreign", 25) {
		return w
	}
	return oneOf(g.ch, "worker", workers)
}

// fill draws what the verb says about one lease.
func (g *generator) fill(verb domain.Verb, i *item) {
	switch verb {
	case domain.VerbPing:
		i.text = oneOf(g.ch, "progress", reports)
	case domain.VerbComplete:
		i.text = oneOf(g.ch, "result", results)
	case domain.VerbFail:
		i.text, i.class = oneOf(g.ch, "error", failures), oneOf(g.ch, "class", domain.Classes)
		i.permanent = chance(g.ch, "permanent", 10)
		if chance(g.ch, "own delay", 30) {
			i.after = oneOf(g.ch, "delay", delays)
		}
	case domain.VerbSnooze:
		i.after, i.reason = oneOf(g.ch, "delay", delays), oneOf(g.ch, "reason", reasons)
	}
}

func (g *generator) enqueue() call {
	c := call{verb: domain.VerbEnqueue, actor: enqueuer}
	for range 1 + g.ch.pick("more jobs", 3) {
		p := ledger.EnqueueParams{
			ID:   jobID(g.ch.pick("order", 1<<16), len(g.m.ids)+len(c.enqueue)+1),
			Kind: oneOf(g.ch, "kind", kinds), Tag: oneOf(g.ch, "tag", tags), Policy: oneOf(g.ch, "policy", policies),
			Priority: oneOf(g.ch, "priority", []int{0, 0, 0, 7, -3, domain.MaxPriority, domain.MinPriority}),
		}
		switch g.ch.pick("due", 5) {
		case 3:
			p.Delay = oneOf(g.ch, "delay", []time.Duration{time.Second, 10 * time.Second, time.Hour})
		case 4:
			p.ScheduledFor = g.m.now.Add(oneOf(g.ch, "at", []time.Duration{-time.Hour, 0, time.Microsecond, 5 * time.Second}))
		}
		if text := oneOf(g.ch, "args", spellings).text; text != "" {
			p.Args = text
		}
		if chance(g.ch, "facts", 20) {
			p.Labels, p.Origin = map[string]string{"team": "x"}, domain.Origin{TriggerKind: "manual", TriggerRef: "page", ParentID: jobID(1, 1), PinID: 7}
		}
		if chance(g.ch, "keyed", 50) {
			p.Key, p.KeyTTL = oneOf(g.ch, "key", keys), oneOf(g.ch, "ttl", []time.Duration{0, ledger.KeyUntilEnded, 5 * time.Second})
			// A caller whose answer was lost sends all of it again, the id, too.
			if k, ok := g.m.keys[p.Key]; ok && !g.m.free(k) && chance(g.ch, "own id", 30) {
				p.ID = k.job
			}
		}
		c.enqueue = append(c.enqueue, p)
	}
	return c
}

// advance draws the next instant: a boundary that is near, a microsecond before it, at it, or after it;
// else a small step.
func (g *generator) advance() time.Time {
	var at []time.Time
	for _, id := range g.m.ids {
		at = append(at, boundaries(g.m.jobs[id].job)...)
	}
	for _, k := range g.m.keys {
		if j := g.m.of(k.job).job; j.State == domain.Ended {
			at = append(at, j.EndedAt.Add(k.ttl))
		}
	}
	slices.SortFunc(at, time.Time.Compare)
	at = slices.CompactFunc(at, time.Time.Equal)
	at = slices.DeleteFunc(at, func(t time.Time) bool { return !t.After(g.m.now) })
	if len(at) == 0 || chance(g.ch, "small step", 15) {
		return g.m.now.Add(oneOf(g.ch, "step", []time.Duration{time.Microsecond, time.Second, 3 * time.Second}))
	}
	near := at[g.ch.pick("boundary", min(len(at), 3))]
	return near.Add(oneOf(g.ch, "side", []time.Duration{0, -time.Microsecond, time.Microsecond}))
}

// boundaries are the instants at which a job changes what it may do by itself.
func boundaries(j domain.Job) []time.Time {
	switch j.State {
	case domain.Waiting:
		return []time.Time{j.ScheduledFor}
	case domain.Running:
		if !j.LeaseUntil.IsZero() {
			return []time.Time{j.LeaseUntil, j.TimeoutAt}
		}
	}
	return nil
}
