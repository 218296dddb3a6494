package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// calm fails the test if an error could disturb a terminal, or flood it.
func calm(t *testing.T, err error) {
	t.Helper()
	var shown bytes.Buffer
	(&app{stderr: &shown}).exit(context.Background(), err)
	if text := shown.String(); strings.ContainsFunc(text, steers) || !utf8.ValidString(text) || len(text) > 8*maxTold || !strings.HasPrefix(text, "error: ") {
		t.Errorf("it says %q", text)
	}
}

// FuzzEnqueueLine: a line is refused in words that can be shown, or says exactly what encoding/json reads in it; written
// anew from what was read, it is read the same.
func FuzzEnqueueLine(f *testing.F) {
	for _, line := range []string{
		`{"kind":"a","args":{"n":[9007199254740993,1e400]},"tag":"slow","priority":-5,"labels":{"team":"mail"},"key":"k","key_ttl":"0s","correlation_id":"c"}`,
		`{"kind":"a","at":"2030-01-02T15:04:05.5+05:45","timeout":"90s","max_attempts":3,"restart_limit":0,"on_lost_lease":"fail"}`,
		`{"kind":"a","in":"90m","restart_limit":4}`, `{"kind":"a","args":"\u0000"}`, `{"kind":"\ud83d\ude00","k\u0069nd":"b"}`, "{\"kind\":\"a\",\"key\":\"\xff\"}",
		`{"kind":"a","key":"\\u0000"}`, `[1]`, `{"kind":"a"} x`, "\ufeff{}", "\x1f\x8b", `{"kind":null}`, `{"kind":"a","priority":1.5}`, `{"kind":"a","labels":{"a":1}}`,
	} {
		f.Add([]byte(line), uint8(0), "")
	}
	for i, value := range []string{"a", "[1.0]", "slow", "-5", "2030-01-02T15:04:05Z", "90s", "2h", "3", "4", "fail", `{"a":"b"}`, "k\\u0000", "0s", "ü"} {
		f.Add([]byte("{}"), uint8(i), value)
	}
	f.Fuzz(func(t *testing.T, line []byte, field uint8, value string) {
		readLine(t, line)
		// A value of a field by itself: chance alone rarely writes a whole line.
		name := lineFields[int(field)%len(lineFields)].name
		quoted, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		for _, value := range []string{value, string(quoted)} {
			readLine(t, fmt.Appendf(nil, `{"kind":"a",%q:%s}`, name, value))
			readLine(t, fmt.Appendf(nil, `{%q:%s,"kind":"a","key":"k"}`, name, value))
		}
	})
}

// readLine reads a line of a file, holds what it says against encoding/json, and reads it once more as we would write it.
func readLine(t *testing.T, line []byte) {
	t.Helper()
	if len(bytes.TrimSpace(line)) == 0 || len(line) > maxLine {
		return
	}
	p, err := parseLine(line)
	if err != nil {
		calm(t, (&fileEnqueuer{app: &app{}, name: "jobs.jsonl"}).culprit(asLine(err)))
		return
	}
	var same struct {
		Kind          string            `json:"kind"`
		Args          json.RawMessage   `json:"args"`
		Tag           string            `json:"tag"`
		Priority      int               `json:"priority"`
		Key           string            `json:"key"`
		Labels        map[string]string `json:"labels"`
		CorrelationID string            `json:"correlation_id"`
	}
	if err := json.Unmarshal(line, &same); err != nil || !utf8.Valid(line) {
		t.Fatalf("accepted, but %v", err)
	}
	args, _ := p.Args.(json.RawMessage)
	if p.Kind != same.Kind || !bytes.Equal(args, same.Args) || p.Tag != same.Tag || p.Priority != same.Priority || p.Key != same.Key ||
		!maps.Equal(p.Labels, same.Labels) || p.CorrelationID != same.CorrelationID {
		t.Errorf("read as %+v, want %+v", p, same)
	}
	again, err := parseLine(lineOf(t, p))
	if err != nil || !reflect.DeepEqual(normal(p), normal(again)) {
		t.Errorf("written as %s, it is read as %+v (%v), want %+v", lineOf(t, p), again, err, p)
	}
}

