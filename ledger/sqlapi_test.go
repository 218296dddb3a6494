package ledger_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// internalFunctions are no part of the public interface: what is not here must be in the document.
var internalFunctions = []string{
	"acted", "body_digest", "bound_idle", "check_batch", "check_classes", "check_delays", "check_enqueue", "check_fact", "check_facts", "check_fenced", "check_ids", "check_json",
	"check_labels", "check_list", "check_names", "check_shape", "check_snapshot", "check_text", "check_worker", "clock", "elapsed", "ends_of", "home", "in_utc", "is_deep", "is_name",
	"json_place", "label_of", "microseconds", "new_job_id", "numbers_as_text", "policy_digest", "refuse", "refuse_field", "refuse_unless",
	"reject", "retry_delay", "same_json", "storable_errors", "storable_json", "stored_before", "take_keys", "taken_ids",
}

// codeBlock is a fenced block of a document.
type codeBlock struct{ language, text string }

var fence = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$")

// sqlDocument reads docs/SQL.md and its code blocks.
func sqlDocument(t *testing.T) (text string, blocks []codeBlock) {
	t.Helper()
	text = string(must(os.ReadFile(filepath.Join("..", "docs", "SQL.md")))(t))
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, codeBlock{m[1], m[2]})
	}
	return text, blocks
}

// TestSQLDocument holds docs/SQL.md against the database, so that the page cannot go stale.
func TestSQLDocument(t *testing.T) {
	t.Parallel()
	t.Run("signatures", func(t *testing.T) {
		t.Parallel()
		_, blocks := sqlDocument(t)
		var documented []string
		for _, b := range blocks {
			if b.language == "sql" {
				documented = append(documented, normalSignature(b.text))
			}
		}
		_, db := newLedger(t)
		const query = `SELECT proname || '(' || pg_get_function_arguments(oid) || ') RETURNS ' || pg_get_function_result(oid)
			FROM pg_proc WHERE pronamespace = 'jobledger'::regnamespace AND proname <> ALL ($1)`
		var actual []string
		for _, s := range must(pgx.CollectRows(must(db.Pool.Query(t.Context(), query, internalFunctions))(t), pgx.RowTo[string]))(t) {
			actual = append(actual, normalSignature(s))
		}
		for _, s := range actual {
			if !slices.Contains(documented, s) {
				t.Errorf("in the database and not in docs/SQL.md, nor internal: %s", s)
			}
		}
		for _, s := range documented {
			if !slices.Contains(actual, s) {
				t.Errorf("in docs/SQL.md and not in the database: %s", s)
			}
		}
	})
	t.Run("answer_columns", func(t *testing.T) {
		t.Parallel()
		text, _ := sqlDocument(t)
		_, db := newLedger(t)
		const query = `SELECT '| ` + "`' || attname || '`" + ` | ' || format_type(atttypid, NULL) || ' |' FROM pg_attribute
			WHERE attrelid = 'jobledger.answer'::regclass ORDER BY attnum`
		at := 0
		for _, row := range must(pgx.CollectRows(must(db.Pool.Query(t.Context(), query))(t), pgx.RowTo[string]))(t) {
			row = strings.ReplaceAll(row, "timestamp with time zone", "timestamptz")
			found := strings.Index(text[at:], row)
			if found < 0 {
				t.Fatalf("docs/SQL.md has no row %s, or not in this order", row)
			}
			at += found
		}
	})
	// The words and codes stand in the sources; each must be explained, and no other may be.
	t.Run("refusals", func(t *testing.T) {
		t.Parallel()
		text, _ := sqlDocument(t)
		source := string(must(os.ReadFile(filepath.Join("..", "domain", "errors.go")))(t))
		words := regexp.MustCompile(`Refusal = "(\w+)"`).FindAllStringSubmatch(source, -1)
		if len(words) < 10 {
			t.Fatalf("found %d refusals in domain/errors.go: the search is broken", len(words))
		}
		for _, w := range words {
			row := "| `" + w[1] + "` |"
			if w[1] == "not_due" || w[1] == "alive" { // which no function answers
				row = "`" + w[1] + "`"
			}
			if !strings.Contains(text, row) {
				t.Errorf("docs/SQL.md does not explain the refusal %s", w[1])
			}
		}
	})
	t.Run("codes", func(t *testing.T) {
		t.Parallel()
		text, _ := sqlDocument(t)
		for _, file := range must(filepath.Glob("*.sql"))(t) {
			for _, code := range regexp.MustCompile(`ERRCODE = '(JL\d+)'`).FindAllStringSubmatch(string(must(os.ReadFile(file))(t)), -1) {
				// JL000 undoes a late end inside the function and never leaves it.
				if code[1] != "JL000" && !strings.Contains(text, "| `"+code[1]+"` |") {
					t.Errorf("docs/SQL.md does not explain SQLSTATE %s of %s", code[1], file)
				}
			}
		}
	})
}

