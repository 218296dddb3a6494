package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// mark is what stands where an output could not be stored as it was.
const mark = "\uFFFD"

// refusedInput wants an input refused as wrong use, the field and a piece of the value named, and nothing stored.
func refusedInput(t *testing.T, b *bench, what string, got ran, field, piece string) {
	t.Helper()
	var told errorJSON
	if err := json.Unmarshal([]byte(got.stderr), &told); err != nil {
		t.Fatalf("%s: %v in %q", what, err, got.stderr)
	}
	if got.code != exitWrongUse || told.Code != "bad_input" || !strings.HasPrefix(told.Field, field) || !strings.Contains(told.Error, piece) || got.stdout != "" {
		t.Errorf("%s: exit code %d, %q on standard output and %+v, want bad input of %s with %s", what, got.code, got.stdout, told, field, piece)
	}
	if n := b.stored(t); n != 0 {
		t.Fatalf("%s: %d rows were stored", what, n)
	}
}

// TestCase18_NULInInputs: an input that cannot be given back is refused, whichever way it comes.
func TestCase18_NULInInputs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := t.TempDir()
	for _, bad := range []string{`\u0000`, `a\u0000b`, `\ud800`, `\udc00\ud800`, `\\\u0000`} {
		for _, args := range []string{`"%s"`, `{"%s":1}`, `[[1,{"a":["%s"]}]]`, `{"k":{"%s":[]}}`} {
			args = fmt.Sprintf(args, bad)
			file := filepath.Join(dir, "args.json")
			if err := os.WriteFile(file, []byte(args), 0o600); err != nil {
				t.Fatal(err)
			}
			piece := bad[len(bad)-6:]
			refusedInput(t, b, "flag", b.run(t, "", "enqueue", "k", "--json", "--args", args), "--args", piece)
			refusedInput(t, b, "file of args", b.run(t, "", "enqueue", "k", "--json", "--args", "@"+file), "--args", piece)
			refusedInput(t, b, "standard input", b.run(t, args, "enqueue", "k", "--json", "--args", "-"), "--args", piece)
			refusedInput(t, b, "line", b.run(t, `{"kind":"k","args":`+args+`}`, "enqueue", "--json", "--file", "-"), "args", piece)
		}
		for _, field := range []string{"kind", "tag", "key", "correlation_id", "on_lost_lease", "at", "in", "key_ttl"} {
			line := fmt.Sprintf(`{"%s":"%s"}`, field, bad)
			refusedInput(t, b, line, b.run(t, line, "enqueue", "--json", "--file", "-"), field, bad[len(bad)-6:])
		}
		for _, labels := range []string{`{"a":"%s"}`, `{"%s":"a"}`} {
			line := fmt.Sprintf(`{"kind":"k","labels":`+labels+`}`, bad)
			refusedInput(t, b, line, b.run(t, line, "enqueue", "--json", "--file", "-"), "labels", bad[len(bad)-6:])
		}
	}
	for name, value := range map[string]string{"--tag": "a\x00", "--key": "a\x00", "--label": "a=\x00", "--correlation-id": "\x00", "--actor": "\x00"} {
		refusedInput(t, b, name, b.run(t, "", "enqueue", "k", "--json", name, value), name, `\x00`)
	}
	for _, raw := range []string{"{\"kind\":\"k\x00\"}", "{\"kind\":\"k\",\"args\":\"\x00\"}", "\x00", "{\"kind\":\"k\"}\x00"} {
		refusedInput(t, b, strconv.Quote(raw), b.run(t, raw, "enqueue", "--json", "--file", "-"), "", "line 1")
	}
}