// lineOf writes a job as a line.
func lineOf(t *testing.T, p ledger.EnqueueParams) []byte {
	var b bytes.Buffer
	sep := "{"
	field := func(name string, value any) {
		text, isRaw := value.(json.RawMessage)
		if !isRaw {
			var err error
			if text, err = json.Marshal(value); err != nil {
				t.Fatal(err)
			}
		}
		fmt.Fprintf(&b, "%s%q:%s", sep, name, text)
		sep = ","
	}
	field("kind", p.Kind)
	if p.Args != nil {
		field("args", p.Args)
	}
	for name, text := range map[string]string{"tag": p.Tag, "key": p.Key, "correlation_id": p.CorrelationID} {
		if text != "" {
			field(name, text)
		}
	}
	field("priority", p.Priority)
	if !p.ScheduledFor.IsZero() {
		field("at", p.ScheduledFor)
	}
	if p.Delay != 0 {
		field("in", p.Delay.String())
	}
	if p.KeyTTL != 0 {
		field("key_ttl", max(p.KeyTTL, 0).String())
	}
	if len(p.Labels) > 0 {
		field("labels", p.Labels)
	}
	if p.Policy != (domain.Policy{}) {
		field("timeout", p.Policy.Timeout.String())
		field("max_attempts", p.Policy.MaxAttempts)
		field("restart_limit", max(p.Policy.RestartLimit, 0))
		field("on_lost_lease", p.Policy.OnLostLease)
	}
	b.WriteString("}")
	return b.Bytes()
}

// normal is p without what has two spellings.
func normal(p ledger.EnqueueParams) ledger.EnqueueParams {
	p.ScheduledFor = p.ScheduledFor.UTC()
	if len(p.Labels) == 0 {
		p.Labels = nil
	}
	return p
}

// FuzzEnqueueFile: of any file, what is stored are whole batches of its first lines, as if the file had ended there, and an
// error tells how many lines that is.
func FuzzEnqueueFile(f *testing.F) {
	for _, text := range []string{
		"{\"kind\":\"a\"}\n{\"kind\":\"b\",\"args\":1}\r\n\n{\"kind\":\"c\"}\n{\"kind\":\"d e\"}\n{\"kind\":\"f\"}", "\ufeff{\"kind\":\"a\"}", "{\n}\n", "\n\n\r\n", "\x1f\x8b\n", "[\n{\"kind\":\"a\"}]",
		strings.Repeat("{\"kind\":\"a\"}\n", 7) + "{\"kind\":", "{\"kind\":\"a\",\"priority\":99999}\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 64<<10 {
			return
		}
		s := &fileStore{most: 3}
		e, err := s.read(bytes.NewReader(text))
		if err == nil {
			if e.stored != len(s.kept) {
				t.Errorf("%d jobs stored, it says %d", len(s.kept), e.stored)
			}
			return
		}
		calm(t, err)
		told := errorOf(err, "")
		if told.StoredLines == nil || told.Line <= *told.StoredLines || told.Line > bytes.Count(text, []byte("\n"))+1 || len(s.kept)%3 != 0 {
			t.Fatalf("%d jobs kept, %+v", len(s.kept), told)
		}
		before := &fileStore{most: 3}
		lines := bytes.SplitAfterN(text, []byte("\n"), *told.StoredLines+1)
		if _, err := before.read(bytes.NewReader(bytes.Join(lines[:*told.StoredLines], nil))); err != nil || !reflect.DeepEqual(before.kept, s.kept) {
			t.Errorf("the first %d lines give %d jobs (%v), want %d", *told.StoredLines, len(before.kept), err, len(s.kept))
		}
	})
}