var (
	casts  = regexp.MustCompile(`::[a-z ]+(\[\])?`)
	spaces = regexp.MustCompile(`\s+`)
)

// normalSignature is one spelling of a signature: short names of types, no casts of defaults, no line breaks.
func normalSignature(s string) string {
	s = strings.ReplaceAll(s, "timestamp with time zone", "timestamptz")
	return spaces.ReplaceAllString(strings.TrimSpace(casts.ReplaceAllString(s, "")), " ")
}

// step is one input of the session in the document and what psql prints on it.
type step struct{ input, output string }

// sessionSteps reads the console blocks: "=> " begins an input, "-> " goes on with it, the rest is output.
func sessionSteps(blocks []codeBlock) (steps []step) {
	for _, b := range blocks {
		if b.language != "console" {
			continue
		}
		for line := range strings.Lines(b.text) {
			switch {
			case strings.HasPrefix(line, "=> "):
				steps = append(steps, step{input: line[3:]})
			case strings.HasPrefix(line, "-> "):
				steps[len(steps)-1].input += line[3:]
			default:
				steps[len(steps)-1].output += line
			}
		}
	}
	return steps
}

// TestSQLDocumentSession plays the session of docs/SQL.md with the real psql and compares what it prints.
func TestSQLDocumentSession(t *testing.T) {
	t.Parallel()
	psql := findPsql(t)
	_, blocks := sqlDocument(t)
	steps := sessionSteps(blocks)
	if len(steps) < 20 {
		t.Fatalf("found %d steps in docs/SQL.md: the reading is broken", len(steps))
	}
	l, db := newLedger(t)
	const mark = "@@ step %d"
	var script strings.Builder
	for i, s := range steps {
		fmt.Fprintf(&script, "\\echo "+mark+"\n%s\n", i, s.input)
	}
	var printed bytes.Buffer
	cmd := exec.CommandContext(t.Context(), psql, "-X", "-q", "-v", "ON_ERROR_STOP=0", db.URL)
	cmd.Env = append(os.Environ(), "PGCLIENTENCODING=UTF8", "LC_ALL=C", "PGOPTIONS=-c lc_messages=C", "PSQL_PAGER=", "PAGER=")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(script.String()), &printed, &printed
	if err := cmd.Run(); err != nil {
		t.Fatalf("psql: %v\n%s", err, printed.String())
	}
	var user string
	must(0, db.Pool.QueryRow(t.Context(), `SELECT session_user`).Scan(&user))(t)
	for i, s := range steps {
		_, rest, _ := strings.Cut(printed.String(), fmt.Sprintf(mark+"\n", i))
		got, _, _ := strings.Cut(rest, fmt.Sprintf(mark+"\n", i+1))
		if got, want := stable(got, user), stable(s.output, "ann"); got != want {
			t.Errorf("docs/SQL.md is stale.\n=> %sprints\n%s\nthe page says\n%s", s.input, got, want)
		}
	}
	verified(t, l, db)
}

var uuids = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// stable removes what differs from run to run: ids, the user's name, the padding of columns.
func stable(s, user string) string {
	s = uuids.ReplaceAllString(s, "<uuid>")
	var lines []string
	for line := range strings.Lines(s) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		for i, c := range cells {
			if cells[i] = strings.TrimSpace(c); cells[i] == user {
				cells[i] = "<user>"
			}
		}
		if line = strings.TrimSpace(strings.Join(cells, "|")); line != "" && strings.Trim(line, "-+") != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// findPsql finds the client that comes with Postgres, on the path or beside the server.
func findPsql(t *testing.T) string {
	t.Helper()
	if path, err := exec.LookPath("psql"); err == nil {
		return path
	}
	beside, _ := filepath.Glob("/usr/lib/postgresql/*/bin/psql") // the pattern is well-formed
	more, _ := filepath.Glob("/usr/pgsql-*/bin/psql")            // the pattern is well-formed
	if beside = append(beside, more...); len(beside) > 0 {
		return beside[len(beside)-1]
	}
	t.Skip("NOT TESTED: the session of docs/SQL.md needs psql, which is not on this machine (Debian: apt-get install postgresql-client)")
	return ""
}
