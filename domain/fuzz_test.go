package domain_test

import (
	"encoding/json"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jobledger/jobledger/domain"
)

// FuzzCheckJSON: what is accepted is JSON in which nothing need be substituted; what is not is refused in few words;
// and what is JSON at all can be made storable without touching anything but the culprits. (FuzzJSON in ledger/modeltest asks
// Postgres itself.)
func FuzzCheckJSON(f *testing.F) {
	for _, text := range []string{
		`{"to":[1,{"k":2},["x","\ud800"]]}`, `"\\u0000"`, `"\\\u0000"`, `"\ud83d\ude00"`, `"\uDC00\uD800"`, `{"a":1,}`, "\"\xff\"", `[1e400,-0,1.10]`, "\ufeff1",
		strings.Repeat("[", 600), strings.Repeat(`{"a":`, 20) + `"\u0000"`, `{"a\"]}":"\ud800"`, ``, ` `, `:,]}{"`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		err := domain.CheckJSON("args", text)
		if field, ok := errors.AsType[*domain.FieldError](err); err != nil && (!ok || !strings.HasPrefix(field.Field, "args") || field.Want == "") {
			t.Errorf("refused with %v", err)
		}
		if err != nil && !strings.HasPrefix(string(text), "[") && !strings.HasPrefix(string(text), "{") && len(err.Error()) > 400 {
			t.Errorf("refused in %d bytes", len(err.Error()))
		}
		if !json.Valid(text) || !utf8.Valid(text) {
			if err == nil {
				t.Error("accepted, and no JSON")
			}
			return
		}
		clean := domain.CleanJSON(string(text))
		if (err == nil) && clean != string(text) {
			t.Errorf("accepted, and yet cleaned to %q", clean)
		}
		if again := domain.CleanJSON(clean); again != clean || !json.Valid([]byte(clean)) || len(clean) > len(text) {
			t.Errorf("cleaned to %q, and then to %q", clean, again)
		}
		if hasCulprit(string(text)) != (clean != string(text)) {
			t.Errorf("a string cannot be stored: %t, but it was cleaned to %q", hasCulprit(string(text)), clean)
		}
	})
}

var (
	jsonString = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	jsonUnit   = regexp.MustCompile(`\\u([0-9a-fA-F]{4})|\\.|[^\\]`)
)

// hasCulprit looks, in its own way, for a NUL or half a surrogate pair in the strings of a JSON text.
func hasCulprit(text string) bool {
	for _, s := range jsonString.FindAllString(text, -1) {
		high := false
		for _, unit := range jsonUnit.FindAllStringSubmatch(s, -1) {
			code, err := strconv.ParseUint(unit[1], 16, 16)
			low := err == nil && code>>10 == 0xDC00>>10
			if low != high || err == nil && code == 0 {
				return true
			}
			high = err == nil && code>>10 == 0xD800>>10
		}
	}
	return false
}
