package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const makeRoom = "make room on that disk and try again; nothing that was committed is lost"

// explain makes an Error of what went wrong with a file of the data directory, with a hint that fits.
func (l layout) explain(op string, err error) error {
	hint := "check the data directory " + quote(l.root) + ", or choose another one with --data-dir"
	switch {
	case errors.Is(err, os.ErrPermission):
		hint = "run as the user that owns " + quote(l.root) + ", or choose another folder with --data-dir"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		hint = makeRoom
	case errors.Is(err, unix.EROFS):
		hint = "make the file system writable, or choose another folder with --data-dir"
	case errors.Is(err, unix.ENOLCK), errors.Is(err, unix.ENOTSUP):
		hint = "this file system has no locks (flock): choose a folder on a local disk with --data-dir"
	}
	return &Error{Op: op, Err: err, Hint: hint}
}

// damaged refuses a cluster that is not whole. It is left as it is: an empty one in its place would look like lost data.
func (l layout) damaged(cluster string, why error) error {
	return &Error{
		Op:   "open data directory " + quote(l.root),
		Err:  fmt.Errorf("its cluster %s is damaged: %w", filepath.Base(cluster), why),
		Hint: "see that its disk is mounted, or restore that folder from a backup; to begin anew choose another --data-dir (the old data stay)",
	}
}

// clusterVersion reads the major version that a cluster says it is of.
func (l layout) clusterVersion(cluster string) (int, error) {
	body, err := os.ReadFile(filepath.Join(cluster, "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		if entries, err := os.ReadDir(cluster); err == nil && len(entries) == 0 {
			return 0, l.damaged(cluster, errors.New("the folder is empty"))
		}
		return 0, l.damaged(cluster, errors.New("it has no file PG_VERSION"))
	}
	if err != nil {
		return 0, l.explain("read the version of the cluster", err)
	}
	text := strings.TrimSpace(string(body))
	version, err := strconv.Atoi(text)
	if err != nil {
		return 0, l.damaged(cluster, fmt.Errorf("its file PG_VERSION holds %.20q", text))
	}
	return version, nil
}

// causes are parts of what Postgres says when it cannot start, with what to do. {root}, {cluster}, {user} and {log} become
// the names. The first that fits counts.
var causes = []struct{ part, hint string }{
	{"No space left on device", makeRoom},
	{"wrote only ", makeRoom},
	{"Read-only file system", "make the file system of {root} writable"},
	{"Address already in use", "another program has that port: stop it, or start without TCP"},
	{"has invalid permissions", "chmod 0700 {cluster}"},
	{"has wrong ownership", "chown -R {user} {cluster}"},
	{"Permission denied", "give it back to its user: chown -R {user} {cluster}"},
	{"shared memory", "lower shared_buffers and max_connections, or free memory, and read {log}"},
	{"Cannot allocate memory", "lower shared_buffers and max_connections, or free memory, and read {log}"},
	{"contains errors", "mend or remove that line, and read {log}"},
	{"it was ended from outside", "somebody, or the system for lack of memory, has killed it: try again"},
	// Postgres speaks of initdb here, which would not bring the data back.
	{`database "`, "the cluster is damaged: restore {cluster} from a backup, and read {log}"},
	{"required WAL directory", "the cluster is damaged: restore {cluster} from a backup, and read {log}"},
	{"pg_control", "the cluster is damaged: restore {cluster} from a backup; never run initdb in it"},
	{"incompatible with server", "the cluster is damaged: restore {cluster} from a backup; never run initdb in it"},
	{"checkpoint record", "the cluster is damaged: restore {cluster} from a backup; never run initdb or pg_resetwal in it"},
	{"contains no valid", "the cluster is damaged: restore {cluster} from a backup; never run initdb in it"},
}

// hintFor says what to do about a reason of Postgres, or otherwise where it is not known.
func (l layout) hintFor(reason string, major int, user, otherwise string) string {
	hint := otherwise
	for _, c := range causes {
		if strings.Contains(reason, c.part) {
			hint = c.hint
			break
		}
	}
	return strings.NewReplacer("{root}", quote(l.root), "{cluster}", l.cluster(major), "{user}", user, "{log}", l.serverLog(major)).Replace(hint)
}

// logReason returns why the server ended, from what it has logged since begin: the last FATAL or PANIC line, with the
// DETAIL or HINT after it and, where it is not the cause but the end, with the complaint before it; else the last line.
func logReason(path string, begin int64) string {
	file, err := os.Open(path)
	if err != nil {
		return "its log cannot be read"
	}
	defer file.Close()
	body, err := io.ReadAll(io.NewSectionReader(file, begin, 64<<10))
	if err != nil || len(bytes.TrimSpace(body)) == 0 {
		return "it logged nothing"
	}
	reason, complaint := "", ""
	for line := range strings.Lines(string(body)) {
		word, text := logLine(line)
		switch {
		case word == "FATAL" || word == "PANIC":
			reason = text
			if complaint != "" && (strings.HasSuffix(text, "contains errors") || strings.HasPrefix(text, "could not create any ") ||
				strings.HasPrefix(text, "could not load ")) {
				reason = text + ": " + complaint
			}
		case word == "LOG" && complains(text):
			complaint = text
		case (word == "HINT" || word == "DETAIL") && reason != "" && !strings.Contains(text, "initdb"):
			reason += "; " + text
		}
	}
	if reason == "" {
		return lastLines(body, 3) // what comes before the log begins has no such words, but up to three lines
	}
	return reason
}

// logLine splits a line of the server's log into the word that says what it is and the text.
func logLine(line string) (word, text string) {
	for _, word := range []string{"FATAL", "PANIC", "HINT", "DETAIL", "LOG"} {
		if _, text, found := strings.Cut(line, word+":  "); found {
			return word, strings.TrimSpace(text)
		}
	}
	return "", line
}

// complains says whether a LOG line is about something that went wrong.
func complains(text string) bool {
	for _, start := range []string{"could not ", "invalid ", "unrecognized ", "syntax error ", "parameter "} {
		if strings.HasPrefix(text, start) {
			return true
		}
	}
	return false
}

// complaintOf returns the line of a program's output that says what went wrong: the first one that names an error (what
// follows is its consequence), or else the last one.
func complaintOf(out []byte) string {
	for line := range strings.Lines(string(out)) {
		for _, word := range []string{"error: ", "FATAL:  ", "PANIC:  "} {
			if _, text, found := strings.Cut(line, word); found {
				return strings.TrimSpace(text)
			}
		}
	}
	return lastLines(out, 1)
}

// lastLines returns the last lines of a program's output, n at most, as one.
func lastLines(out []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	lines = lines[max(0, len(lines)-n):]
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, " ")
}
