package modeltest

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// spelling is one way to write args. Those of the same class are the same payload to an idempotency key.
type spelling struct {
	text  string // "" for none
	class string
}

// spellings of few payloads, so that keys meet them again.
var spellings = []spelling{
	{``, "null"}, {`null`, "null"}, {` null `, "null"},
	{`{"a":1,"b":[2,"x"]}`, "object"}, {"{ \"b\" : [ 2 , \"\\u0078\" ],\n\"a\":1}", "object"},
	{`{"a":1.0,"b":[2,"x"]}`, "other number"}, {`{"a":1,"b":["x",2]}`, "other order of an array"},
	{`"/é"`, "string"}, {`"\/\u00e9"`, "string"},
	{`9007199254740993`, "large number"}, {`9007199254740992`, "its neighbour"},
}

func classOf(args string) string {
	for _, s := range spellings {
		if s.text == args {
			return s.class
		}
	}
	return args
}

// key of an enqueue without a life time lives for seven days after the end of its job.
func ttlOf(p ledger.EnqueueParams) time.Duration {
	switch p.KeyTTL {
	case 0:
		return domain.DefaultKeyTTL
	case ledger.KeyUntilEnded:
		return 0
	}
	return p.KeyTTL
}

// free reports whether a key may be given to another job: its own has ended, and its time has passed.
func (m *model) free(k holder) bool {
	j := m.of(k.job).job
	return j.State == domain.Ended && !j.EndedAt.Add(k.ttl).After(m.now)
}

// enqueue creates the jobs of a batch, all of them or, where a key was used for something else, none:
// the answer is then domain.ErrKeyConflict.
func (m *model) enqueue(c call) ([]ledger.Enqueued, error) {
	keys := maps.Clone(m.keys)
	out := make([]ledger.Enqueued, len(c.enqueue))
	for n, p := range c.enqueue {
		out[n].JobID = p.ID
		if p.Key == "" {
			continue
		}
		args, _ := p.Args.(string)
		k, taken := keys[p.Key]
		if !taken || m.free(k) {
			keys[p.Key] = holder{job: p.ID, kind: p.Kind, args: args, ttl: ttlOf(p)}
			continue
		}
		if k.kind != p.Kind || classOf(k.args) != classOf(args) {
			return nil, domain.ErrKeyConflict
		}
		out[n] = ledger.Enqueued{JobID: k.job, Replayed: true}
	}
	m.keys = keys
	for n, p := range c.enqueue {
		if out[n].Replayed {
			continue
		}
		if err := m.create(c, p); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (m *model) create(c call, p ledger.EnqueueParams) error {
	cmd, body, err := m.enqueueCommand(c, p)
	if err != nil {
		return err
	}
	a, err := domain.Decide(nil, cmd, m.now)
	if err != nil {
		return err
	}
	if a.Refusal != "" {
		return fmt.Errorf("the domain refuses an enqueue: %s", a.Refusal)
	}
	h := &history{bodies: bodies{}}
	m.jobs[p.ID] = h
	m.ids = append(m.ids, p.ID)
	return m.append(h, a.Event, body)
}

// enqueueCommand is what the domain is asked to create: with the defaults filled in, and a delay counted
// from now.
func (m *model) enqueueCommand(c call, p ledger.EnqueueParams) (domain.Command, *string, error) {
	e := domain.Event{JobID: p.ID, Kind: p.Kind, Tag: p.Tag, Priority: p.Priority, ScheduledFor: p.ScheduledFor,
		Policy: p.Policy.WithDefaults(), Origin: p.Origin}
	if e.Tag == "" {
		e.Tag = domain.DefaultTag
	}
	if e.Origin.TriggerKind == "" {
		e.Origin.TriggerKind = "api"
	}
	if p.Delay > 0 {
		e.ScheduledFor = m.now.Add(p.Delay)
	}
	if p.Labels != nil || p.CorrelationID != "" || p.Traceparent != "" {
		facts, err := json.Marshal(ledger.Facts{Labels: p.Labels, CorrelationID: p.CorrelationID, Traceparent: p.Traceparent})
		if err != nil {
			return domain.Command{}, nil, err
		}
		e.Facts = string(facts)
	}
	var body *string
	if args, ok := p.Args.(string); ok {
		body = &args
	}
	return domain.Command{Verb: domain.VerbEnqueue, Actor: c.actor, Digest: digest(body), Enqueue: e}, body, nil
}

// jobID makes the ids of a sequence the same on each run; order says where it sorts among the others.
func jobID(order, n int) uuid.UUID {
	var id uuid.UUID
	id[0], id[1], id[14], id[15] = byte(order>>8), byte(order), byte(n>>8), byte(n)
	id[6], id[8] = 0x70, 0x80
	return id
}
