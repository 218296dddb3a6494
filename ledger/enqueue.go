package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/domain"
)

// EnqueueParams describes a job to be created. Only Kind is required.
type EnqueueParams struct {
	// Kind says what to run: 1 to 255 bytes of ASCII letters, digits and ._:/-
	Kind string
	// Args is what the handler gets: a json.RawMessage, []byte or string is taken as JSON text and
	// kept as it is, digits included; anything else is marshalled. nil means none. At most 1 MiB, nested
	// at most 500 deep, without NUL and what is no UTF-8: the error names the place, as "args.to[2]".
	Args any
	// Tag is the routing label that workers subscribe to; same alphabet as Kind. Default "default".
	Tag string
	// Priority: higher first, -32768 to 32767, default 0.
	Priority int
	// ScheduledFor is when the job becomes due, within the years 1970 to 9999. Zero: now, or after Delay.
	ScheduledFor time.Time
	// Delay makes the job due that long after the database's now. Not together with ScheduledFor.
	Delay time.Duration
	// Policy is how it is retried, timed out and recovered. Zero: domain.DefaultPolicy.
	Policy domain.Policy
	// Key makes enqueueing idempotent: the same key with the same kind and args (as canonical JSON)
	// returns the first job. 1 to 255 bytes of UTF-8 without control characters.
	Key string
	// KeyTTL is how long the key outlives its job. Default 7 days; KeyUntilEnded for not at all.
	KeyTTL time.Duration
	// Labels are short strings to find the job by: at most 16. They don't change.
	Labels map[string]string
	// CorrelationID and Traceparent travel with the job to its handler.
	CorrelationID string
	Traceparent   string
	// Origin says where the job comes from. TriggerKind defaults to "api".
	Origin domain.Origin
	// ID is the job's id, where the caller must know it beforehand; ErrExists if a job has it already.
	// Default: a new UUIDv7.
	ID uuid.UUID
}

// KeyUntilEnded as KeyTTL frees the key as soon as its job has ended.
const KeyUntilEnded time.Duration = -1

// Enqueued is a job that now exists.
type Enqueued struct {
	JobID uuid.UUID
	// Replayed: the key had been used before with the same payload; JobID is that first job.
	Replayed bool
}

// Enqueue creates one job. If the connection breaks it is sent again under the same id, so that it exists
// once; only if the database stays away is it left open whether it was created: see
// *domain.UnknownOutcomeError, which tells the id and what to do.
func (l *Ledger) Enqueue(ctx context.Context, p EnqueueParams) (Enqueued, error) {
	return first(l.enqueue(ctx, poolQuerier{l.pool}, []EnqueueParams{p}, true))
}

// EnqueueMany creates up to domain.MaxBatch jobs: all of them or none. The error names the index of
// the first element that was refused.
func (l *Ledger) EnqueueMany(ctx context.Context, jobs []EnqueueParams) ([]Enqueued, error) {
	return l.enqueue(ctx, poolQuerier{l.pool}, jobs, true)
}

// EnqueueTx creates jobs inside the caller's transaction: they exist if and only if it commits. A
// refusal leaves the transaction usable, except bad input that only the database can see. ErrRunAgain
// says that the transaction is lost through no fault of its own. If the answer to the COMMIT is lost, the
// ids tell what became of it: Ledger.Job finds them or answers ErrNotFound; with keys, run it again.
func (l *Ledger) EnqueueTx(ctx context.Context, tx pgx.Tx, jobs ...EnqueueParams) ([]Enqueued, error) {
	return l.enqueue(ctx, pgxQuerier{tx}, jobs, false)
}

// EnqueueSQLTx is EnqueueTx for a *sql.Tx opened through pgx's stdlib driver.
func (l *Ledger) EnqueueSQLTx(ctx context.Context, tx *sql.Tx, jobs ...EnqueueParams) ([]Enqueued, error) {
	return l.enqueue(ctx, sqlQuerier{tx}, jobs, false)
}

func first(jobs []Enqueued, err error) (Enqueued, error) {
	if err != nil {
		return Enqueued{}, err
	}
	return jobs[0], nil
}

// enqueue checks and stores a batch. own says that the statement is its own transaction, so that a
// policy id it sees is committed and may be remembered.
func (l *Ledger) enqueue(ctx context.Context, q querier, jobs []EnqueueParams, own bool) ([]Enqueued, error) {
	if len(jobs) == 0 {
		return nil, nil
	}
	if err := domain.CheckBatch(len(jobs)); err != nil {
		return nil, fmt.Errorf("enqueue: %w", err)
	}
	var b enqueueBatch
	for i, p := range jobs {
		if err := b.add(p); err != nil {
			return nil, fmt.Errorf("enqueue: job %d: %w", i, atIndex(err, i))
		}
	}
	for i, p := range jobs {
		id, err := l.policyID(ctx, q, p.Policy.WithDefaults(), own)
		if err != nil {
			return nil, fmt.Errorf("enqueue: job %d: %w", i, err)
		}
		b.policies[i] = id
	}
	r := b.request(nullable(l.cfg.Actor))
	answers, err := l.answers(ctx, q, r, nil, len(jobs))
	if isCode(err, pgerrcode.UniqueViolation) {
		return nil, fmt.Errorf("%w: %w", domain.ErrExists, err) // another transaction took the id at the same time
	}
	if err != nil {
		return nil, err
	}
	done, err := b.enqueued(answers, r.maybe)
	if r.maybe && errors.Is(err, domain.ErrKeyBusy) {
		return nil, r.failed(err) // by the first sending, perhaps
	}
	return done, err
}

