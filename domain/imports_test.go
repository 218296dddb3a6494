package domain_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/jobledger/jobledger/"

// mayImport says which parts of the module each part may import; parts are named by their first
// folder, adapters and ledger/ledgertest by their first two. docs/ARCHITECTURE.md draws it.
func mayImport(from, to string) bool {
	if from == to {
		return true
	}
	switch {
	case to == "ledger/ledgertest":
		return false
	case from == "domain":
		return false
	case from == "migrations":
		return false
	case from == "projections":
		return to == "domain"
	case from == "ledger":
		return to == "domain" || to == "projections"
	case from == "ledger/ledgertest":
		// The kit for applications' tests brings a database with it, so it stands on top of the adapter that
		// starts one. It lies beside what it serves, where people look for it; nothing but tests imports it.
		return to == "ledger" || to == "domain" || to == "projections" || to == "adapters/postgres"
	case strings.HasPrefix(from, "adapters/"):
		return !strings.HasPrefix(to, "adapters/") && to != "cmd"
	}
	return from == "cmd"
}

// TestImportDirections holds the layout: cmd -> adapters -> ledger -> projections -> domain, and no
// adapter imports another one. domain imports the standard library and uuid only. Test files may
// import anything.
func TestImportDirections(t *testing.T) {
	t.Parallel()
	files := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := filepath.ToSlash(strings.TrimPrefix(path, ".."+string(filepath.Separator)))
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != ".." || d.Name() == "testdata" || rel == "docs") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files++
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		from := part(rel)
		for _, spec := range f.Imports {
			checkImport(t, rel, from, strings.Trim(spec.Path.Value, `"`))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 20 {
		t.Fatalf("looked at %d files: the walk is broken", files)
	}
}

func checkImport(t *testing.T, file, from, imported string) {
	t.Helper()
	to, ours := strings.CutPrefix(imported, module)
	if ours {
		if to := part(to + "/x.go"); !mayImport(from, to) {
			t.Errorf("%s imports %s: %s may not depend on %s", file, imported, from, to)
		}
		return
	}
	if from == "domain" && strings.Contains(imported, ".") && imported != "github.com/google/uuid" {
		t.Errorf("%s imports %s: domain imports the standard library and uuid only", file, imported)
	}
}

// part is the first folder of a file, or the first two for adapters and for ledger/ledgertest.
func part(file string) string {
	dirs := strings.Split(file, "/")
	if dirs[0] == "adapters" && len(dirs) > 2 || strings.HasPrefix(file, "ledger/ledgertest/") {
		return dirs[0] + "/" + dirs[1]
	}
	return dirs[0]
}
