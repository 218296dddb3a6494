package domain

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// CheckJSON tests that text is one JSON value that Postgres can give back: valid UTF-8, no NUL (raw
// or as an escape) and no surrogate escape without its other half. The error names the byte offset.
func CheckJSON(field string, text []byte) error {
	refuse := func(at int, what string) error {
		return &FieldError{Field: field, Value: excerpt(text, at), Want: fmt.Sprintf("%s (byte %d)", what, at)}
	}
	if !utf8.Valid(text) {
		return refuse(invalidAt(text), "valid UTF-8")
	}
	if !json.Valid(text) {
		var v any
		at := len(text)
		if e, ok := json.Unmarshal(text, &v).(*json.SyntaxError); ok {
			at = int(e.Offset)
			return refuse(at, "JSON: "+e.Error())
		}
		return refuse(at, "JSON")
	}
	if i := badEscape(string(text)); i >= 0 {
		return refuse(i, "JSON text without \\u0000 and without lone surrogates")
	}
	return nil
}

// CleanJSON makes valid JSON text storable: escapes that CheckJSON refuses become \ufffd. One pass.
func CleanJSON(text string) string {
	var b strings.Builder
	rest := text
	for i := badEscape(rest); i >= 0; i = badEscape(rest) {
		b.WriteString(rest[:i])
		b.WriteString(`\ufffd`)
		rest = rest[i+6:] // behind an escape, so that a backslash there begins one of its own
	}
	b.WriteString(rest)
	return b.String()
}

// badEscape returns where the first escape stands that Postgres refuses, -1 if there is none. A
// backslash is only ever found inside a string, since the text is valid JSON or the rest of it.
func badEscape(s string) int {
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			continue
		}
		i++
		if s[i] != 'u' {
			continue
		}
		switch code := s[i+1 : i+5]; {
		case code == "0000":
			return i - 1
		case surrogate(code, "cdef"):
			return i - 1
		case surrogate(code, "89ab"):
			rest := s[i+5:]
			if !strings.HasPrefix(rest, `\u`) || len(rest) < 6 || !surrogate(rest[2:6], "cdef") {
				return i - 1
			}
			i += 6
		}
		i += 4
	}
	return -1
}

// surrogate: the code unit is D followed by a digit of set (89ab: high half, cdef: low half).
func surrogate(code, set string) bool {
	c := strings.ToLower(code)
	return c[0] == 'd' && strings.IndexByte(set, c[1]) >= 0
}

func invalidAt(text []byte) int {
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(text)
}

// excerpt shows a little of text around a byte offset.
func excerpt(text []byte, at int) string {
	from, to := max(0, at-20), min(len(text), at+20)
	return strings.ToValidUTF8(string(text[min(from, to):to]), "\uFFFD")
}
