package demo

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

// kind of the demo's jobs, and the tag that its workers serve.
const (
	kind = "inspect"
	tag  = "demo"
)

// Args of an inspect job.
type Args struct {
	Path string `json:"path"`
}

// Found is the result of an inspect job.
type Found struct {
	Lines  int64  `json:"lines"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// inspect reads a file and counts it. It gives up when ctx ends, which matters for a named pipe that
// nobody writes to.
func inspect(ctx context.Context, path string) (Found, error) {
	// Opened for writing too, a pipe does not block in open; a plain file is opened for reading only.
	flag := os.O_RDONLY
	if info, err := os.Stat(path); err == nil && info.Mode()&fs.ModeNamedPipe != 0 {
		flag = os.O_RDWR | syscall.O_NONBLOCK
	}
	f, err := os.OpenFile(path, flag, 0)
	if err != nil {
		return Found{}, err
	}
	defer f.Close()
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })() // plain files have none
	sum := sha256.New()
	var found Found
	r := bufio.NewReader(io.TeeReader(f, sum))
	for {
		chunk, err := r.ReadSlice('\n')
		found.Bytes += int64(len(chunk))
		switch {
		case err == nil:
			found.Lines++
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			found.SHA256 = hex.EncodeToString(sum.Sum(nil))
			return found, nil
		default:
			return Found{}, err
		}
	}
}

// Work is one worker process of the demo: it runs inspect jobs until ctx is done, and writes the id of
// each job that it starts to out. Leases are short, so that a take-over can be watched.
func Work(ctx context.Context, l *ledger.Ledger, name string, log *slog.Logger, out io.Writer) error {
	w, err := worker.New(l, worker.Config{
		Name: name, Tags: []string{tag}, Concurrency: 32, Lease: lease, PingEvery: lease / 3, Margin: lease / 6,
		Poll: 100 * time.Millisecond, ReapEvery: time.Second, StopTimeout: 5 * time.Second, Logger: log,
	})
	if err != nil {
		return err
	}
	worker.Handle(w, kind, func(ctx context.Context, job worker.Job[Args]) (Found, error) {
		fmt.Fprintln(out, job.ID)
		found, err := inspect(ctx, job.Args.Path)
		if errors.Is(err, syscall.EISDIR) {
			return found, worker.Permanent(err)
		}
		return found, err
	})
	return w.Run(ctx)
}

// sources lists the Go files below dir: regular files only.
func sources(dir string) ([]string, error) {
	var paths []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && filepath.Ext(path) == ".go" {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list Go files: %w", err)
	}
	return paths, nil
}

// directly inspects the files without any job, to compare with.
func directly(ctx context.Context, paths []string) (map[string]Found, error) {
	want := make(map[string]Found, len(paths))
	for _, path := range paths {
		found, err := inspect(ctx, path)
		if err != nil {
			return nil, fmt.Errorf("count %s: %w", path, err)
		}
		want[path] = found
	}
	return want, nil
}

// retryPolicy of the demo's jobs: three attempts, close together.
var retryPolicy = domain.Policy{MaxAttempts: 3, BackoffBase: 200 * time.Millisecond, RestartLimit: 3}
