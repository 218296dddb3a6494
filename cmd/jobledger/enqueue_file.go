package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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
func (a *app) enqueueFile(cmd *cobra.Command, path string) error {
	alone := notEmpty(cmd, "file")
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if flag.Name != "file" && cmd.InheritedFlags().Lookup(flag.Name) == nil && alone == nil {
			alone = wrongUse("put it into each line", "--%s says nothing about the lines of --file", flag.Name)
		}
	})
	if alone != nil {
		return alone
	}
	in, name, size := a.stdin, "standard input", int64(-1)
	if path != "-" {
		file, err := openLines(path)
		if err != nil {
			return wrongUse("give a file that can be read, or - for standard input", "--file: %w", err)
		}
		defer file.Close()
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
		in, name = file, path
	}
	return a.with(cmd.Context(), func(s *session) error {
		e := &fileEnqueuer{app: a, store: s.EnqueueMany, name: name, isFile: path != "-", most: batchJobs, bar: a.progressBar(size, "enqueue")}
		return e.run(cmd.Context(), in)
	})
}

func openLines(path string) (*os.File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err == nil && info.IsDir() {
		file.Close()
		return nil, &fs.PathError{Op: "read", Path: path, Err: syscall.EISDIR}
	}
	return file, nil
}

// fileEnqueuer is the state of one `enqueue --file`.
type fileEnqueuer struct {
	*app
	store  func(context.Context, []ledger.EnqueueParams) ([]ledger.Enqueued, error)
	name   string
	isFile bool
	most   int // lines of a batch
	bar    *progressbar.ProgressBar

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
	lines := bufio.NewReaderSize(untilDone(ctx, in), maxLine)
	for last := false; !last; {
		line, err := lines.ReadSlice('\n')
		switch last = errors.Is(err, io.EOF); {
		case errors.Is(err, bufio.ErrBufferFull):
			e.line++
			return e.culprit(tooLong(line))
		case err != nil && !last:
			return e.stopped(because(ctx, err))
		case len(line) == 0:
			continue
		}
		e.line++
		if err := e.add(ctx, line); err != nil {
			return err
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

// tooLong is the error of a line whose end is not in sight.
func tooLong(begin []byte) error {
	if what, command := formatOf(begin); what != "" {
		return otherFormat(what, command)
	}
	return &lineProblem{text: fmt.Sprintf("got more than %d bytes, want at most that, with args of at most %d", maxLine, domain.MaxArgsBytes)}
}

// add puts a line into the batch, and stores the batch when it is full. Empty lines are passed over.
func (e *fileEnqueuer) add(ctx context.Context, line []byte) error {
	_ = e.bar.Add(len(line)) // a matter of looks
	if e.line == 1 {
		line = bytes.TrimPrefix(line, utf8BOM)
	}
	if len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	p, err := parseLine(line)
	if err != nil {
		return e.culprit(asLine(err))
	}
	e.batch, e.lines, e.bytes = append(e.batch, p), append(e.lines, e.line), e.bytes+len(line)
	if len(e.batch) == e.most || e.bytes >= batchBytes {
		return e.flush(ctx)
	}
	return nil
}

// flush stores the batch: all of it or nothing.
func (e *fileEnqueuer) flush(ctx context.Context) error {
	if len(e.batch) == 0 {
		return nil
	}
	jobs, err := e.store(ctx, e.batch)
	if err != nil {
		return e.refused(because(ctx, err))
	}
	lines := e.lines
	e.stored, e.batches, e.upTo = e.stored+len(jobs), e.batches+1, e.line
	e.batch, e.lines, e.bytes = e.batch[:0], e.lines[:0], 0
	for i, job := range jobs {
		if job.Replayed {
			e.replayed++
		}
		if e.json {
			if err := e.printJSON(enqueuedJSON{Line: lines[i], JobID: job.JobID, Replayed: job.Replayed}); err != nil {
				return err
			}
		}
	}
	return nil
}
