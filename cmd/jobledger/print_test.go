package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"
)

func TestInert(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                       "",
		"plain text":             "plain text",
		"Grüße, 世界 🎉":            "Grüße, 世界 🎉",
		"a\nb\tc\r":              `a\nb\tc\r`,
		"\x1b[2J\x07":            `\x1b[2J\a`,
		"\u009b31m":              `\u009b31m`, // the one-byte form of ESC [
		"a\x00b\x7f":             `a\x00b\x7f`,
		"\u202etxt.exe":          `\u202etxt.exe`,
		"zero\u200bwidth\ufeff":  `zero\u200bwidth\ufeff`,
		"line\u2028break\u00a0x": `line\u2028break\u00a0x`,
		"broken \xff\xfe":        `broken \xff\xfe`,
		"\uFFFD":                 "\uFFFD",
		"tag \U000e0041":         `tag \U000e0041`,
		`back\slash 'quoted'`:    `back\slash 'quoted'`,
	} {
		if got := inert(in); got != want {
			t.Errorf("%q is shown as %q, want %q", in, got, want)
		}
	}
}

func TestInertJSON(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"a": [1.10, "ü 🎉"]}`:                 `{"a": [1.10, "ü 🎉"]}`,
		"[\"\u009b31m\u202etxt\x7f\",\r\t\n1]": `["\u009b31m\u202etxt\u007f",  ` + "\n1]",
		"\"\U000e0041\"":                       `"\udb40\udc41"`,
	} {
		got := inertJSON([]byte(in))
		var was, is any
		if err := errors.Join(json.Unmarshal([]byte(in), &was), json.Unmarshal(got, &is)); string(got) != want || err != nil || !reflect.DeepEqual(was, is) {
			t.Errorf("%q is shown as %q (%v), want %q", in, got, err, want)
		}
	}
}

func TestBlock(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	block(&b, "first\r\n\tsecond\n\nstate  success\x1b[0m")
	const want = "    first\n        second\n    \n    state  success\\x1b[0m\n"
	if b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

func TestOneLine(t *testing.T) {
	t.Parallel()
	if got := oneLine("connect:\n\t[::1]: refused\n\r\n  127.0.0.1: \x1b[31mrefused\n"); got != `connect: [::1]: refused 127.0.0.1: \x1b[31mrefused` {
		t.Errorf("got %q", got)
	}
}

func TestSpan(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0:                                     "0ms",
		999 * time.Microsecond:                "0ms",
		350 * time.Millisecond:                "350ms",
		time.Second:                           "1s",
		1500 * time.Millisecond:               "1.5s",
		59*time.Second + 999*time.Millisecond: "59s",
		time.Minute:                           "1m",
		3*time.Minute + 10*time.Second:        "3m10s",
		59*time.Minute + 59*time.Second:       "59m",
		5*time.Hour + 59*time.Second:          "5h",
		5*time.Hour + 30*time.Minute:          "5h30m",
		48 * time.Hour:                        "2d",
		-5 * time.Second:                      "-5s",
	} {
		if got := span(d); got != want {
			t.Errorf("%s is %q, want %q", d, got, want)
		}
	}
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for at, want := range map[time.Time]string{{}: "", now.Add(-time.Minute): "1m ago", now.Add(time.Hour): "in 1h", now: "0ms ago"} {
		if got := ago(now, at); got != want {
			t.Errorf("%s is %q, want %q", at, got, want)
		}
	}
}

func TestClip(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"short": "short", "exactly10!": "exactly10!", "longer than ten": "longer th…", "äöüäöüäöüäöü": "äöüäöüäöü…", "\n\n\n\n\n\n": `\n\n\n\n\…`} {
		if got := clip(in, 10); got != want {
			t.Errorf("%q is clipped to %q, want %q", in, got, want)
		}
	}
}

func TestPlural(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		n          int64
		what, want string
	}{{0, "job", "0 jobs"}, {1, "body", "1 body"}, {2, "body", "2 bodies"}, {2, "batch", "2 batches"}} {
		if got := plural(tc.n, tc.what); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}

func TestShellWord(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                          "''",
		"/var/lib/x-1.2":            "/var/lib/x-1.2",
		"two words":                 "'two words'",
		"it's":                      `'it'\''s'`,
		"postgres://u@h/d?a=b&c=d":  "'postgres://u@h/d?a=b&c=d'",
		"$(rm -rf /)":               "'$(rm -rf /)'",
		"postgres://me@db:5432/app": "postgres://me@db:5432/app",
	} {
		if got := shellWord(in); got != want {
			t.Errorf("%q becomes %s, want %s", in, got, want)
		}
	}
}

func TestWithoutPassword(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"postgres://me:secret@db/app":              "postgres://me@db/app",
		"postgres://me@db/app?sslmode=disable":     "postgres://me@db/app?sslmode=disable",
		"postgres://db/app?password=secret&user=x": "postgres://db/app?user=x",
		"host=db password=secret":                  "...",
		"%zz":                                      "...",
	} {
		if got := withoutPassword(in); got != want {
			t.Errorf("%q is shown as %q, want %q", in, got, want)
		}
	}
}
