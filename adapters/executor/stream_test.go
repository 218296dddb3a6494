package executor

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestExcerpt(t *testing.T) {
	t.Parallel()
	const limit = 8
	for _, tc := range []struct {
		writes []string
		want   string
	}{
		{nil, ""},
		{[]string{"abc"}, "abc"},
		{[]string{"abcdefgh"}, "abcdefgh"},
		{[]string{"a", "b", "c", "d", "e", "f", "g", "h"}, "abcdefgh"},
		{[]string{"abcdefghi"}, "abcd[1]fghi"},
		{[]string{"abcd", "efg", "hij", "klm", "nop"}, "abcd[8]mnop"},
		{[]string{"abcdefghijklmnopqrstuvwxyz", "0", "1"}, "abcd[20]yz01"},
		{[]string{"äöüß", "x"}, "äö[2]ßx"}, // half of the ü would be in the tail, so all of it is left out
	} {
		e := excerpt{limit: limit}
		for _, w := range tc.writes {
			if n, err := e.Write([]byte(w)); n != len(w) || err != nil {
				t.Fatalf("write answered %d, %v", n, err)
			}
		}
		text, cut := e.bytes()
		want := tc.want
		if cut > 0 {
			want = strings.ReplaceAll(want, fmt.Sprintf("[%d]", cut), fmt.Sprintf("\n[... %d bytes left out ...]\n", cut))
		}
		if string(text) != want || !utf8.Valid(text) {
			t.Errorf("%q became %q with %d bytes left out, want %q", tc.writes, text, cut, want)
		}
	}
}

// A flood of any size keeps memory flat.
func TestExcerptIsBounded(t *testing.T) {
	t.Parallel()
	e := excerpt{limit: 1 << 10}
	chunk := make([]byte, 700)
	for range 10_000 {
		e.Write(chunk)
	}
	if cap(e.head)+cap(e.tail) > 4*e.limit {
		t.Errorf("%d bytes are held for a limit of %d", cap(e.head)+cap(e.tail), e.limit)
	}
}
