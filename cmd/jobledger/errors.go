package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/embedded"
	"github.com/jobledger/jobledger/domain"
)

// The exit codes. Those of `job wait` stand beside it.
const (
	exitFailed   = 1
	exitWrongUse = 2
	exitCut      = 6 // of work: the stop has cut commands short
)

// cliError is an error with what the command line adds to it.
type cliError struct {
	err   error
	hint  string
	code  int
	quiet bool // what there is to say was printed already
}

func (e *cliError) Error() string { return e.err.Error() }
func (e *cliError) Unwrap() error { return e.err }

// maxValue is how much of a word of the command line an error shows, maxTold how much an error has in all: people have
// to find the hint below it.
const (
	maxValue = 80
	maxTold  = 1000
)

// wrongUse is an error of the person at the keyboard: exit code 2. Words in it are cut.
func wrongUse(hint, format string, args ...any) error {
	for i, arg := range args {
		if s, ok := arg.(string); ok && len(s) > maxValue {
			args[i] = strings.ToValidUTF8(s[:maxValue], "") + "…"
		}
	}
	return &cliError{err: fmt.Errorf(format, args...), hint: hint, code: exitWrongUse}
}

// failed is any other error with a hint of its own: exit code 1.
func failed(hint, format string, args ...any) error {
	return &cliError{err: fmt.Errorf(format, args...), hint: hint, code: exitFailed}
}

// exit tells of err on standard error and returns the exit code.
func (a *app) exit(ctx context.Context, err error) int {
	if err == nil {
		return 0
	}
	var cli *cliError
	if errors.As(err, &cli) && cli.quiet {
		return cli.code
	}
	if errors.Is(err, syscall.EPIPE) {
		return exitFailed // nobody reads any more, and so nobody wants to hear of it
	}
	// What a command tells on purpose goes before the signal that ended it.
	if by, ok := context.Cause(ctx).(signaled); ok && cli == nil {
		a.tell(by, "")
		return by.exitCode()
	}
	code := exitFailed
	hint := a.hint(err)
	if cli != nil {
		code, hint = cli.code, cli.hint
	}
	if by, ok := context.Cause(ctx).(signaled); ok && errors.Is(err, context.Canceled) {
		code = by.exitCode()
	}
	if field := (*domain.FieldError)(nil); cli == nil && errors.As(err, &field) {
		code = exitWrongUse
	}
	a.tell(err, hint)
	return code
}

// tell prints an error and its hint, each on one line, in the form that was asked for.
func (a *app) tell(err error, hint string) {
	if a.json {
		_ = printJSON(a.stderr, errorOf(err, hint))
		return
	}
	fmt.Fprintf(a.stderr, "error: %s\n", clip(oneLine(plain(err)), maxTold))
	if hint != "" {
		fmt.Fprintf(a.stderr, "hint: %s\n", clip(oneLine(hint), maxTold))
	}
}

// errorOf is an error for programs.
func errorOf(err error, hint string) errorJSON {
	out := errorJSON{Error: plain(err), Hint: hint, Code: code(err)}
	if field, ok := errors.AsType[*domain.FieldError](err); ok {
		out.Field = field.Field
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		out.SQLState = pg.Code
	}
	if at, ok := errors.AsType[*fileError](err); ok {
		out.Line, out.StoredLines = at.from, &at.stored
	}
	return out
}

// plain is the text of an error for people: what Postgres says comes without its code.
func plain(err error) string {
	text := err.Error()
	var walk func(error)
	walk = func(err error) {
		switch e := err.(type) {
		case *pgconn.PgError:
			text = strings.ReplaceAll(text, e.Error(), e.Message)
		case interface{ Unwrap() error }:
			walk(e.Unwrap())
		case interface{ Unwrap() []error }:
			for _, err := range e.Unwrap() {
				walk(err)
			}
		}
	}
	walk(err)
	return text
}

// notice tells of something that takes long.
func (a *app) notice(line string) {
	if !a.json {
		fmt.Fprintf(a.stderr, "%s\n", oneLine(line))
	}
}

// oneLine joins the lines of errors that have several, each once, and makes the rest inert: the driver has a line for
// each way in which it tried to connect.
func oneLine(s string) string {
	var lines []string
	for _, line := range strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }) {
		if line = strings.TrimSpace(line); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return inert(strings.Join(lines, " "))
}

// worded is an error in words of our own.
type worded struct {
	text string
	err  error
}

func (e *worded) Error() string { return e.text }
func (e *worded) Unwrap() error { return e.err }

