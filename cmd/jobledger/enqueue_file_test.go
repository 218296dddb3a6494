package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// fileStore stands in for a ledger: it keeps what it is given, and checks it as the ledger does at its door.
type fileStore struct {
	kept    []ledger.EnqueueParams
	batches []int // their lengths
	most    int   // lines of a batch, batchJobs if 0
}

func (s *fileStore) enqueueMany(_ context.Context, jobs []ledger.EnqueueParams) ([]ledger.Enqueued, error) {
	for i, job := range jobs {
		err := domain.CheckName("kind", job.Kind)
		if err == nil {
			err = domain.CheckPriority(job.Priority)
		}
		if field, ok := errors.AsType[*domain.FieldError](err); ok {
			field.Index = i
			return nil, fmt.Errorf("enqueue: job %d: %w", i, field)
		}
	}
	s.kept, s.batches = append(s.kept, jobs...), append(s.batches, len(jobs))
	return make([]ledger.Enqueued, len(jobs)), nil
}

// read enqueues what in says and returns the error as it would be told.
func (s *fileStore) read(in io.Reader) (*fileEnqueuer, error) {
	a := &app{stdout: io.Discard, stderr: io.Discard}
	e := &fileEnqueuer{app: a, store: s.enqueueMany, name: "jobs.jsonl", isFile: true, most: cmp.Or(s.most, batchJobs), bar: a.progressBar(-1, "")}
	return e, e.run(context.Background(), in)
}

// told is an error as a person and as a program see it.
func told(t *testing.T, err error) (text, hint string, told errorJSON) {
	t.Helper()
	var cli *cliError
	if !errors.As(err, &cli) {
		t.Fatalf("%v is no error for people", err)
	}
	return plain(err), cli.hint, errorOf(err, cli.hint)
}

// TestEnqueueFileForms: what a file of jobs may look like.
func TestEnqueueFileForms(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"lines":              "{\"kind\":\"a\"}\n{\"kind\":\"b\"}\n",
		"last_without_break": "{\"kind\":\"a\"}\n{\"kind\":\"b\"}",
		"windows":            "\uFEFF{\"kind\":\"a\"}\r\n{\"kind\":\"b\"}\r\n",
		"empty_lines":        "\n\r\n  \t\n{\"kind\":\"a\"}\n\n\n{\"kind\":\"b\"}\n\n  ",
		"white_space":        "  {\t\"kind\" : \"a\" } \n\t{\"kind\":\"b\"}\r\n",
	} {
		s := &fileStore{}
		if _, err := s.read(strings.NewReader(text)); err != nil || len(s.kept) != 2 || s.kept[0].Kind != "a" || s.kept[1].Kind != "b" {
			t.Errorf("%s: %v, %+v", name, err, s.kept)
		}
	}
	for _, nothing := range []string{"", "\n", "\uFEFF", "\uFEFF\r\n\r\n"} {
		s := &fileStore{}
		if _, err := s.read(strings.NewReader(nothing)); err != nil || s.batches != nil {
			t.Errorf("%q: %v, %+v", nothing, err, s.batches)
		}
	}
}

