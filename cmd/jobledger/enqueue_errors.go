package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
)

// fileError is an error of `enqueue --file`: of one line, or of the lines of a batch.
type fileError struct {
	name     string
	from, to int
	stored   int // the last line that is stored, 0 if none is
	err      error
}

func (e *fileError) Error() string {
	at := fmt.Sprintf("line %d", e.from)
	if e.to > e.from {
		at = fmt.Sprintf("lines %d to %d", e.from, e.to)
	}
	return fmt.Sprintf("%s %s: %s", e.name, at, e.err)
}

func (e *fileError) Unwrap() error { return e.err }

// lineProblem is what is wrong with a line beside the value of a field.
type lineProblem struct{ text, hint string }

func (p *lineProblem) Error() string { return p.text }

// otherFormat is the error of a file that is no text in lines.
func otherFormat(what, command string) error {
	return &lineProblem{"got a file that is " + what + ", want JSON Lines", command + " {file} | jobledger enqueue --file -"}
}

// at is err with the lines that it is about.
func (e *fileEnqueuer) at(from, to int, err error) error {
	return &fileError{name: e.name, from: from, to: to, stored: e.upTo, err: err}
}

// culprit is the error of the line that was looked at last, whose input is wrong; its batch is not stored.
func (e *fileEnqueuer) culprit(err error) error {
	hint := e.again("correct it")
	if problem, ok := errors.AsType[*lineProblem](err); ok && problem.hint != "" {
		if e.batches == 0 {
			hint = "nothing is stored"
		}
		hint = e.named(problem.hint) + "; " + hint
	}
	return wrongUse(hint, "%w", e.at(e.line, e.line, err))
}

// named puts the file into the command of a hint; standard input needs no name.
func (e *fileEnqueuer) named(hint string) string {
	if !e.isFile {
		return strings.ReplaceAll(hint, " {file}", "")
	}
	return strings.ReplaceAll(hint, "{file}", shellWord(e.name))
}

// stopped is an error that no line is to blame for: the input ended in an error, or a signal came.
func (e *fileEnqueuer) stopped(err error) error {
	return failed(e.again(""), "%w", e.at(e.line+1, e.line+1, err))
}

// refused tells of a batch that the ledger did not take.
func (e *fileEnqueuer) refused(err error) error {
	first, last := e.lines[0], e.lines[len(e.lines)-1]
	field, isField := errors.AsType[*domain.FieldError](err)
	refused, isRefused := errors.AsType[*domain.RefusedError](err)
	switch {
	case isField && field.Index < len(e.lines):
		e.line = e.lines[field.Index]
		return e.culprit(asLine(field))
	case isRefused && refused.Index < len(e.lines):
		return e.keyRefused(refused)
	case answerLost(err):
		return failed(fmt.Sprintf("lines %d to %d may be stored or not; %s; lines with a key may be given again", first, last, e.storedText()),
			"%w", e.at(first, last, err))
	}
	return failed(e.again(""), "%w", e.at(first, last, err))
}

// keyRefused says which key was refused, and who has it: a line before, or a job.
func (e *fileEnqueuer) keyRefused(refused *domain.RefusedError) error {
	line, key := e.lines[refused.Index], e.batch[refused.Index].Key
	err, hint := e.refusedKey(refused, key), e.again("")
	if refused.Refusal == domain.RefusedKeyConflict && refused.JobID == uuid.Nil {
		for i, p := range e.batch[:refused.Index] {
			if p.Key == key {
				err = &worded{fmt.Sprintf("key %s was used in line %d for another kind or other args", clip(strconv.Quote(key), maxValue), e.lines[i]), refused}
				break
			}
		}
	}
	if refused.Refusal == domain.RefusedKeyConflict {
		hint = e.again("correct it")
	}
	if cli, ok := errors.AsType[*cliError](err); ok {
		hint = cli.hint + "; " + hint
	}
	return failed(hint, "%w", e.at(line, line, err))
}

// again says what is stored and from where to go on, after something was done about it.
func (e *fileEnqueuer) again(first string) string {
	if first != "" {
		first += " and "
	}
	switch {
	case e.batches == 0:
		return "nothing is stored: " + first + "give the whole file again"
	case !e.isFile:
		return fmt.Sprintf("%s: %sgo on with line %d", e.storedText(), first, e.upTo+1)
	}
	return fmt.Sprintf("%s: %sgo on with: tail -n +%d %s | jobledger enqueue --file -%s",
		e.storedText(), first, e.upTo+1, shellWord(e.name), e.flagsAgain())
}

func (e *fileEnqueuer) storedText() string {
	if e.batches == 0 {
		return "nothing before is stored"
	}
	return fmt.Sprintf("lines 1 to %d are stored (%s)", e.upTo, plural(int64(e.stored), "job"))
}

// because names the signal that ended ctx in place of what it broke off.
func because(ctx context.Context, err error) error {
	if by, ok := context.Cause(ctx).(signaled); ok && errors.Is(err, context.Canceled) {
		return &worded{by.Error(), errors.Join(by, err)}
	}
	return err
}

// asLine calls a field by its name in the file.
func asLine(err error) error {
	field, ok := errors.AsType[*domain.FieldError](err)
	if !ok {
		return err
	}
	name := strings.TrimPrefix(field.Field, "policy.")
	switch name {
	case "scheduled_for":
		name = "at"
	case "delay":
		name = "in"
	}
	return &domain.FieldError{Index: field.Index, Field: name, Value: field.Value, Want: field.Want}
}
