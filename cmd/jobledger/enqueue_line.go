package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// lineFields are the fields of a line of `enqueue --file`, in the order of the help. Each reads its JSON into the job;
// a policy field starts from the default policy.
var lineFields = []struct {
	name string
	read func(p *ledger.EnqueueParams, raw json.RawMessage) error
}{
	{"kind", func(p *ledger.EnqueueParams, raw json.RawMessage) error { return text(raw, &p.Kind) }},
	{"args", func(p *ledger.EnqueueParams, raw json.RawMessage) error { p.Args = raw; return nil }},
	{"tag", func(p *ledger.EnqueueParams, raw json.RawMessage) error { return text(raw, &p.Tag) }},
	{"priority", func(p *ledger.EnqueueParams, raw json.RawMessage) error {
		return whole(raw, &p.Priority, priorityRange)
	}},
	{"at", func(p *ledger.EnqueueParams, raw json.RawMessage) error { return instant(raw, &p.ScheduledFor) }},
	{"in", func(p *ledger.EnqueueParams, raw json.RawMessage) error { return duration(raw, &p.Delay) }},
	{"timeout", func(p *ledger.EnqueueParams, raw json.RawMessage) error { return duration(raw, &policy(p).Timeout) }},
	{"max_attempts", func(p *ledger.EnqueueParams, raw json.RawMessage) error {
		return whole(raw, &policy(p).MaxAttempts, attemptsRange)
	}},
	{"restart_limit", func(p *ledger.EnqueueParams, raw json.RawMessage) error {
		return whole(raw, &policy(p).RestartLimit, restartsRange)
	}},
	{"on_lost_lease", func(p *ledger.EnqueueParams, raw json.RawMessage) error {
		return text(raw, (*string)(&policy(p).OnLostLease))
	}},
	{"labels", func(p *ledger.EnqueueParams, raw json.RawMessage) error { return labels(raw, &p.Labels) }},
	{"key", func(p *ledger.EnqueueParams, raw json.RawMessage) error { return text(raw, &p.Key) }},
	{"key_ttl", func(p *ledger.EnqueueParams, raw json.RawMessage) error {
		var d time.Duration
		err := duration(raw, &d)
		if err == nil {
			p.KeyTTL, err = keyTTL(d)
		}
		return err
	}},
	{"correlation_id", func(p *ledger.EnqueueParams, raw json.RawMessage) error { return text(raw, &p.CorrelationID) }},
}

// policy is the policy of a job whose line says something about it.
func policy(p *ledger.EnqueueParams) *domain.Policy {
	if p.Policy == (domain.Policy{}) {
		p.Policy = domain.DefaultPolicy
	}
	return &p.Policy
}

// parseLine reads one job. It is strict where encoding/json is not: every field must be known, spelled exactly and
// there once, for a typo would otherwise be a job without its priority or key; and no text is changed on its way. The
// error is a *domain.FieldError or a *lineProblem.
func parseLine(line []byte) (ledger.EnqueueParams, error) {
	p := ledger.EnqueueParams{Origin: domain.Origin{TriggerKind: "manual"}}
	if err := checkLine(line); err != nil {
		return p, err
	}
	seen := map[string]bool{}
	err := eachField(line, func(name string, raw json.RawMessage) error {
		if seen[name] {
			return twice(name)
		}
		seen[name] = true
		for _, f := range lineFields {
			if f.name == name {
				return cmp.Or(domain.CheckJSON(name, raw), refusedValue(name, raw, f.read(&p, raw)))
			}
		}
		return unknownField(name)
	})
	switch {
	case err != nil:
		return p, err
	case !seen["kind"]:
		return p, &lineProblem{text: "kind is missing"}
	case seen["at"] && seen["in"]:
		return p, &lineProblem{text: "at and in both say when it is due"}
	case seen["key_ttl"] && !seen["key"]:
		return p, &lineProblem{text: "key_ttl is there without key"}
	case p.Policy != (domain.Policy{}):
		err := p.Policy.Validate()
		p.Policy.RestartLimit = restartLimit(p.Policy.RestartLimit)
		return p, err
	}
	return p, nil
}