// TestEnqueueFileRefuses: what is wrong with a line, or with the whole file, and what to do.
func TestEnqueueFileRefuses(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	for line, want := range map[string][2]string{
		"\x1f\x8b\x08\x00":                                   {"got a file that is compressed by gzip, want JSON Lines", "gzip -dc jobs.jsonl | jobledger enqueue --file -; nothing is stored"},
		"\x28\xb5\x2f\xfd":                                   {"compressed by zstd", "zstd -dc"},
		"PK\x03\x04":                                         {"a zip archive", "unzip -p"},
		"\xff\xfe{\x00\"\x00":                                {"UTF-16 text", "iconv -f UTF-16 -t UTF-8 jobs.jsonl"},
		"{\x00\"\x00":                                        {"UTF-16 text", "iconv -f UTF-16LE"},
		`[{"kind":"a"}]`:                                     {`got [{"kind":"a"}], want a JSON object`, "jq -c '.[]' jobs.jsonl | jobledger"},
		`[`:                                                  {"got the beginning of JSON: [", "jq"},
		"{\n\"kind\":\"a\"\n}":                               {"line 1: got the beginning of JSON: {", "jq -c . jobs.jsonl | jobledger"},
		"kind,args":                                          {"got kind,args, want a JSON object: invalid character 'k'", "correct it"},
		`"a"`:                                                {`got "a", want a JSON object`, ""},
		"{\"kind\":\"a\"}\n\uFEFF{}":                         {"line 2: got \\ufeff{}, want a JSON object", ""},
		"{\"kind\":\"a\"}\n{\"kind\":\"\x00\"}":              {"line 2: got ", ""},
		`{"kind":"a"}{"kind":"b"}`:                           {`got more behind the object: {"kind":"b"}`, ""},
		`{"kind":"a","priority":"5"}`:                        {`priority: got "5", want a whole number, -32768 to 32767`, ""},
		`{"kind":"a","priority":32768}`:                      {`priority: got 32768, want -32768 to 32767`, ""},
		`{"kind":"a","prio":1}`:                              {`"prio" is no field of a job`, "fields are kind, args,"},
		`{"kind":"a","Tag":"x"}`:                             {`"Tag" is no field of a job`, "use tag; nothing is stored"},
		`{"kind":"a","max-attempts":1}`:                      {`"max-attempts" is no field of a job`, "use max_attempts"},
		`{"kind":"a","label":1}`:                             {`"label" is no field of a job`, "use labels"},
		`{"kind":"a","\u001b[2J":1}`:                         {`"\x1b[2J" is no field of a job`, ""},
		`{"kind":"a","k\u0069nd":"b"}`:                       {`"kind" is there twice`, ""},
		`{"kind":"a","labels":{"x":"1","x":"2"}}`:            {`labels: got "x" twice, want each name once`, ""},
		`{"kind":"a","labels":{"x":1}}`:                      {`labels.x: got 1, want a string that is not empty`, ""},
		`{"kind":"a","labels":["x"]}`:                        {`labels: got ["x"], want an object of strings, such as {"team": "mail"}`, ""},
		`{"kind":"a","at":"2030-01-01"}`:                     {`at: got "2030-01-01", want a time with its offset`, ""},
		`{"kind":"a","at":"0001-01-01T00:00:00Z"}`:           {`at: got 0001-01-01 00:00:00 +0000 UTC, want a time within the years 1970 to 9999`, ""},
		`{"kind":"a","at":5}`:                                {`at: got 5, want a string that is not empty`, ""},
		`{"kind":"a","at":"2030-01-01T00:00:00Z","in":"1s"}`: {"at and in both say when it is due", ""},
		`{"kind":"a","key":"k","key_ttl":"-1ns"}`:            {"key_ttl: got -1ns, want 0 to 87600h", ""},
		`{"kind":"a","args":` + deep + `}`:                   {"line 1: ", ""},
		"{\"kind\":\"a\",\"key\":\"\xff\"}":                  {"key: got ", "correct it"},
		strings.Repeat("x", maxLine+1):                       {"got more than 1114112 bytes", ""},
		"\x1f\x8b" + strings.Repeat("x", maxLine):            {"compressed by gzip", "gzip -dc"},
	} {
		s := &fileStore{}
		_, err := s.read(strings.NewReader(line))
		text, hint, program := told(t, err)
		if !strings.Contains(inert(text), want[0]) || !strings.Contains(hint, want[1]) || !strings.HasPrefix(text, "jobs.jsonl line ") || len(text) > 500 {
			t.Errorf("%.60q: %s (%s), want %s (%s)", line, text, hint, want[0], want[1])
		}
		if s.kept != nil || program.Code != "bad_input" || program.Line == 0 || program.StoredLines == nil || *program.StoredLines != 0 || !strings.Contains(hint, "nothing is stored") {
			t.Errorf("%.60q: %d jobs kept, %+v (%s)", line, len(s.kept), program, hint)
		}
	}
}

// TestEnqueueFileBatches: a culprit takes its own batch with it and no other, and the rest can be given again.
func TestEnqueueFileBatches(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for i := range 2*batchJobs + 10 {
		fmt.Fprintf(&text, "{\"kind\":\"a\",\"args\":%d}\n\n", i)
	}
	for _, culprit := range []string{"{", `{"kind":"a b"}`} {
		s := &fileStore{}
		_, err := s.read(strings.NewReader(text.String() + culprit))
		told, hint, program := told(t, err)
		if len(s.kept) != 2*batchJobs || program.Line != 4*batchJobs+21 || *program.StoredLines != 4*batchJobs-1 {
			t.Errorf("%d jobs kept, %+v", len(s.kept), program)
		}
		if want := "lines 1 to 3999 are stored (2000 jobs)"; !strings.Contains(hint, want) || !strings.Contains(hint, "tail -n +4000 jobs.jsonl | jobledger enqueue --file -") {
			t.Errorf("%s: %s, want %s", told, hint, want)
		}
	}
	long := `{"kind":"a","args":"` + strings.Repeat("x", 1<<20-2) + "\"}\n"
	s := &fileStore{}
	if _, err := s.read(strings.NewReader(strings.Repeat(long, 20))); err != nil || fmt.Sprint(s.batches) != "[8 8 4]" {
		t.Errorf("batches of long lines are %v, %v", s.batches, err)
	}
}

