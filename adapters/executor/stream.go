package executor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// drainTime is how long output that is still in a pipe is read when the command is gone. The end of the pipe comes at
// once, except where a process that could not be killed holds it.
const drainTime = 200 * time.Millisecond

// pipes are the pipes of a command that is being started.
type pipes struct{ ours, theirs []*os.File }

// toChild makes a pipe that the child reads.
func (p *pipes) toChild(theirs *[]*os.File) (ours *os.File, err error) {
	r, w, err := os.Pipe()
	return p.add(w, r, theirs), err
}

// fromChild makes a pipe that the child writes.
func (p *pipes) fromChild(theirs *[]*os.File) (ours *os.File, err error) {
	r, w, err := os.Pipe()
	return p.add(r, w, theirs), err
}

func (p *pipes) add(ours, their *os.File, theirs *[]*os.File) *os.File {
	p.ours, p.theirs, *theirs = append(p.ours, ours), append(p.theirs, their), append(*theirs, their)
	return ours
}

// close closes the child's ends, which it has by now, and ours too where nothing came of it. Closing no file, where a
// pipe could not be made, is an error that doesn't matter.
func (p *pipes) close(failed bool) {
	for _, f := range p.theirs {
		f.Close()
	}
	for _, f := range p.ours {
		if failed {
			f.Close()
		}
	}
}

// maxPipe bounds what is read after that: more than any pipe holds, less than a process that floods it can keep us busy
// with.
const maxPipe = 1 << 20

// stream is our end of a pipe and the goroutine at it.
type stream struct {
	ours *os.File
	done chan struct{}
}

// write feeds the command. That it ends, or closes its input, before it has read everything is its own business.
func (s *stream) write(from io.Reader) {
	s.run(func() {
		_, _ = io.Copy(s.ours, from)
		s.ours.Close()
	})
}

// read collects output until the pipe ends or finish gives up. It never makes the command wait for anything else.
func (s *stream) read(to io.Writer) {
	s.run(func() {
		if _, err := io.Copy(to, s.ours); errors.Is(err, os.ErrDeadlineExceeded) {
			s.readRest(to)
		}
	})
}

// readRest collects what is in the pipe without waiting for more. When the deadline comes, that need not be nothing: on
// a busy machine this goroutine may have got no turn since the command printed it.
func (s *stream) readRest(to io.Writer) {
	_ = s.ours.SetDeadline(time.Time{}) // else nothing would be read
	conn, err := s.ours.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 64<<10)
	for total := 0; total < maxPipe; {
		var n int
		err := conn.Read(func(fd uintptr) bool {
			n, _ = unix.Read(int(fd), buf) // nothing there, or the end: n says so
			return true
		})
		if err != nil || n <= 0 {
			return
		}
		_, _ = to.Write(buf[:n]) // an excerpt takes everything
		total += n
	}
}

func (s *stream) run(f func()) {
	s.done = make(chan struct{})
	go func() {
		defer close(s.done)
		f()
	}()
}

// finish ends the goroutine and closes the pipe.
func (s *stream) finish() {
	// A pipe that cannot have a deadline is closed already.
	_ = s.ours.SetDeadline(time.Now().Add(drainTime))
	<-s.done
	s.ours.Close()
}

// excerpt keeps the first and the last half of what is written to it, limit bytes together.
type excerpt struct {
	limit int
	head  []byte
	tail  []byte // up to twice its half: what is too much is dropped now and then, not at each write
	total int64
}

// Write never refuses anything.
func (e *excerpt) Write(b []byte) (int, error) {
	n, half := len(b), e.limit/2
	e.total += int64(n)
	if room := half - len(e.head); room > 0 {
		k := min(room, len(b))
		e.head, b = append(e.head, b[:k]...), b[k:]
	}
	b = b[max(0, len(b)-half):]
	if len(e.tail)+len(b) > 2*half {
		e.tail = append(e.tail[:0], e.tail[max(0, len(e.tail)-half):]...)
	}
	e.tail = append(e.tail, b...)
	return n, nil
}

// bytes returns what was kept and how many bytes were left out in the middle, with a mark in their place. Characters
// are not cut in two.
func (e *excerpt) bytes() (text []byte, cut int64) {
	tail := e.tail[max(0, len(e.tail)-e.limit/2):]
	if int64(len(e.head)+len(tail)) == e.total {
		return append(e.head, tail...), 0
	}
	head := wholeHead(e.head)
	for n := 0; n < utf8.UTFMax-1 && len(tail) > 0 && !utf8.RuneStart(tail[0]); n++ {
		tail = tail[1:]
	}
	cut = e.total - int64(len(head)+len(tail))
	return append(append(head, mark(cut)...), tail...), cut
}

// ShortenStdout returns standard output in at most limit bytes and a mark, if need be with more left out of its middle.
func (r Result) ShortenStdout(limit int) []byte {
	if len(r.Stdout) <= limit {
		return r.Stdout
	}
	e := excerpt{limit: limit}
	_, _ = e.Write(r.Stdout) // it takes everything
	if r.StdoutCut > 0 {
		e.total += r.StdoutCut - int64(len(mark(r.StdoutCut)))
	}
	text, _ := e.bytes()
	return text
}

// mark stands for what is left out.
func mark(bytes int64) string { return fmt.Sprintf("\n[... %d bytes left out ...]\n", bytes) }

// wholeHead drops a character at the end that is there in part only.
func wholeHead(b []byte) []byte {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if last := b[len(b)-n:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				return b[:len(b)-n]
			}
			break
		}
	}
	return b
}