// checkLine tests that line is a JSON object.
func checkLine(line []byte) error {
	if what, command := formatOf(line); what != "" {
		return otherFormat(what, command)
	}
	text := bytes.TrimSpace(line)
	var object json.RawMessage
	switch err := json.NewDecoder(bytes.NewReader(text)).Decode(&object); {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &lineProblem{"got the beginning of JSON: " + excerpt(text), "if an object has several lines: jq -c . {file} | jobledger enqueue --file -"}
	case text[0] == '[':
		return &lineProblem{"got " + excerpt(text) + ", want a JSON object", "if the whole file is an array: jq -c '.[]' {file} | jobledger enqueue --file -"}
	case err != nil:
		return &lineProblem{text: fmt.Sprintf("got %s, want a JSON object: %v", excerpt(text), err)}
	case text[0] != '{':
		return &lineProblem{text: "got " + excerpt(text) + ", want a JSON object"}
	case len(object) < len(text):
		return &lineProblem{text: fmt.Sprintf("got more behind the object: %s", excerpt(text[len(object):]))}
	}
	return nil
}

// refusedValue names the field whose value was refused because of want, nil where it was not.
func refusedValue(name string, raw json.RawMessage, want error) error {
	if field, ok := errors.AsType[*domain.FieldError](want); ok || want == nil {
		if field != nil {
			return field
		}
		return nil
	}
	return &domain.FieldError{Field: name, Value: domain.Described(excerpt(raw)), Want: want.Error()}
}

func twice(name string) error { return &lineProblem{text: quoted(name) + " is there twice"} }

// quoted is a name as it may be shown.
func quoted(name string) string { return clip(strconv.Quote(name), maxValue) }

// eachField calls f for each field of a JSON object.
func eachField(object []byte, f func(name string, raw json.RawMessage) error) error {
	dec := json.NewDecoder(bytes.NewReader(object))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return errors.Join(errors.New("no object"), err)
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return err
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return err
		}
		if err := f(name.(string), raw); err != nil { // what stands before a value in an object is a string
			return err
		}
	}
	return nil
}

func unknownField(name string) error {
	names := make([]string, len(lineFields))
	for i, f := range lineFields {
		names[i] = f.name
	}
	hint := "fields are " + strings.Join(names, ", ")
	for _, known := range names {
		if strings.EqualFold(known, strings.ReplaceAll(name, "-", "_")) || known == name+"s" {
			hint = "use " + known
		}
	}
	return &lineProblem{quoted(name) + " is no field of a job", hint}
}

// The readers of fields return what they want instead. None of them takes null: who writes a field means something.

func text(raw json.RawMessage, to *string) error {
	if raw[0] != '"' || json.Unmarshal(raw, to) != nil || *to == "" {
		return errors.New("a string that is not empty")
	}
	return nil
}

func whole(raw json.RawMessage, to *int, within string) error {
	n, err := strconv.Atoi(string(raw))
	if err != nil {
		return errors.New("a whole number, " + within)
	}
	*to = n
	return nil
}

func instant(raw json.RawMessage, to *time.Time) (err error) {
	var s string
	if err := text(raw, &s); err != nil {
		return err
	}
	*to, err = parseTime("at", s)
	return err
}

func duration(raw json.RawMessage, to *time.Duration) (err error) {
	var s string
	if text(raw, &s) == nil {
		*to, err = time.ParseDuration(s)
	}
	if s == "" || err != nil {
		return errors.New(`a string such as "90s" or "2h"`)
	}
	return nil
}

func labels(raw json.RawMessage, to *map[string]string) error {
	if raw[0] != '{' {
		return errors.New(`an object of strings, such as {"team": "mail"}`)
	}
	*to = map[string]string{}
	return eachField(raw, func(name string, value json.RawMessage) error {
		if _, there := (*to)[name]; there {
			return &domain.FieldError{Field: "labels", Value: domain.Described(quoted(name) + " twice"), Want: "each name once"}
		}
		var s string
		if err := text(value, &s); err != nil {
			return refusedValue("labels."+name, value, err)
		}
		(*to)[name] = s
		return nil
	})
}

// excerpt shows the beginning of what was given.
func excerpt(raw []byte) string { return clip(string(bytes.TrimSpace(raw)), 60) }
