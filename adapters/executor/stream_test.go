package executor

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
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

// What is in the pipe is not lost if the reader gets its first turn only when its time is over, as on a busy machine.
func TestStreamThatReadsLate(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 60_000} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close() // open to the end, as by a process that has left the group
		if _, err := w.Write(make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		if err := r.SetDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		s, e := &stream{ours: r}, &excerpt{limit: 1 << 20}
		s.read(e)
		<-s.done // before finish sets another deadline
		s.finish()
		if text, _ := e.bytes(); len(text) != n {
			t.Errorf("%d bytes of %d were read", len(text), n)
		}
	}
}

// A process that has left the group and floods the pipe doesn't hold us up for ever.
func TestStreamThatNeverEnds(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	flooded := make(chan struct{})
	go func() {
		defer close(flooded)
		for chunk := make([]byte, 4096); err == nil; {
			_, err = w.Write(chunk) // until the reader's end is closed
		}
	}()
	s, e := &stream{ours: r}, &excerpt{limit: 1 << 10}
	s.read(e)
	s.finish()
	<-flooded
	w.Close()
	if _, cut := e.bytes(); cut == 0 {
		t.Error("nothing was read")
	}
}
