package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
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
	{"priority", func(p *ledger.EnqueueParams, raw json.RawMessage) error { return whole(raw, &p.Priority) }},
	{"at", func(p *ledger.EnqueueParams, raw json.RawMessage) error { return instant(raw, &p.ScheduledFor) }},
	{"in", func(p *ledger.EnqueueParams, raw json.RawMessage) error { return duration(raw, &p.Delay) }},
	{"timeout", func(p *ledger.EnqueueParams, raw json.RawMessage) error { return duration(raw, &policy(p).Timeout) }},
	{"max_attempts", func(p *ledger.EnqueueParams, raw json.RawMessage) error { return whole(raw, &policy(p).MaxAttempts) }},
	{"restart_limit", func(p *ledger.EnqueueParams, raw json.RawMessage) error { return whole(raw, &policy(p).RestartLimit) }},
	{"on_lost_lease", func(p *ledger.EnqueueParams, raw json.RawMessage) error {
		return text(raw, (*string)(&policy(p).OnLostLease))
	}},
	{"labels", func(p *ledger.EnqueueParams, raw json.RawMessage) error { return labels(raw, &p.Labels) }},
	{"key", func(p *ledger.EnqueueParams, raw json.RawMessage) error { return text(raw, &p.Key) }},
	{"key_ttl", func(p *ledger.EnqueueParams, raw json.RawMessage) error {
		err := duration(raw, &p.KeyTTL)
		p.KeyTTL = keyTTL(p.KeyTTL)
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
// there once, for a typo would otherwise be a job without its priority or key.
func parseLine(line []byte) (ledger.EnqueueParams, error) {
	p := ledger.EnqueueParams{Origin: domain.Origin{TriggerKind: "manual"}}
	seen := map[string]bool{}
	err := eachField(line, func(name string, raw json.RawMessage) error {
		if seen[name] {
			return fmt.Errorf("%s: is there twice", strconv.Quote(name))
		}
		seen[name] = true
		for _, f := range lineFields {
			if f.name != name {
				continue
			}
			if err := f.read(&p, raw); err != nil {
				return fmt.Errorf("%s: got %s, want %w", name, excerpt(raw), err)
			}
			return nil
		}
		return unknownField(name)
	})
	switch {
	case err != nil:
		return p, err
	case !seen["kind"]:
		return p, errors.New("kind: is missing")
	case seen["at"] && seen["in"]:
		return p, errors.New("at, in: both say when it is due")
	case seen["key_ttl"] && !seen["key"]:
		return p, errors.New("key_ttl: is there without key")
	case p.Policy != (domain.Policy{}):
		err := p.Policy.Validate()
		p.Policy.RestartLimit = restartLimit(p.Policy.RestartLimit)
		return p, err
	}
	return p, nil
}

// eachField calls f for each field of the object that is the whole of line.
func eachField(line []byte, f func(name string, raw json.RawMessage) error) error {
	dec := json.NewDecoder(bytes.NewReader(line))
	open, err := dec.Token()
	if err != nil {
		return notJSON(err)
	}
	if open != json.Delim('{') {
		return fmt.Errorf("got %s, want a JSON object", excerpt(line))
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return notJSON(err)
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return notJSON(err)
		}
		if err := f(name.(string), raw); err != nil { // what stands before a value in an object is a string
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return notJSON(err)
	}
	end := dec.InputOffset()
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("got more after the object: %s", excerpt(line[end:]))
	}
	return nil
}

func notJSON(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("no JSON object: it ends too early")
	}
	return fmt.Errorf("no JSON object: %w", err)
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
	return &cliError{err: fmt.Errorf("%s: is not known", strconv.Quote(name)), hint: hint, code: exitWrongUse}
}

// The readers of fields return what they want instead. None of them takes null: who writes a field means something.

func text(raw json.RawMessage, to *string) error {
	if raw[0] != '"' || json.Unmarshal(raw, to) != nil || *to == "" {
		return errors.New("a string that is not empty")
	}
	return nil
}

func whole(raw json.RawMessage, to *int) error {
	n, err := strconv.Atoi(string(raw))
	if err != nil {
		return errors.New("a whole number")
	}
	*to = n
	return nil
}

func instant(raw json.RawMessage, to *time.Time) (err error) {
	var s string
	if text(raw, &s) == nil {
		*to, err = parseTime(s)
	}
	if s == "" || err != nil {
		return errors.New(`a time with its offset, such as "2030-01-02T15:04:05Z"`)
	}
	return nil
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
	*to = map[string]string{}
	var names []string
	err := eachField(raw, func(name string, value json.RawMessage) error {
		var s string
		if err := text(value, &s); err != nil || slices.Contains(names, name) {
			return errors.New("not usable")
		}
		names, (*to)[name] = append(names, name), s
		return nil
	})
	if err != nil {
		return errors.New(`an object of strings, each name once, such as {"team": "mail"}`)
	}
	return nil
}

// excerpt shows the beginning of what was given.
func excerpt(raw []byte) string {
	raw = bytes.TrimSpace(raw)
	if len(raw) > 60 {
		return strings.ToValidUTF8(string(raw[:60]), "") + "..."
	}
	return string(raw)
}
