package modeltest

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// model is a ledger in memory. What a verb does to one job, domain.Decide says; the model adds what lies
// between jobs: the order of claims, batches, keys and paused tags.
type model struct {
	now    time.Time
	ids    []uuid.UUID // in the order of their creation
	jobs   map[uuid.UUID]*history
	keys   map[string]holder
	paused map[string]bool
}

// history is one job in memory.
type history struct {
	events []domain.Event
	job    domain.Job
	bodies bodies
}

// holder is the job that an idempotency key belongs to.
type holder struct {
	job  uuid.UUID
	kind string
	args string
	ttl  time.Duration
}

func newModel(now time.Time) *model {
	return &model{now: now, jobs: map[uuid.UUID]*history{}, keys: map[string]holder{}, paused: map[string]bool{}}
}

// of returns the history of a job, an empty one that is not kept if there is none.
func (m *model) of(id uuid.UUID) *history {
	if h, ok := m.jobs[id]; ok {
		return h
	}
	return &history{bodies: bodies{}}
}

// homes are all jobs as their home rows have to be.
func (m *model) homes() map[uuid.UUID]domain.Job {
	out := make(map[uuid.UUID]domain.Job, len(m.jobs))
	for id, h := range m.jobs {
		out[id] = h.job
	}
	return out
}

// events counts the events of all jobs.
func (m *model) events() int {
	n := 0
	for _, h := range m.jobs {
		n += len(h.events)
	}
	return n
}

// do lets one command happen to one job and returns what has to be answered. body is the text that comes
// with it, nil for none.
func (m *model) do(id uuid.UUID, c domain.Command, body *string) (domain.Answer, reply, error) {
	h := m.of(id)
	before := h.job
	a, err := domain.Decide(h.events, c, m.now)
	if err != nil {
		return a, reply{}, err
	}
	if a.Event.Type != "" && !a.Repeated {
		if err := m.append(h, a.Event, body); err != nil {
			return a, reply{}, err
		}
	}
	return a, expected(before, h.job, c, a), nil
}

// append adds an event to a history. The body belongs to what the call did, not to its refusal.
func (m *model) append(h *history, e domain.Event, body *string) error {
	if err := h.job.Apply(e); err != nil {
		return err
	}
	h.events = append(h.events, e)
	if body != nil && e.Type != domain.Rejected {
		h.bodies[e.Version] = *body
	}
	return nil
}

// batch lets a call about several jobs happen. What its guard takes is done first, in the order of the
// ids and then of the input; only then are the others judged, on what the first ones left.
func (m *model) batch(c call) ([]reply, error) {
	replies := make([]reply, len(c.items))
	order := make([]int, len(c.items))
	for n := range order {
		order[n] = n
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return slices.Compare(c.items[a].job[:], c.items[b].job[:])
	})
	firstOf := map[uuid.UUID]int{} // cancel and redrive: a job that is named twice is answered twice alike
	pinged := map[item]bool{}      // ping: a lease that is named twice is extended once
	var refused []int
	for _, n := range order {
		i := c.items[n]
		if first, ok := firstOf[i.job]; ok && !c.fenced() {
			replies[n] = replies[first]
			continue
		}
		firstOf[i.job] = n
		d, err := domain.Decide(m.of(i.job).events, c.command(i), m.now)
		if err != nil {
			return nil, err
		}
		lease := item{job: i.job, generation: i.generation}
		if c.fenced() && (d.Refusal != "" || d.Repeated || pinged[lease]) {
			refused = append(refused, n)
			continue
		}
		pinged[lease] = c.verb == domain.VerbPing
		if replies[n], err = m.answer(c, i); err != nil {
			return nil, err
		}
	}
	for _, n := range refused {
		i := c.items[n]
		if j := m.of(i.job).job; pinged[item{job: i.job, generation: i.generation}] {
			replies[n] = expected(j, j, c.command(i), domain.Answer{Refusal: domain.RefusedBusy})
			continue
		}
		var err error
		if replies[n], err = m.answer(c, i); err != nil {
			return nil, err
		}
	}
	return replies, nil
}

// answer lets one item of a call happen.
func (m *model) answer(c call, i item) (reply, error) {
	_, r, err := m.do(i.job, c.command(i), c.stored(i))
	return r, err
}

// claimable are the jobs that a claim may take, best first.
func (m *model) claimable(tags []string) []domain.Job {
	var due []domain.Job
	for _, h := range m.jobs {
		if h.job.Due(m.now) && slices.Contains(tags, h.job.Tag) && !m.paused[h.job.Tag] {
			due = append(due, h.job)
		}
	}
	slices.SortFunc(due, func(a, b domain.Job) int {
		if a.Before(b) {
			return -1
		}
		return 1
	})
	return due
}

// reapable are the jobs that a reap may take back.
func (m *model) reapable(c call) map[uuid.UUID]bool {
	out := map[uuid.UUID]bool{}
	for id, h := range m.jobs {
		a, err := domain.Decide(h.events, c.command(item{}), m.now)
		if err == nil && a.Refusal == "" && (c.tags == nil || slices.Contains(c.tags, h.job.Tag)) {
			out[id] = true
		}
	}
	return out
}

// claimed is what a claim has to tell about a job that it took.
func (h *history) claimed(policyID int) ledger.Claimed {
	j := h.job
	c := ledger.Claimed{Held: ledger.Held{JobID: j.ID, Generation: j.Generation}, Kind: j.Kind, Tag: j.Tag, Priority: j.Priority,
		Attempt: j.Attempt, Restarts: j.Restarts, Version: j.Version, LastError: h.bodies[j.ErrorVersion], PolicyID: policyID,
		EnqueuedAt: j.EnqueuedAt, ScheduledFor: j.ScheduledFor, StartedAt: j.StartedAt}
	if args, ok := h.bodies[1]; ok {
		c.Args = []byte(args)
	}
	if progress, ok := h.bodies[j.ProgressVersion]; ok {
		c.Progress = []byte(progress)
	}
	if !j.LeaseUntil.IsZero() {
		c.Lease, c.Timeout = j.LeaseUntil.Sub(j.StartedAt), j.TimeoutAt.Sub(j.StartedAt)
	}
	return c
}

// lastWorker is who ran the newest generation, "" if nobody ever did.
func (h *history) lastWorker() string {
	for _, e := range slices.Backward(h.events) {
		if e.Type == domain.Claimed {
			return e.Actor
		}
	}
	return ""
}

func (h *history) String() string {
	s := fmt.Sprintf("job %s is %s", h.job.ID, h.job.State)
	for _, e := range h.events {
		s += fmt.Sprintf("\n  %d %s %s generation %d attempt %d by %s %s", e.Version, e.At.Format("15:04:05.000000"), e.Type, e.Generation, e.Attempt, e.Actor, e.Reason)
	}
	return s
}