// request is the call for a batch. A second sending shows the same ids and salts, by which what the first
// one has stored is known.
func (b *enqueueBatch) request(actor *string) *request {
	r := &request{verb: domain.VerbEnqueue, name: "enqueue", jobs: make([]uuid.UUID, len(b.ids))}
	for i, id := range b.ids {
		r.jobs[i] = id
	}
	r.unsafe = slices.Contains(b.keys, nil)
	r.args = []any{b.kinds, orNil(b.args), b.tags, b.priorities, orNil(b.dues), orNil(b.delays), b.policies, orNil(b.keys), orNil(b.ttls),
		orNil(b.facts), b.triggerKinds, orNil(b.triggerRefs), b.parents.orNil(), b.works.orNil(), orNil(b.pins), b.ids, b.salts, actor}
	r.again = append(slices.Clone(r.args), false, true)
	r.args = append(r.args, b.chosen == nil, false)
	return r
}

// orNil leaves an optional array out where no element has a value.
func orNil[T any](elements []*T) []*T {
	for _, e := range elements {
		if e != nil {
			return elements
		}
	}
	return nil
}

// enqueued reads the answers: refused elements come alone, and then nothing was stored. again says that
// they are those of a second sending, which finds its own jobs: that is no replay.
func (b *enqueueBatch) enqueued(answers []Answer, again bool) ([]Enqueued, error) {
	out := make([]Enqueued, len(answers))
	for i, a := range answers {
		if a.Err != nil {
			return nil, b.withoutNewID(a.Err)
		}
		out[i] = Enqueued{JobID: a.JobID, Replayed: a.Repeated}
	}
	if len(out) != len(b.ids) {
		return nil, fmt.Errorf("enqueue: got %d answers for %d jobs", len(out), len(b.ids))
	}
	for i := range out {
		if again && out[i].JobID == b.ids[i] {
			out[i].Replayed = false
		}
	}
	return out, nil
}

// withoutNewID takes an id out of a refusal that was made for this batch and is no job's: nothing was stored. Left in
// is the id of the job that a key or an id belongs to.
func (b *enqueueBatch) withoutNewID(err error) error {
	refused, ok := err.(*domain.RefusedError)
	if !ok || refused.Index >= len(b.ids) {
		return err
	}
	same := func(i int) bool { return *b.keys[i] == *b.keys[refused.Index] && uuid.UUID(b.ids[i]) == refused.JobID }
	switch refused.Refusal {
	case domain.RefusedKeyBusy:
		refused.JobID = uuid.Nil
	case domain.RefusedKeyConflict:
		for i := range refused.Index {
			if b.keys[i] != nil && same(i) {
				refused.JobID = uuid.Nil
			}
		}
	}
	return refused
}

// enqueueBatch is a batch as the arrays that enqueue_many takes.
type enqueueBatch struct {
	chosen map[uuid.UUID]string // ids that came from the caller, each with its key

	ids, salts           ids
	kinds, tags          []string
	priorities, policies []int
	args, keys, facts    []*string
	dues                 []*time.Time
	delays, ttls         []*time.Duration
	triggerKinds         []string
	triggerRefs          []*string
	parents, works       refs
	pins                 []*int
}

