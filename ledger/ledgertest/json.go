package ledgertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// asJSON is a value as ledger.EnqueueParams.Args takes it, as JSON text.
func asJSON(v any) (string, error) {
	switch v := v.(type) {
	case json.RawMessage:
		return string(v), check(v)
	case []byte:
		return string(v), check(v)
	case string:
		return v, check([]byte(v))
	}
	text, err := json.Marshal(v)
	return string(text), err
}

func check(text []byte) error {
	var v any
	return json.Unmarshal(text, &v)
}

// decoded is JSON text as maps, slices and numbers with their digits; nil for none.
func decoded(text []byte) (v any) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return nil
	}
	return v
}

// decodedValue is decoded of a value that asJSON takes; Want.among has looked at its error.
func decodedValue(v any) any {
	text, _ := asJSON(v)
	return decoded([]byte(text))
}

// compareJSON says in what have is not want, a line for each place. Where part is true, have may have more members.
func compareJSON(path string, have, want any, part bool) (lines []string) {
	switch want := want.(type) {
	case map[string]any:
		have, ok := have.(map[string]any)
		if !ok {
			break
		}
		for _, name := range sortedKeys(want) {
			if v, ok := have[name]; ok {
				lines = append(lines, compareJSON(path+"."+name, v, want[name], part)...)
			} else {
				lines = append(lines, fmt.Sprintf("%s.%s is missing, want %s", path, name, inShort(want[name])))
			}
		}
		for _, name := range sortedKeys(have) {
			if _, ok := want[name]; !ok && !part {
				lines = append(lines, fmt.Sprintf("%s.%s is %s, want it missing", path, name, inShort(have[name])))
			}
		}
		return lines
	case []any:
		have, ok := have.([]any)
		if !ok || len(have) != len(want) {
			break
		}
		for i := range want {
			lines = append(lines, compareJSON(fmt.Sprintf("%s[%d]", path, i), have[i], want[i], part)...)
		}
		return lines
	}
	if reflect.DeepEqual(have, want) {
		return nil
	}
	return []string{fmt.Sprintf("%s is %s, want %s", path, inShort(have), inShort(want))}
}

func inShort(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return shorten(string(text), "none")
}

// shorten makes a text fit a line; empty stands for "".
func shorten(text, empty string) string {
	const most = 200
	text = strings.Join(strings.Fields(text), " ")
	switch {
	case text == "":
		return empty
	case len(text) > most:
		return text[:most] + "..."
	}
	return text
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
