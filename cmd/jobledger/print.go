package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// inert shows what could steer a terminal, or look like something else, as the escape that Go would write for it:
// control characters, line breaks, text direction marks, zero-width characters and broken UTF-8.
func inert(s string) string {
	if !needsEscape(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case unicode.IsPrint(r):
			b.WriteString(s[:n])
		default:
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
		s = s[n:]
	}
	return b.String()
}

func needsEscape(s string) bool {
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return true
		}
	}
	return false
}

// inertJSON is inert for JSON, which stays JSON that says the same. What is not printable stands in strings, or is white
// space.
func inertJSON(text []byte) []byte {
	var out []byte
	for _, r := range string(text) {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			out = utf8.AppendRune(out, r)
		case r == '\t' || r == '\r':
			out = append(out, ' ')
		default:
			for _, unit := range utf16.Encode([]rune{r}) {
				out = fmt.Appendf(out, `\u%04x`, unit)
			}
		}
	}
	return out
}

// block shows text of several lines, each indented, so that none of them can pass for a line of ours.
func block(w io.Writer, text string) {
	for line := range strings.Lines(text) {
		line = strings.ReplaceAll(strings.TrimRight(line, "\r\n"), "\t", "    ")
		fmt.Fprintf(w, "    %s\n", inert(line))
	}
}

// table aligns columns.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer, header ...string) *table {
	t := &table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	if len(header) > 0 {
		t.row(header...)
	}
	return t
}

// row adds a line, its cells made inert. Empty ones become a dash, so that nobody has to count spaces.
func (t *table) row(cells ...string) {
	for i, cell := range cells {
		if cells[i] = inert(cell); cell == "" {
			cells[i] = "-"
		}
	}
	fmt.Fprintln(t.w, strings.Join(cells, "\t"))
}

func (t *table) flush() error { return t.w.Flush() }

// clip shortens a cell; ids are never given to it.
func clip(s string, runes int) string {
	s = inert(s)
	if utf8.RuneCountInString(s) <= runes {
		return s
	}
	return string([]rune(s)[:runes-1]) + "…"
}

// span is a duration as people say it, in its two largest units at most: 350ms, 12s, 3m10s, 5h, 12d.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + span(-d)
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
	case d < 10*time.Second:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", d.Seconds()), ".0") + "s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 10*time.Minute:
		return units(d, time.Minute, "m", time.Second, "s")
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 24*time.Hour:
		return units(d, time.Hour, "h", time.Minute, "m")
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func units(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
	text := strconv.FormatInt(int64(d/large), 10) + largeName
	if rest := d % large / small; rest > 0 {
		text += strconv.FormatInt(int64(rest), 10) + smallName
	}
	return text
}

// ago says how long before now t was, "" for the zero time.
func ago(now, t time.Time) string {
	switch {
	case t.IsZero():
		return ""
	case t.After(now):
		return "in " + span(t.Sub(now))
	}
	return span(now.Sub(t)) + " ago"
}

// stamp is an instant to the millisecond, in UTC, "" for the zero time.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05.000Z")
}

// plural is "1 job" or "2 jobs".
func plural(n int64, what string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(what, "ch"):
		what += "es"
	case strings.HasSuffix(what, "y"):
		what = strings.TrimSuffix(what, "y") + "ies"
	default:
		what += "s"
	}
	return strconv.FormatInt(n, 10) + " " + what
}

// shellWord quotes a word for a POSIX shell where it needs it.
func shellWord(s string) string {
	plain := s != ""
	for _, r := range s {
		plain = plain && (r < 0x80 && (unicode.IsLetter(r) || unicode.IsDigit(r)) || strings.ContainsRune("._:/@%+=,-", r))
	}
	if plain {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// isTerminal reports whether a person looks at w.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// progressBar shows how far something of size steps is, -1 where nobody knows; people at a terminal alone see it.
func (a *app) progressBar(size int64, what string) *progressbar.ProgressBar {
	if a.json || !isTerminal(a.stderr) {
		return progressbar.NewOptions64(size, progressbar.OptionSetVisibility(false), progressbar.OptionSetWriter(io.Discard))
	}
	return progressbar.NewOptions64(size,
		progressbar.OptionSetDescription(what),
		progressbar.OptionSetWriter(a.stderr),
		progressbar.OptionSetWidth(30),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetSpinnerChangeInterval(0), // else a goroutine draws it, also when we have gone on
		progressbar.OptionClearOnFinish(),
	)
}

// endBar takes the bar off the screen, so that what is printed next stands at the beginning of a line.
func endBar(bar *progressbar.ProgressBar) {
	_, _ = bar.Exit(), bar.Clear() // a matter of looks
}