// endless is a line without an end.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	e.read += len(p)
	return copy(p, bytes.Repeat([]byte("x"), len(p))), nil
}

// TestEnqueueFileBounded: a line without an end is refused when it is longer than any job, not when it has filled the memory.
func TestEnqueueFileBounded(t *testing.T) {
	t.Parallel()
	in := &endless{}
	if _, err := (&fileStore{}).read(in); err == nil || in.read > maxLine+128<<10 {
		t.Errorf("%d bytes were read: %v", in.read, err)
	}
}

// TestEnqueueFileReadError: an input that ends in an error is nobody's wrong use.
func TestEnqueueFileReadError(t *testing.T) {
	t.Parallel()
	s := &fileStore{}
	_, err := s.read(io.MultiReader(strings.NewReader("{\"kind\":\"a\"}\n"), readerFunc(func([]byte) (int, error) { return 0, errors.New("disk is broken") })))
	var cli *cliError
	if text, hint, program := told(t, err); text != "jobs.jsonl line 2: disk is broken" || !errors.As(err, &cli) || cli.code != exitFailed || s.kept != nil {
		t.Errorf("%s (%s), %+v", text, hint, program)
	}
}

// TestEnqueueFileInterrupted: a signal ends it also while it waits for input, or for the database, and what is known of
// the lines is told.
func TestEnqueueFileInterrupted(t *testing.T) {
	t.Parallel()
	t.Run("while_it_reads", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		p := b.process("enqueue", "--file", "-", "--json")
		p.Stdout = nil
		stdin, err := p.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := p.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		p.launch(t)
		if _, err := io.WriteString(stdin, strings.Repeat("{\"kind\":\"a\"}\n", batchJobs+1)); err != nil {
			t.Fatal(err)
		}
		for answers, i := bufio.NewScanner(stdout), 0; i < batchJobs; i++ {
			if !answers.Scan() {
				t.Fatalf("%d answers: %v", i, answers.Err())
			}
		}
		p.signal(t, syscall.SIGTERM)
		p.exits(t, 143)
		want := `{"error":"standard input line 1002: interrupted by SIGTERM","hint":"lines 1 to 1000 are stored (1000 jobs): go on with line 1001",` +
			`"code":"interrupted","line":1002,"stored_lines":1000}` + "\n"
		if p.stderr.String() != want {
			t.Errorf("it says %q, want %q", p.stderr.String(), want)
		}
	})
	t.Run("while_it_stores", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		tx, err := b.db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(t.Context())
		if _, err := b.EnqueueTx(t.Context(), tx, ledger.EnqueueParams{Kind: "a", Key: "held"}); err != nil {
			t.Fatal(err)
		}
		p := b.process("enqueue", "--file", "-")
		p.Stdin = strings.NewReader("{\"kind\":\"a\"}\n{\"kind\":\"a\",\"key\":\"held\"}\n")
		p.launch(t)
		b.db.WaitBlockedBy(t, tx.Conn().PgConn().PID(), 1)
		p.signal(t, syscall.SIGINT)
		p.exits(t, 130)
		if got := p.stderr.String(); !strings.HasPrefix(got, "error: standard input lines 1 to 2: interrupted by SIGINT\nhint: lines 1 to 2 may be stored or not;") {
			t.Errorf("it says %q", got)
		}
	})
}

// TestKeyConflictInFile names the line, or the job, that has the key.
func TestKeyConflictInFile(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	first := b.enqueue(t, ledger.EnqueueParams{Kind: "a", Key: "old", Args: "1"})
	stored := b.stored(t)
	for lines, want := range map[string]string{
		"{\"kind\":\"a\"}\n\n{\"kind\":\"a\",\"key\":\"new\"}\n{\"kind\":\"b\",\"key\":\"new\"}": "standard input line 4: key \"new\" was used in line 3 for another kind or other args",
		"{\"kind\":\"a\",\"key\":\"old\",\"args\":1}\n{\"kind\":\"a\",\"key\":\"old\"}":          "standard input line 2: key \"old\" was used by job " + first.String() + " for another kind or other args",
	} {
		got := b.run(t, lines, "enqueue", "--file", "-")
		if got.code != exitFailed || !strings.HasPrefix(got.stderr, "error: "+want+"\n") {
			t.Errorf("exit code %d, %q, want %q", got.code, got.stderr, want)
		}
		if strings.Contains(got.stderr, uuid.Nil.String()) {
			t.Errorf("a job is named that isn't there: %s", got.stderr)
		}
	}
	if n := b.stored(t); n != stored {
		t.Errorf("%d rows are there, want %d", n, stored)
	}
}