func (b *enqueueBatch) add(p EnqueueParams) error {
	if p.Tag == "" {
		p.Tag = domain.DefaultTag
	}
	if p.Origin.TriggerKind == "" {
		p.Origin.TriggerKind = "api"
	}
	if err := p.check(); err != nil {
		return err
	}
	args, err := input("args", p.Args, domain.MaxArgsBytes)
	if err != nil {
		return err
	}
	facts, err := p.facts()
	if err != nil {
		return err
	}
	if p.ID == uuid.Nil {
		if p.ID, err = uuid.NewV7(); err != nil {
			return fmt.Errorf("make job id: %w", err)
		}
	} else if err := b.choose(p.ID, p.Key); err != nil {
		return err
	}
	ttl := nullable(p.KeyTTL)
	if p.KeyTTL == KeyUntilEnded {
		ttl = new(time.Duration)
	}
	b.ids, b.salts = append(b.ids, p.ID), append(b.salts, uuid.New())
	b.kinds, b.tags = append(b.kinds, p.Kind), append(b.tags, p.Tag)
	b.priorities, b.policies = append(b.priorities, p.Priority), append(b.policies, 0)
	b.args, b.keys, b.facts = append(b.args, args), append(b.keys, nullable(p.Key)), append(b.facts, facts)
	b.dues, b.delays, b.ttls = append(b.dues, nullable(p.ScheduledFor)), append(b.delays, nullable(p.Delay)), append(b.ttls, ttl)
	b.triggerKinds, b.triggerRefs = append(b.triggerKinds, p.Origin.TriggerKind), append(b.triggerRefs, nullable(p.Origin.TriggerRef))
	b.parents, b.works = append(b.parents, p.Origin.ParentID), append(b.works, p.Origin.WorkID)
	b.pins = append(b.pins, nullable(p.Origin.PinID))
	return nil
}

// choose notes an id of the caller's. The same one twice is one job, sent twice, if the key says so.
func (b *enqueueBatch) choose(id uuid.UUID, key string) error {
	if first, ok := b.chosen[id]; ok && (key == "" || key != first) {
		return &domain.FieldError{Field: "job_id", Value: id.String(), Want: "an id of its own for each job"}
	}
	if b.chosen == nil {
		b.chosen = map[uuid.UUID]string{}
	}
	b.chosen[id] = key
	return nil
}

// check tests everything that needs no database, in the order of the fields.
func (p EnqueueParams) check() error {
	if err := domain.CheckName("kind", p.Kind); err != nil {
		return err
	}
	if err := domain.CheckName("tag", p.Tag); err != nil {
		return err
	}
	if err := domain.CheckPriority(p.Priority); err != nil {
		return err
	}
	if !p.ScheduledFor.IsZero() {
		if err := domain.CheckTime("scheduled_for", p.ScheduledFor); err != nil {
			return err
		}
		if p.Delay != 0 {
			return &domain.FieldError{Field: "delay", Value: p.Delay, Want: "either a delay or scheduled_for, not both"}
		}
	}
	if err := domain.CheckDelay("delay", p.Delay); err != nil {
		return err
	}
	if p.Key != "" {
		if err := domain.CheckText("key", p.Key, domain.MaxKeyBytes); err != nil {
			return err
		}
	}
	if p.KeyTTL != KeyUntilEnded {
		if err := domain.CheckDelay("key_ttl", p.KeyTTL); err != nil {
			return err
		}
	}
	if err := domain.CheckName("trigger_kind", p.Origin.TriggerKind); err != nil {
		return err
	}
	if p.Origin.TriggerRef != "" {
		if err := domain.CheckText("trigger_ref", p.Origin.TriggerRef, domain.MaxRefBytes); err != nil {
			return err
		}
	}
	return p.Policy.WithDefaults().Validate()
}

// facts are the small unchanging extras of a job, as one JSON object; nil if there are none.
func (p EnqueueParams) facts() (*string, error) {
	if len(p.Labels) == 0 && p.CorrelationID == "" && p.Traceparent == "" {
		return nil, nil
	}
	if len(p.Labels) > domain.MaxLabels {
		return nil, &domain.FieldError{Field: "labels", Value: len(p.Labels), Want: "at most 16 labels"}
	}
	for _, k := range slices.Sorted(maps.Keys(p.Labels)) {
		if err := domain.CheckName("labels", k); err != nil {
			return nil, err
		}
		if err := domain.CheckText("labels."+k, p.Labels[k], domain.MaxNameBytes); err != nil {
			return nil, err
		}
	}
	if p.CorrelationID != "" {
		if err := domain.CheckText("correlation_id", p.CorrelationID, domain.MaxNameBytes); err != nil {
			return nil, err
		}
	}
	if p.Traceparent != "" {
		if err := domain.CheckText("traceparent", p.Traceparent, domain.MaxNameBytes); err != nil {
			return nil, err
		}
	}
	s := encode(Facts{Labels: p.Labels, CorrelationID: p.CorrelationID, Traceparent: p.Traceparent})
	if len(s) > domain.MaxFactsBytes {
		return nil, &domain.FieldError{Field: "facts", Value: fmt.Sprintf("%d bytes of labels, correlation_id and traceparent", len(s)), Want: "at most 4096 bytes"}
	}
	return &s, nil
}

// Facts is the JSON form of a job's labels, correlation id and traceparent.
type Facts struct {
	Labels        map[string]string `json:"labels,omitempty"`
	CorrelationID string            `json:"correlation_id,omitempty"`
	Traceparent   string            `json:"traceparent,omitempty"`
}

// atIndex says in a FieldError which element of a batch it is about.
func atIndex(err error, i int) error {
	if f, ok := err.(*domain.FieldError); ok {
		f.Index = i
	}
	return err
}