// refusals are the sentinel errors with their word in JSON and what to do. {job} becomes the id of the job, {again} the
// flags that choose the same ledger.
var refusals = []struct {
	err        error
	code, hint string
}{
	{domain.ErrUnknownOutcome, "unknown_outcome", "the database went away before it answered: look whether it is done before you do it again: jobledger jobs list{again}"},
	{domain.ErrNotFound, "not_found", "the jobs that there are: jobledger jobs list{again}"},
	{domain.ErrEnded, "ended", "how it ended: jobledger job show {job}{again}"},
	{domain.ErrNotEnded, "not_ended", "only a job that has failed or was canceled can be redriven; cancel it first"},
	{domain.ErrSucceeded, "succeeded", "enqueue a new job to do it once more"},
	{domain.ErrKeyConflict, "key_conflict", "use another --key, or the kind and args of the first job"},
	{domain.ErrKeyBusy, "key_busy", "try again when that transaction has ended"},
	{domain.ErrContended, "contended", "try again"},
	{domain.ErrBusy, "busy", "try again"},
	{domain.ErrFenced, "fenced", ""},
	{domain.ErrLeaseOver, "lease_over", ""},
	{domain.ErrTimedOut, "timed_out", ""},
	{domain.ErrUnknownGeneration, "unknown_generation", ""},
	{domain.ErrNoLedger, "no_ledger", "run: jobledger migrate up{again}"},
	{domain.ErrLedgerOlder, "ledger_older", "run: jobledger migrate up{again}"},
	{domain.ErrLedgerNewer, "ledger_newer", "use the jobledger that migrated it, or a newer one"},
	{domain.ErrLedgerDamaged, "ledger_damaged", "restore the whole schema from a backup; no migration mends it, and nothing was changed"},
	{domain.ErrLedgerMisfit, "ledger_misfit", "what is there and what to do: jobledger migrate status{again}"},
}

// code is the word for an error in JSON, "" where there is none.
func code(err error) string {
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			return r.code
		}
	}
	var cli *cliError
	var field *domain.FieldError
	var at *fileError
	var by signaled
	var locked *postgres.LockedError
	switch {
	case errors.As(err, &locked):
		return "locked"
	case errors.As(err, &field), errors.As(err, &at) && errors.As(err, &cli) && cli.code == exitWrongUse:
		return "bad_input"
	case errors.As(err, &by):
		return "interrupted"
	case errors.As(err, &cli) && cli.code == exitWrongUse:
		return "wrong_use"
	}
	return ""
}

// hint says what to do about an error, "" where we don't know.
func (a *app) hint(err error) string {
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			hint := strings.ReplaceAll(r.hint, "{again}", a.flagsAgain())
			if refused, ok := errors.AsType[*domain.RefusedError](err); ok {
				hint = strings.ReplaceAll(hint, "{job}", refused.JobID.String())
			}
			return hint
		}
	}
	var private *embedded.Error
	if errors.As(err, &private) {
		return private.Hint
	}
	var session *postgres.SessionError
	if errors.As(err, &session) {
		return session.Hint
	}
	var config *pgconn.ParseConfigError
	if errors.As(err, &config) {
		return "a database URL looks like postgres://user@host:5432/database"
	}
	var locked *postgres.LockedError
	if errors.As(err, &locked) {
		return locked.Hint()
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return a.hintSQL(pg)
	}
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		return "is Postgres running there? Without --database-url and DATABASE_URL a private one is used"
	}
	return ""
}

func (a *app) hintSQL(pg *pgconn.PgError) string {
	switch pg.Code {
	case pgerrcode.InvalidPassword, pgerrcode.InvalidAuthorizationSpecification:
		return "check user and password of the database URL"
	case pgerrcode.InvalidCatalogName:
		return "create it: createdb " + a.databaseName()
	case pgerrcode.InsufficientPrivilege:
		return "this database user lacks a right on schema " + a.schema + "; ask who owns it"
	case pgerrcode.UndefinedFunction, pgerrcode.UndefinedTable, pgerrcode.UndefinedColumn, pgerrcode.InvalidSchemaName:
		return "the schema doesn't fit this binary: jobledger migrate status" + a.flagsAgain()
	case pgerrcode.DuplicateTable, pgerrcode.DuplicateObject, pgerrcode.DuplicateColumn, pgerrcode.DuplicateFunction:
		return "schema " + a.schema + " has things that its record of migrations does not know: give the ledger a schema of its own with --schema, or restore the whole schema"
	case pgerrcode.ReadOnlySQLTransaction:
		return "this server is a replica, or read-only for now; use the primary"
	case pgerrcode.DiskFull:
		return "make room on the disk of the database; nothing that was committed is lost"
	case pgerrcode.TooManyConnections:
		return "the server has no connection left: stop some clients or raise max_connections"
	}
	return pg.Hint
}

// databaseName is the database of the URL, as a word for a shell.
func (a *app) databaseName() string {
	config, err := pgx.ParseConfig(a.databaseURL)
	if err != nil || config.Database == "" {
		return "NAME"
	}
	return shellWord(config.Database)
}