// FuzzEnqueueFlags: flags are refused in words that can be shown, or make a job that comes back as they said.
func FuzzEnqueueFlags(f *testing.F) {
	db := pgtest.New(f)
	l, err := ledger.New(db.Pool, ledger.Config{Actor: "tester"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("greet", `{"name": "Ada"}`, "slow", "-5", "", "90s", "2m", "4", "0", "fail", "team=mail", "order-17", "0s", "c-1", "")
	f.Add("a b", "\xef\xbb\xbf [1e400] ", "", "010", "2030-02-03T04:05:06.1234567+05:45", "", "", "", "", "", "a=b=c", "", "", "", "")
	f.Add("k", "-", "ü", "1.5", "2030-01-01T00:00:00", "-1s", "0s", "1001", "-1", "retry", "=", "a\x00", "-1ns", "\u202e", "--no-such\x00-x")
	f.Add("-k", "\"\\u0000\"", "x", "32768", "9999-12-31T23:59:59.9999999Z", "1ns", "1.0000005s", "1", "1000", "reconcile", "a=\xff", "\\u0000", "500ns", "ü", "")
	f.Add("k", "", "x", "", "", "9223372036854775807ns", "720h", "", "3", "", "", "k", "87600h", "", "--priority=5\x00--label\x00a=b")
	f.Fuzz(func(t *testing.T, kind, args, tag, priority, at, in, timeout, attempts, restarts, onLost, label, key, keyTTL, correlation, more string) {
		if strings.HasPrefix(args, "@") || strings.Contains(more, "--args") {
			return // other files of this machine
		}
		given := map[string]string{"args": args, "tag": tag, "priority": priority, "at": at, "in": in, "timeout": timeout, "max-attempts": attempts,
			"restart-limit": restarts, "on-lost-lease": onLost, "label": label, "key": key, "key-ttl": keyTTL, "correlation-id": correlation}
		var argv []string
		for name, value := range given {
			if value != "" {
				argv = append(argv, "--"+name, value)
			}
		}
		if more != "" {
			argv = append(argv, strings.Split(more, "\x00")...)
		}
		a := &app{stdin: strings.NewReader("17"), stdout: io.Discard, stderr: io.Discard}
		flags, cmd := enqueueFlags{}, &cobra.Command{Use: "enqueue"}
		flags.add(cmd.Flags())
		if err := cmd.ParseFlags(argv); err != nil {
			calm(t, flagError(cmd, err))
			return
		}
		p, err := a.enqueueParams(cmd, kind, flags)
		if err != nil {
			calm(t, err)
			return
		}
		tx, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.WithoutCancel(t.Context()))
		jobs, err := l.EnqueueTx(t.Context(), tx, p)
		var field *domain.FieldError
		switch {
		case errors.As(err, &field):
			calm(t, asFlags(err))
		case err != nil:
			t.Fatal(err)
		case more == "":
			comesBack(t, l, tx, jobs[0], kind, given)
		}
	})
}

// comesBack wants a job to be what its flags said; times have microseconds.
func comesBack(t *testing.T, l *ledger.Ledger, tx pgx.Tx, made ledger.Enqueued, kind string, given map[string]string) {
	t.Helper()
	job, err := l.Read().In(tx).Job(t.Context(), made.JobID)
	if err != nil {
		t.Fatal(err)
	}
	facts := factsOf(job.Facts)
	args := strings.TrimSpace(strings.TrimPrefix(given["args"], string(utf8BOM)))
	if args == "-" {
		args = "17"
	}
	name, value, _ := strings.Cut(given["label"], "=")
	want := map[string]string{"kind": kind, "args": args, "tag": cmp.Or(given["tag"], domain.DefaultTag), "on-lost-lease": cmp.Or(given["on-lost-lease"], "restart"),
		"label": value, "correlation-id": given["correlation-id"], "key": given["key"]}
	var key string
	var ttl time.Duration
	if err := tx.QueryRow(t.Context(), `SELECT coalesce(max(key), ''), coalesce(max(ttl), '0') FROM jobledger.idempotency_key WHERE job_id = $1`, made.JobID).Scan(&key, &ttl); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{"kind": job.Kind, "args": string(job.Args), "tag": job.Tag, "on-lost-lease": string(job.Policy.OnLostLease),
		"label": facts.Labels[name], "correlation-id": facts.CorrelationID, "key": key}
	if !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	numbers := map[string]int{"priority": job.Priority, "max-attempts": job.Policy.MaxAttempts, "restart-limit": job.Policy.RestartLimit}
	for name, byDefault := range map[string]int{"priority": 0, "max-attempts": domain.DefaultPolicy.MaxAttempts, "restart-limit": domain.DefaultPolicy.RestartLimit} {
		if n, err := strconv.Atoi(cmp.Or(given[name], strconv.Itoa(byDefault))); err != nil || numbers[name] != n {
			t.Errorf("%s is %d, want %s", name, numbers[name], given[name])
		}
	}
	spans := map[string]time.Duration{"timeout": job.Policy.Timeout, "key-ttl": ttl}
	if given["in"] != "" {
		spans["in"] = job.ScheduledFor.Sub(job.EnqueuedAt)
	}
	for name, d := range spans {
		if given[name] == "" {
			continue
		}
		if want, err := time.ParseDuration(given[name]); err != nil || d != want.Truncate(time.Microsecond) {
			t.Errorf("%s is %s, want %s", name, d, given[name])
		}
	}
	if given["at"] != "" {
		if want, err := time.Parse(time.RFC3339Nano, given["at"]); err != nil || !job.ScheduledFor.Equal(want.Truncate(time.Microsecond)) {
			t.Errorf("it is due at %s, want %s", job.ScheduledFor, given["at"])
		}
	}
}
