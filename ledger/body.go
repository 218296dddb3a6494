package ledger

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/jobledger/jobledger/domain"
)

// Altered as a result or progress says that Value is not quite what the handler produced: its maker has
// cut it, or put substitutes into it, so that it can be stored. It is stored with a flag that readers see.
type Altered struct{ Value any }

// input turns args into the JSON text that is stored, nil for nil. Text that is JSON already stays as
// it is, digits and white space included. What Postgres could not give back is refused, with its place.
func input(field string, v any, limit int) (*string, error) {
	text, err := marshal(v)
	if err != nil {
		return nil, &domain.FieldError{Field: field, Value: fmt.Sprintf("%T", v), Want: "a value that marshals to JSON: " + err.Error()}
	}
	if text == nil {
		return nil, nil
	}
	if len(text) > limit {
		return nil, &domain.FieldError{Field: field, Value: fmt.Sprintf("%d bytes", len(text)), Want: fmt.Sprintf("at most %d bytes", limit)}
	}
	if err := domain.CheckJSON(field, text); err != nil {
		return nil, err
	}
	if Substituted(v, text) {
		return nil, domain.NotUTF8(field, text)
	}
	s := string(text)
	return &s, nil
}

// marshal makes JSON text of a value; nil for nil. Text is taken as it is.
func marshal(v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case json.RawMessage:
		return v, nil
	case []byte:
		return v, nil
	case string:
		return []byte(v), nil
	}
	return json.Marshal(v)
}

// Substituted reports whether text, which json.Marshal has made of v, is not all that v says:
// encoding/json writes \ufffd for every byte of a string that is no UTF-8, and tells nobody.
func Substituted(v any, text []byte) bool {
	return bytes.Contains(text, []byte(`\ufffd`)) && !validStrings(reflect.ValueOf(v))
}

// validStrings walks a value that has been marshalled, and so has an end.
func validStrings(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String:
		return utf8.ValidString(v.String())
	case reflect.Pointer, reflect.Interface:
		return v.IsNil() || validStrings(v.Elem())
	case reflect.Struct:
		for _, field := range v.Fields() {
			if !validStrings(field) {
				return false
			}
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return true // base64, or JSON text of its own
		}
		for i := range v.Len() {
			if !validStrings(v.Index(i)) {
				return false
			}
		}
	case reflect.Map:
		for i := v.MapRange(); i.Next(); {
			if !validStrings(i.Key()) || !validStrings(i.Value()) {
				return false
			}
		}
	}
	return true
}

// output turns what a handler produced into text that can be stored, whatever it is: a job must reach
// its end. NUL and invalid UTF-8 become U+FFFD; text beyond the limit is cut in the middle, head and
// tail kept. nil for "". altered says that it is not what was given.
func output(given string, limit int) (stored *string, altered bool) {
	if given == "" {
		return nil, false
	}
	text := cut(clean(given), limit)
	return &text, text != given
}

// clean puts U+FFFD where Postgres takes no text.
func clean(text string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "\uFFFD"), "\uFFFD")
}

// cut leaves out the middle of a text that is too long.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	mark := fmt.Sprintf("\n[... %d bytes left out ...]\n", len(text)-limit)
	head, tail := text[:(limit-2*len(mark))/2], text[len(text)-(limit-2*len(mark))/2:]
	for len(head) > 0 && !utf8.ValidString(head) {
		head = head[:len(head)-1]
	}
	for len(tail) > 0 && !utf8.ValidString(tail) {
		tail = tail[1:]
	}
	return head + mark + tail
}

// outputJSON is output for results and progress: JSON with escapes that cannot be stored gets
// substitutes for them; what is no JSON, or too large, becomes a JSON string.
func outputJSON(v any, limit int) (stored *string, altered bool) {
	if a, ok := v.(Altered); ok {
		stored, _ = outputJSON(a.Value, limit)
		return stored, stored != nil
	}
	given, err := marshal(v)
	switch {
	case err != nil:
		given = fmt.Appendf(nil, "%+v", v)
	case given == nil:
		return nil, false
	case len(given) <= limit && domain.CheckJSON("", given) == nil:
		s := string(given)
		return &s, Substituted(v, given)
	case len(given) <= limit && utf8.Valid(given) && json.Valid(given):
		s := domain.CleanJSON(string(given))
		if domain.CheckJSON("", []byte(s)) == nil { // and not nested too deep
			return &s, true
		}
	}
	if len(given) == 0 {
		return nil, false
	}
	text := clean(string(given))
	quoted := encode(text)
	if len(quoted) > limit {
		quoted = encode(cut(text, limit/6)) // a character can take six times its length in a JSON string
	}
	return &quoted, true
}

// encode is a value of ours, which always encodes, as JSON without the escapes that HTML would need.
func encode(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("ledger: encode %T: %v", v, err))
	}
	return strings.TrimSuffix(b.String(), "\n")
}
