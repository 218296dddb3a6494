package main

import (
	"bytes"
	"context"
	"io"
)

// utf8BOM is a byte order mark, which some editors and shells write before a text. It is no part of it.
var utf8BOM = []byte("\uFEFF")

// otherFormats are files that people take for JSON Lines, with what makes lines of them.
var otherFormats = []struct{ begin, what, command string }{
	{"\x1f\x8b", "compressed by gzip", "gzip -dc"},
	{"\x28\xb5\x2f\xfd", "compressed by zstd", "zstd -dc"},
	{"BZh", "compressed by bzip2", "bzip2 -dc"},
	{"\xfd7zXZ\x00", "compressed by xz", "xz -dc"},
	{"PK\x03\x04", "a zip archive", "unzip -p"},
	{"\xff\xfe", "UTF-16 text", "iconv -f UTF-16 -t UTF-8"},
	{"\xfe\xff", "UTF-16 text", "iconv -f UTF-16 -t UTF-8"},
	{"{\x00", "UTF-16 text", "iconv -f UTF-16LE -t UTF-8"},
	{"\x00{", "UTF-16 text", "iconv -f UTF-16BE -t UTF-8"},
}

// formatOf says what a text is by its beginning, and which command makes JSON Lines of it; "" if it may be some.
func formatOf(text []byte) (what, command string) {
	for _, f := range otherFormats {
		if bytes.HasPrefix(text, []byte(f.begin)) {
			return f.what, f.command
		}
	}
	return "", ""
}

// untilDone reads from r until ctx ends. A read that hangs then, at a terminal or a pipe that nobody writes to, is left
// behind.
func untilDone(ctx context.Context, r io.Reader) io.Reader {
	type read struct {
		n   int
		err error
	}
	var rest []byte
	var end error
	buf, done := make([]byte, 64<<10), make(chan read, 1)
	return readerFunc(func(p []byte) (int, error) {
		if len(rest) == 0 && end == nil {
			go func() {
				n, err := r.Read(buf)
				done <- read{n, err}
			}()
			select {
			case got := <-done:
				rest, end = buf[:got.n], got.err
			case <-ctx.Done():
				end = ctx.Err()
			}
		}
		n := copy(p, rest)
		rest = rest[n:]
		if n > 0 || len(p) == 0 {
			return n, nil
		}
		return 0, end
	})
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