// TestCase18_LiteralText: what only looks like an escape is text, and stays as it is.
func TestCase18_LiteralText(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const args, text = `{"\\u0000":["\\\\u0000","\\ud800"]}`, `\u0000`
	flags := b.run(t, "", "enqueue", "k", "--args", args, "--key", text, "--label", "a="+text, "--correlation-id", text)
	line := b.run(t, `{"kind":"k","args":`+args+`,"key":"2\\u0000","labels":{"a":"\\u0000"},"correlation_id":"\\u0000"}`, "enqueue", "--file", "-")
	if flags.code != 0 || line.code != 0 {
		t.Fatalf("%+v, %+v", flags, line)
	}
	b.start(t, "work", "--drain", "--exec", "k=cat").exits(t, 0)
	jobs := b.run(t, "", "jobs", "list", "--json")
	for job := range strings.Lines(jobs.stdout) {
		var j jobJSON
		if err := json.Unmarshal([]byte(job), &j); err != nil {
			t.Fatal(err)
		}
		whole := b.job(t, j.JobID)
		if string(whole.Args) != args || string(whole.Result) != args || j.Labels["a"] != text || j.CorrelationID != text || j.Outcome != domain.Success {
			t.Errorf("args %s, result %s, %+v", whole.Args, whole.Result, j)
		}
	}
	var keys int
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM jobledger.idempotency_key WHERE key IN ($1, $2)`, text, "2"+text).Scan(&keys); err != nil || keys != 2 {
		t.Errorf("%d keys, %v", keys, err)
	}
	b.verified(t)
}

// TestCase18_NULInOutputs: whatever a command prints, its job ends, what could not be stored is seen, and a person's
// terminal is left alone.
func TestCase18_NULInOutputs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ids, args := map[string]uuid.UUID{}, []string{"work", "--drain", "--poll", "20ms"}
	cases := map[string]struct{ command, result, says string }{
		"raw":       {command: `printf '\000'`, result: `"` + mark + `"`},
		"not_utf8":  {command: `printf '\377\376'`, result: `"` + mark + `"`},
		"surrogate": {command: `printf '\355\240\200'`, result: `"` + mark + `"`},
		"value":     {command: `printf '%s' '{"a":["\u0000",1.10]}'`, result: `{"a":["\ufffd",1.10]}`},
		"key":       {command: `printf '%s' '{"\u0000":1}'`, result: `{"\ufffd":1}`},
		"half":      {command: `printf '%s' '["\ud800","\udc00\ud800"]'`, result: `["\ufffd","\ufffd\ufffd"]`},
		"pair":      {command: `printf '%s' '"\ud83d\ude00"'`, result: `"\ud83d\ude00"`},
		"literal":   {command: `printf '%s' '["\\u0000","\\\\ud800"]'`, result: `["\\u0000","\\\\ud800"]`},
		"stderr":    {command: `printf 'x\000\377y' >&2; exit 1`, says: "x" + mark + mark + "y"},
		"stdout":    {command: `printf 'x\000\377y'; exit 1`, says: "x" + mark},
		"escape":    {command: `printf '%s' 'a\u0000b' >&2; exit 1`, says: `a\u0000b`},
		"terminal":  {command: `printf '\033[2J\a' >&2; exit 1`, says: "\x1b[2J\a"},
	}
	for kind, c := range cases {
		ids[kind] = b.enqueue(t, ledger.EnqueueParams{Kind: kind, Policy: once})
		args = append(args, "--exec", kind+"="+c.command)
	}
	b.start(t, args...).exits(t, 0)
	for kind, c := range cases {
		t.Run(kind, func(t *testing.T) {
			job := b.job(t, ids[kind])
			if job.State != domain.Ended || string(job.Result) != c.result || (job.Outcome == domain.Success) != (c.says == "") || !strings.Contains(job.Error, c.says) {
				t.Errorf("ended with %q, result %s and error %q, want %s or %q", job.Outcome, job.Result, job.Error, c.result, c.says)
			}
			shown := b.run(t, "", "job", "show", job.ID.String())
			if shown.code != 0 || strings.ContainsFunc(shown.stdout, steers) || strings.Contains(c.result+c.says, mark) != strings.Contains(shown.stdout, mark) &&
				!strings.Contains(c.result, `\ufffd`) {
				t.Errorf("job show prints %q", shown.stdout)
			}
			programs := b.run(t, "", "job", "show", job.ID.String(), "--json")
			var j jobJSON
			if err := json.Unmarshal([]byte(programs.stdout), &j); err != nil || string(j.Result) != c.result || !strings.Contains(j.Error, c.says) {
				t.Errorf("job show --json prints %q: %v", programs.stdout, err)
			}
			altered := strings.Contains(c.result+c.says, mark) || strings.Contains(c.result, `\ufffd`)
			if j.ResultAltered != (altered && c.says == "") || j.ErrorAltered != (altered && c.says != "") || strings.Contains(shown.stdout, "(altered: ") != altered {
				t.Errorf("altered: %t, but %s%s", altered, shown.stdout, programs.stdout)
			}
		})
	}
	b.verified(t)
}

// steers: a terminal would obey it, or show something else in its place.
func steers(r rune) bool { return r != '\n' && inert(string(r)) != string(r) }

// TestCase20_DigitsStay: numbers keep their digits on every way in and out.
func TestCase20_DigitsStay(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const digits = `[9007199254740993,3889108265204450031,1e400,1.10,-0,123456789012345678901234567890,-0.0e-0,1E+2]`
	file := filepath.Join(t.TempDir(), "args.json")
	if err := os.WriteFile(file, []byte(digits), 0o600); err != nil {
		t.Fatal(err)
	}
	ways := map[string][]string{
		"flag": {"enqueue", "k", "--args", digits}, "file": {"enqueue", "k", "--args", "@" + file}, "stdin": {"enqueue", "k", "--args", "-"},
		"lines": {"enqueue", "--file", "-"},
	}
	stdin := map[string]string{"stdin": digits, "lines": `{"kind":"k","args":` + digits + `,"labels":{"n":"9007199254740993"}}`}
	var ids []uuid.UUID
	for way, args := range ways {
		got := b.run(t, stdin[way], append(args, "--json")...)
		var job enqueuedJSON
		if err := json.Unmarshal([]byte(got.stdout), &job); err != nil || got.code != 0 {
			t.Fatalf("%s: %+v: %v", way, got, err)
		}
		ids = append(ids, job.JobID)
	}
	b.start(t, "work", "--drain", "--exec", `k=cat; echo "$JOBLEDGER_JOB_ID" >&2`).exits(t, 0)
	for _, id := range ids {
		for _, c := range []struct {
			args []string
			want int
		}{{[]string{"job", "show"}, 2}, {[]string{"job", "show", "--json"}, 2}, {[]string{"job", "wait"}, 1}, {[]string{"job", "wait", "--json"}, 2}} {
			if got := b.run(t, "", append(c.args, id.String())...); strings.Count(got.stdout, digits) != c.want {
				t.Errorf("%v prints %s, want the digits %d times", c.args, got.stdout, c.want)
			}
		}
		if got := b.run(t, "", "job", "history", id.String(), "--json"); strings.Count(got.stdout, `"job_id":"`+id.String()+`"`) != 3 {
			t.Errorf("history prints %s", got.stdout)
		}
	}
	if got := b.run(t, "", "jobs", "list", "--label", "n=9007199254740993", "--json"); strings.Count(got.stdout, `"n":"9007199254740993"`) != 1 {
		t.Errorf("the job with the label is not found: %+v", got)
	}
	if got := b.run(t, "", "verify"); got.code != 0 {
		t.Errorf("verify: %+v", got)
	}
}

// TestCase22_LongTexts: a text that is too long for its field is refused by flag and by line, in bytes and whatever is in it.
func TestCase22_LongTexts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	random := rand.New(rand.NewPCG(22, 0))
	letters := func(n int) string {
		text := make([]byte, n)
		for i := range text {
			text[i] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[random.IntN(62)]
		}
		return string(text)
	}
	long := []string{letters(256), letters(2600), letters(3000), strings.Repeat("x", 8<<10), strings.Repeat("ü", 128), strings.Repeat("🎉", 64)}
	line := func(field, value string) string {
		job := map[string]any{"kind": "k", field: value}
		if field == "labels" {
			job[field] = map[string]string{"a": value}
		}
		text, err := json.Marshal(job)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, value := range long {
		for flag, field := range map[string]string{"--tag": "tag", "--key": "key", "--correlation-id": "correlation_id", "--label": "labels"} {
			given := value
			if flag == "--label" {
				given = "a=" + value
			}
			refusedInput(t, b, flag, b.run(t, "", "enqueue", "k", "--json", flag, given), flag, "1 to 255 bytes")
			refusedInput(t, b, field, b.run(t, line(field, value), "enqueue", "--json", "--file", "-"), field, "1 to 255 bytes")
		}
		refusedInput(t, b, "KIND", b.run(t, "", "enqueue", "--json", value), "KIND", "1 to 255 bytes")
		refusedInput(t, b, "kind", b.run(t, line("kind", value), "enqueue", "--json", "--file", "-"), "kind", "1 to 255 bytes")
		refusedInput(t, b, "--label", b.run(t, "", "enqueue", "k", "--json", "--label", value+"=a"), "--label", "1 to 255 bytes")
		refusedInput(t, b, "--actor", b.run(t, "", "enqueue", "k", "--json", "--actor", value), "--actor", "1 to 255 bytes")
		refusedInput(t, b, "--name", b.run(t, "", "work", "--json", "--exec", "k=true", "--drain", "--name", value), "--name", "1 to 255 bytes")
	}
	longest := letters(255)
	for _, got := range []ran{
		b.run(t, "", "enqueue", longest, "--tag", longest, "--key", longest, "--label", longest+"="+longest, "--correlation-id", longest, "--actor", longest),
		b.run(t, line("key", strings.Repeat("ü", 127)), "enqueue", "--file", "-"),
	} {
		if got.code != 0 {
			t.Errorf("255 bytes are refused: %s", got.stderr)
		}
	}
	b.verified(t)
}

// TestCase23_PriorityAtTheEdges: what is no priority is refused, and what is one decides who runs first.
func TestCase23_PriorityAtTheEdges(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, bad := range []string{"-2147483648", "-32769", "32768", "2147483647", "2147483648", "99999999999999999999", "1.5", "1e2", "0x7", "1_0", " 5", "five"} {
		refusedInput(t, b, "flag", b.run(t, "", "enqueue", "k", "--json", "--priority", bad), "--priority", "-32768 to 32767")
	}
	for _, bad := range []string{"-2147483648", "-32769", "32768", "2147483647", "2147483648", "99999999999999999999", "1.5", "1e2", `"5"`, "null", "true", "[5]"} {
		refusedInput(t, b, "line", b.run(t, `{"kind":"k","priority":`+bad+`}`, "enqueue", "--json", "--file", "-"), "priority", "-32768 to 32767")
	}
	var lines strings.Builder
	for i, priority := range []int{0, -1, 32767, -32768, 1, 0} {
		fmt.Fprintf(&lines, "{\"kind\":\"k\",\"args\":%d,\"priority\":%d}\n", i, priority)
	}
	if got := b.run(t, lines.String(), "enqueue", "--file", "-"); got.code != 0 {
		t.Fatal(got.stderr)
	}
	if got := b.run(t, "", "enqueue", "k", "--args", "6", "--priority", "32767"); got.code != 0 {
		t.Fatal(got.stderr)
	}
	ran := filepath.Join(t.TempDir(), "ran")
	b.start(t, "work", "--drain", "--concurrency", "1", "--exec", "k=cat >> "+ran+"; echo >> "+ran).exits(t, 0)
	order, err := os.ReadFile(ran)
	if got := strings.Join(strings.Fields(string(order)), " "); err != nil || got != "2 6 4 0 5 1 3" {
		t.Errorf("they ran in the order %s, want 2 6 4 0 5 1 3 (%v)", got, err)
	}
}
