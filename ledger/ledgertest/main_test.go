package ledgertest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime"
	"testing"

	"go.uber.org/goleak"

	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/ledgertest"
	"github.com/jobledger/jobledger/ledger/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// failing records how a test would have failed.
type failing struct {
	testing.TB
	message string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// failure is the message with which f fails its test, "" if it does not.
func failure(t *testing.T, f func(t testing.TB)) string {
	t.Helper()
	recorder := &failing{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(recorder)
	}()
	<-done
	return recorder.message
}

func enqueue(t *testing.T, l *ledgertest.Ledger, jobs ...ledger.EnqueueParams) []ledger.Enqueued {
	t.Helper()
	enqueued, err := l.EnqueueMany(t.Context(), jobs)
	if err != nil {
		t.Fatal(err)
	}
	return enqueued
}

func newWorker(t *testing.T, l *ledgertest.Ledger, cfg worker.Config) *worker.Worker {
	t.Helper()
	w, err := worker.New(l.Ledger, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// quiet is the configuration of a worker without log lines.
func quiet(tags ...string) worker.Config {
	return worker.Config{Tags: tags, Logger: slog.New(slog.DiscardHandler)}
}

// handle registers a handler that does nothing.
func handle(w *worker.Worker, kind string) {
	worker.Handle(w, kind, func(context.Context, worker.Job[json.RawMessage]) (struct{}, error) { return struct{}{}, nil })
}
