package ledger

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jobledger/jobledger/domain"
)

// body turns a value into the JSON text that is stored, nil for nil. Text that is JSON already
// stays as it is, digits and white space included. Inputs that Postgres could not give back are
// refused with the field's name.
func body(field string, v any, limit int) (*string, error) {
	var text []byte
	switch v := v.(type) {
	case nil:
		return nil, nil
	case json.RawMessage:
		text = v
	case []byte:
		text = v
	case string:
		text = []byte(v)
	default:
		b, err := json.Marshal(v)
		if err != nil {
			return nil, &domain.FieldError{Field: field, Value: fmt.Sprintf("%T", v), Want: "a value that marshals to JSON: " + err.Error()}
		}
		text = b
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
	s := string(text)
	return &s, nil
}

// output turns what a handler produced into text that can be stored, whatever it is: a job must
// reach its end. NUL and invalid UTF-8 become U+FFFD; text beyond the limit is cut in the middle,
// head and tail kept. nil for "".
func output(text string, limit int) *string {
	if text == "" {
		return nil
	}
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "\uFFFD"), "\uFFFD")
	if len(text) > limit {
		mark := fmt.Sprintf("\n[... %d bytes left out ...]\n", len(text)-limit)
		head, tail := text[:(limit-2*len(mark))/2], text[len(text)-(limit-2*len(mark))/2:]
		for len(head) > 0 && !utf8.ValidString(head) {
			head = head[:len(head)-1]
		}
		for len(tail) > 0 && !utf8.ValidString(tail) {
			tail = tail[1:]
		}
		text = head + mark + tail
	}
	return &text
}

// outputJSON is output for results: JSON with escapes that cannot be stored gets substitutes for
// them, what is no JSON, or too large, becomes a JSON string.
func outputJSON(v any, limit int) *string {
	s, err := body("result", v, limit)
	if err == nil {
		return s
	}
	var text string
	switch v := v.(type) {
	case json.RawMessage:
		text = string(v)
	case []byte:
		text = string(v)
	case string:
		text = v
	default:
		if b, err := json.Marshal(v); err == nil {
			text = string(b)
		} else {
			text = fmt.Sprintf("%+v", v)
		}
	}
	if len(text) <= limit && utf8.ValidString(text) && json.Valid([]byte(text)) {
		clean := domain.CleanJSON(text)
		return &clean
	}
	// A JSON string can be up to six times as long as the text in it.
	clean := output(text, limit/6)
	if clean == nil {
		return nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(*clean); err != nil {
		panic(fmt.Sprintf("ledger: encode a string: %v", err)) // strings always encode
	}
	quoted := strings.TrimSuffix(b.String(), "\n")
	return &quoted
}
