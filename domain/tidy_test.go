package domain_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// maxLines is how long a file may be: longer ones tell more than one story.
const maxLines = 400

var (
	testFunc  = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	localLink = regexp.MustCompile(`\]\(([^):#]+)\)`)
	namedTest = regexp.MustCompile(`\bTest[A-Z]\w*\*?`)
)

// TestTidy holds what reviews would otherwise have to look for: every test and file that a document names
// exists, tests wait for conditions and not for time, and files stay short.
func TestTidy(t *testing.T) {
	t.Parallel()
	var tests []string
	documents := map[string]string{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && (d.Name() == ".git" || d.Name() == "testdata") {
				return filepath.SkipDir
			}
			return err
		}
		text := ""
		switch filepath.Ext(path) {
		case ".go", ".sql", ".md":
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text = string(b)
		}
		if filepath.Ext(path) == ".md" {
			documents[path] = text
			return nil
		}
		if n := strings.Count(text, "\n"); n > maxLines {
			t.Errorf("%s has %d lines, want at most %d", path, n, maxLines)
		}
		if strings.HasSuffix(path, "_test.go") {
			for _, m := range testFunc.FindAllStringSubmatch(text, -1) {
				tests = append(tests, m[1])
			}
			if strings.Contains(text, "time."+"Sleep(") {
				t.Errorf("%s sleeps: wait for a channel or a condition of the database", path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(tests) < 50 || len(documents) < 5 {
		t.Fatalf("found %d tests and %d documents: the walk is broken", len(tests), len(documents))
	}
	for path, text := range documents {
		for _, m := range localLink.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s links to %s, which does not exist", path, m[1])
			}
		}
		for _, name := range namedTest.FindAllString(text, -1) {
			if !exists(tests, name) {
				t.Errorf("%s names %s, which is no test", path, name)
			}
		}
	}
}

// exists looks for a test; a * at the end stands for any end.
func exists(tests []string, name string) bool {
	prefix, any := strings.CutSuffix(name, "*")
	for _, test := range tests {
		if test == name || any && strings.HasPrefix(test, prefix) {
			return true
		}
	}
	return false
}
