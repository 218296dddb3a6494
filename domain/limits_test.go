package domain_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jobledger/jobledger/domain"
)

// TestLimits tries each check on both sides of its limit.
func TestLimits(t *testing.T) {
	t.Parallel()
	name := func(s string) error { return domain.CheckName("f", s) }
	text := func(s string) error { return domain.CheckText("f", s, 10) }
	for _, c := range []struct {
		what string
		err  error
		ok   bool
	}{
		{"a name of 1 byte", name("a"), true},
		{"a name of 255 bytes", name(strings.Repeat("a", 255)), true},
		{"a name of 256 bytes", name(strings.Repeat("a", 256)), false},
		{"a name of all kinds of characters", name("AZaz09._:/-"), true},
		{"no name", name(""), false},
		{"a name with a blank", name("a b"), false},
		{"a name with a letter beyond ASCII", name("é"), false},
		{"a name with a line feed", name("a\n"), false},
		{"text of 10 bytes", text("0123456789"), true},
		{"text of 11 bytes", text("01234567890"), false},
		{"text of 10 bytes in 5 characters", text("ééééé"), true},
		{"text of 12 bytes in 6 characters", text("éééééé"), false},
		{"no text", text(""), false},
		{"a blank", text(" "), true},
		{"a NUL", text("a\x00"), false},
		{"a tab", text("a\tb"), false},
		{"DEL", text("a\x7f"), false},
		{"a control character beyond ASCII", text("a\u0085"), false},
		{"the last control character", text("a\u009f"), false},
		{"the first character behind them", text("a\u00a0"), true},
		{"invalid UTF-8", text("a\xff"), false},
		{"half a surrogate in UTF-8", text("a\xed\xa0\x80"), false},
		{"priority -32768", domain.CheckPriority(-32768), true},
		{"priority -32769", domain.CheckPriority(-32769), false},
		{"priority 32767", domain.CheckPriority(32767), true},
		{"priority 32768", domain.CheckPriority(32768), false},
		{"the first instant of 1970", domain.CheckTime("f", time.Unix(0, 0)), true},
		{"an instant before it", domain.CheckTime("f", time.Unix(0, -1)), false},
		{"the last microsecond of 9999", domain.CheckTime("f", time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)), true},
		{"the year 10000", domain.CheckTime("f", time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)), false},
		{"the zero time", domain.CheckTime("f", time.Time{}), false},
		{"a lease of 1 s", domain.CheckLease(time.Second), true},
		{"a lease a nanosecond shorter", domain.CheckLease(time.Second - 1), false},
		{"a lease of 24 h", domain.CheckLease(24 * time.Hour), true},
		{"a lease a nanosecond longer", domain.CheckLease(24*time.Hour + 1), false},
		{"10,000 jobs", domain.CheckBatch(10000), true},
		{"10,001 jobs", domain.CheckBatch(10001), false},
		{"no delay", domain.CheckDelay("f", 0), true},
		{"a negative delay", domain.CheckDelay("f", -1), false},
		{"a delay of 3,650 days", domain.CheckDelay("f", 3650*24*time.Hour), true},
		{"a delay a nanosecond longer", domain.CheckDelay("f", 3650*24*time.Hour+1), false},
	} {
		if (c.err == nil) != c.ok {
			t.Errorf("%s: %v, want accepted %t", c.what, c.err, c.ok)
		}
		if _, is := errors.AsType[*domain.FieldError](c.err); c.err != nil && !is {
			t.Errorf("%s: %T, want *FieldError", c.what, c.err)
		}
	}
}

// TestCheckJSON names the byte at which a text stops being JSON that can be stored, and its place.
func TestCheckJSON(t *testing.T) {
	t.Parallel()
	for text, c := range map[string]struct{ field, at string }{
		`{"a":[1.10,"\\u0000","\ud83d\ude00"]}`:             {},
		`9007199254740993`:                                  {},
		"\"\u0085\u2028\"":                                  {},
		strings.Repeat("[", 500) + strings.Repeat("]", 500): {},
		`{"a":"\u0000"}`:                                    {"args.a", "byte 6"},
		`{"\u0000":1}`:                                      {"args", "byte 2"},
		`{"a":{"b":1,"\u0000":1}}`:                          {"args.a", "byte 13"},
		`{"to":["x","y",{"k 1":[[],"\u0000"]}]}`:            {`args.to[2]["k 1"][1]`, "byte 27"},
		`[{"a":1,"b":2},{"a":[1,2],"c":"\udfff"}]`:          {"args[1].c", "byte 31"},
		`{"\u0041":"\u0000"}`:                               {`args["\u0041"]`, "byte 11"},
		`{"` + strings.Repeat("k", 41) + `":"\u0000"}`:      {`args["` + strings.Repeat("k", 40) + `…"]`, "byte 46"},
		`"\\\u0000"`:                                        {"args", "byte 3"},
		`"\ud800"`:                                          {"args", "byte 1"},
		`"ab\udc00"`:                                        {"args", "byte 3"},
		`"\ud800\ud800\udc00"`:                              {"args", "byte 1"},
		`"\ud800\u0041"`:                                    {"args", "byte 1"},
		"\"a\xff\"":                                         {"args", "byte 2"},
		"{\"a\":[1,\"\xff\"]}":                              {"args.a[1]", "byte 9"},
		"{\"a\":{\"\xff\":1}}":                              {"args.a", "byte 7"},
		"\"\xed\xa0\x80\"":                                  {"args", "byte 1"},
		``:                                                  {"args", "byte 0"},
		`{"a":1,}`:                                          {"args", "byte 8"},
		`[1,2`:                                              {"args", "byte 4"},
		"\"a\nb\"":                                          {"args", "byte 3"},
		strings.Repeat("[", 501) + strings.Repeat("]", 501): {"args", "byte 0"},
		strings.Repeat("[", 20000):                          {"args", "byte 10001"},
	} {
		err := domain.CheckJSON("args", []byte(text))
		f, is := errors.AsType[*domain.FieldError](err)
		if is != (c.at != "") || is && (f.Field != c.field || !strings.Contains(string(f.Value.(domain.Described)), "("+"at "+c.at+")")) {
			t.Errorf("%.60q: %v, want %+v", text, err, c)
		}
	}
}
