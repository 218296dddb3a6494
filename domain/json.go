package domain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxJSONDepth is how deep arrays and objects may be nested in args: every language has a parser that
// reads so much (PHP's stops at 512, Python's near 1,000).
const MaxJSONDepth = 500

// What CheckJSON wants of a text.
const (
	wantUTF8    = "valid UTF-8"
	wantJSON    = "JSON text"
	wantEscapes = `JSON text without \u0000 and without lone surrogates`
	wantDepth   = "JSON nested at most 500 deep"
)

// CheckJSON tests that text is one JSON value that Postgres can give back: valid UTF-8, no NUL (raw
// or as an escape), no surrogate escape without its other half, nested at most MaxJSONDepth deep. The
// error's field is the place in the text where that can be told ("args.to[2]"), its value what stands
// there.
func CheckJSON(field string, text []byte) error {
	if !utf8.Valid(text) {
		at := invalidAt(text)
		return refuseJSON(jsonPlace(field, text, at), text, at, wantUTF8)
	}
	if !json.Valid(text) {
		at := syntaxErrorAt(text)
		if isDeep(text[:at], 10000) { // encoding/json reads no further
			return refuseJSON(field, text, at, wantDepth)
		}
		return refuseJSON(field, text, at, wantJSON)
	}
	if at := badEscape(string(text)); at >= 0 {
		return refuseJSON(jsonPlace(field, text, at), text, at, wantEscapes)
	}
	if isDeep(text, MaxJSONDepth) {
		return refuseJSON(field, text, 0, wantDepth)
	}
	return nil
}

func refuseJSON(field string, text []byte, at int, want string) error {
	return &FieldError{Field: field, Value: Described(fmt.Sprintf("%s (at byte %d)", excerpt(text, at), at)), Want: want}
}

// NotUTF8 is the error about a value that is no UTF-8 and that encoding/json has made text of: it writes
// \ufffd in its place.
func NotUTF8(field string, text []byte) error {
	at := max(0, bytes.Index(text, []byte(`\ufffd`)))
	return refuseJSON(jsonPlace(field, text, at), text, at, wantUTF8)
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

// isDeep reports whether more than limit arrays and objects of text lie inside each other.
func isDeep(text []byte, limit int) bool {
	if bytes.Count(text, []byte("["))+bytes.Count(text, []byte("{")) <= limit {
		return false
	}
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			i = endOfString(text, i) - 1
		case '[', '{':
			if depth++; depth > limit {
				return true
			}
		case ']', '}':
			depth--
		}
	}
	return false
}

// endOfString returns the index behind the string that begins at start, the length of text if it does
// not end.
func endOfString(text []byte, start int) int {
	for i := start + 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(text)
}

// jsonPlace names the string of a JSON text in which byte at stands, or the object in which that string
// is a key: "args.to[2]", `args["odd key"]`. What comes behind at need not be JSON.
func jsonPlace(field string, text []byte, at int) string {
	type level struct {
		step  string // into an object; "" where the key is yet to come
		index int    // into an array
		array bool
	}
	var open []level
	var key []byte
	for i := 0; i < at; i++ {
		top := len(open) - 1
		switch c := text[i]; {
		case c == '"':
			end := endOfString(text, i)
			key, i = text[i:end], end-1
		case c == '[' || c == '{':
			open = append(open, level{array: c == '['})
		case top < 0:
		case c == ']' || c == '}':
			open = open[:top]
		case c == ':' && len(key) > 1:
			open[top].step = jsonStep(string(key[1 : len(key)-1]))
		case c == ',':
			open[top].step = ""
			open[top].index++
		}
	}
	for _, l := range open {
		if l.array {
			l.step = fmt.Sprintf("[%d]", l.index)
		}
		field += l.step
	}
	return field
}

var plainKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,39}$`)

// jsonStep is the step to a key, as it is spelled in the text, at most 40 characters of it.
func jsonStep(key string) string {
	if plainKey.MatchString(key) {
		return "." + key
	}
	if r := []rune(key); len(r) > 40 {
		key = string(r[:40]) + "…"
	}
	return `["` + strings.ToValidUTF8(key, "\uFFFD") + `"]`
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

// syntaxErrorAt is how much of the text was read until it could not be JSON any more.
func syntaxErrorAt(text []byte) int {
	var v any
	var e *json.SyntaxError
	if errors.As(json.Unmarshal(text, &v), &e) {
		return min(int(e.Offset), len(text))
	}
	return len(text)
}

// excerpt shows a little of text around a byte offset. It has quotation marks enough of its own, so what is not printable is
// escaped here.
func excerpt(text []byte, at int) string {
	from, to := max(0, at-20), min(len(text), at+20)
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(string(text[min(from, to):to]), "\uFFFD") {
		if strconv.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return b.String()
}
