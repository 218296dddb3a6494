package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

const (
	// batchJobs is how many lines are stored at once: enough that the round trip doesn't count, few enough to name.
	batchJobs = 1000
	// batchBytes ends a batch of large args earlier, so that memory stays bounded.
	batchBytes = 8 << 20
	// maxLine is the longest line: args of their full length, and room for the other fields.
	maxLine = domain.MaxArgsBytes + 64<<10
)

// enqueueFile stores a file of jobs, batch by batch.
func (a *app) enqueueFile(cmd *cobra.Command, f enqueueFlags) error {
	var alone error
	for _, flag := range []string{"args", "tag", "priority", "at", "in", "timeout", "max-attempts", "restart-limit", "on-lost-lease", "label", "key", "key-ttl", "correlation-id"} {
		if cmd.Flags().Changed(flag) {
			alone = wrongUse("put it into each line", "--%s says nothing about the lines of --file", flag)
		}
	}
	if alone != nil {
		return alone
	}
	in, name, size := a.stdin, "standard input", int64(-1)
	if f.file != "-" {
		file, err := os.Open(f.file)
		if err != nil {
			return wrongUse("give a file that can be read, or - for standard input", "--file: %w", err)
		}
		defer file.Close()
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
		in, name = file, f.file
	}
	return a.with(cmd.Context(), func(s *session) error {
		e := &fileEnqueuer{app: a, session: s, name: name, isFile: f.file != "-", bar: a.progressBar(size, "enqueue")}
		return e.run(cmd.Context(), in)
	})
}

// fileEnqueuer is the state of one `enqueue --file`.
type fileEnqueuer struct {
	*app
	session *session
	name    string
	isFile  bool
	bar     *progressbar.ProgressBar

	line     int // the last one that was read
	batch    []ledger.EnqueueParams
	lines    []int // where each of the batch stands
	bytes    int
	stored   int // jobs of the batches before, replayed ones among them
	replayed int
	batches  int
	upTo     int // the last line of the last stored batch
}

func (e *fileEnqueuer) run(ctx context.Context, in io.Reader) error {
	defer endBar(e.bar)
	lines := bufio.NewReaderSize(in, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			if errors.Is(err, bufio.ErrBufferFull) {
				e.line++
				err = fmt.Errorf("is longer than %d bytes", maxLine)
			}
			return e.culprit(err)
		}
		last := err != nil
		if len(line) > 0 {
			e.line++
			if err := e.add(ctx, line); err != nil {
				return err
			}
		}
		if last {
			break
		}
	}
	if err := e.flush(ctx); err != nil {
		return err
	}
	endBar(e.bar)
	if e.json {
		return nil
	}
	text := plural(int64(e.stored-e.replayed), "job") + " enqueued"
	if e.replayed > 0 {
		text += fmt.Sprintf(", %d replayed", e.replayed)
	}
	_, err := fmt.Fprintln(e.stdout, text)
	return err
}

// add puts a line into the batch, and stores the batch when it is full. Empty lines are passed over.
func (e *fileEnqueuer) add(ctx context.Context, line []byte) error {
	_ = e.bar.Add(len(line)) // a matter of looks
	if len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	p, err := parseLine(line)
	if err != nil {
		return e.culprit(asLine(err))
	}
	e.batch, e.lines, e.bytes = append(e.batch, p), append(e.lines, e.line), e.bytes+len(line)
	if len(e.batch) == batchJobs || e.bytes >= batchBytes {
		return e.flush(ctx)
	}
	return nil
}

// flush stores the batch: all of it or nothing.
func (e *fileEnqueuer) flush(ctx context.Context) error {
	if len(e.batch) == 0 {
		return nil
	}
	jobs, err := e.session.EnqueueMany(ctx, e.batch)
	if err != nil {
		return e.refused(err)
	}
	for i, job := range jobs {
		if job.Replayed {
			e.replayed++
		}
		if e.json {
			if err := e.printJSON(enqueuedJSON{Line: e.lines[i], JobID: job.JobID, Replayed: job.Replayed}); err != nil {
				return err
			}
		}
	}
	e.stored, e.batches, e.upTo = e.stored+len(jobs), e.batches+1, e.line
	e.batch, e.lines, e.bytes = e.batch[:0], e.lines[:0], 0
	return nil
}

// refused tells of a batch that the ledger did not take.
func (e *fileEnqueuer) refused(err error) error {
	var field *domain.FieldError
	if errors.As(err, &field) && field.Index < len(e.lines) {
		e.line = e.lines[field.Index]
		return e.culprit(asLine(field))
	}
	var refused *domain.RefusedError
	if errors.As(err, &refused) && refused.Index < len(e.lines) {
		e.line = e.lines[refused.Index]
		return e.culprit(err)
	}
	first, last := e.lines[0], e.lines[len(e.lines)-1]
	if answerLost(err) {
		return failed(fmt.Sprintf("lines %d to %d may be stored or not; %s; lines with a key may be given again", first, last, e.storedText()),
			"%s: lines %d to %d: %w", e.name, first, last, err)
	}
	return failed(e.again(), "%s: lines %d to %d: %w", e.name, first, last, err)
}

// culprit is the error of the line that was looked at last; its batch is not stored.
func (e *fileEnqueuer) culprit(err error) error {
	hint := e.again()
	var cli *cliError
	if errors.As(err, &cli) && cli.hint != "" {
		hint = cli.hint + "; " + hint
	}
	return failed(hint, "%s line %d: %w", e.name, e.line, err)
}

// again says what is stored and from where to go on.
func (e *fileEnqueuer) again() string {
	if e.batches == 0 {
		return "nothing is stored: correct it and give the whole file again"
	}
	if !e.isFile {
		return fmt.Sprintf("%s; correct it and go on with line %d", e.storedText(), e.upTo+1)
	}
	return fmt.Sprintf("%s; correct it and go on with: tail -n +%d %s | jobledger enqueue --file -%s",
		e.storedText(), e.upTo+1, shellWord(e.name), e.flagsAgain())
}

func (e *fileEnqueuer) storedText() string {
	if e.batches == 0 {
		return "nothing before is stored"
	}
	return fmt.Sprintf("lines 1 to %d are stored (%s in %s)", e.upTo, plural(int64(e.stored), "job"), plural(int64(e.batches), "batch"))
}

// asLine calls a field by its name in the file.
func asLine(err error) error {
	var field *domain.FieldError
	if !errors.As(err, &field) {
		return err
	}
	name := field.Field
	switch name {
	case "scheduled_for":
		name = "at"
	case "delay":
		name = "in"
	case "policy.timeout", "policy.max_attempts", "policy.restart_limit", "policy.on_lost_lease":
		name = name[len("policy."):]
	}
	return &domain.FieldError{Index: field.Index, Field: name, Value: field.Value, Want: field.Want}
}
