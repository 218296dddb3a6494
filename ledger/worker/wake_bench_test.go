package worker_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/embedded"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

// BenchmarkLatency measures from before an enqueue to the start of the handler at an idle worker with
// the default poll of a second: woken or polling, the jobs some time apart or each as soon as the last
// one has begun.
func BenchmarkLatency(b *testing.B) {
	for _, c := range []struct {
		name  string
		cfg   worker.Config
		apart time.Duration
		jobs  int
	}{
		{"woken", worker.Config{}, 50 * time.Millisecond, 100},
		{"woken_in_a_row", worker.Config{}, 0, 500},
		{"polling", worker.Config{NoListen: true}, 0, 30},
	} {
		b.Run(c.name, func(b *testing.B) {
			l, _ := newLedger(b)
			c.cfg.Logger = quiet
			began := make(chan time.Time, 1)
			w := start(b, l, c.cfg, func(w *worker.Worker) {
				worker.Handle(w, "noop", func(context.Context, worker.Job[struct{}]) (struct{}, error) {
					began <- time.Now()
					return struct{}{}, nil
				})
			})
			until(b, "it listens", func() bool { return c.cfg.NoListen || w.Stats().Listening })
			var took []time.Duration
			for b.Loop() {
				for range c.jobs {
					<-time.After(c.apart)
					sent := time.Now()
					if _, err := l.Enqueue(b.Context(), ledger.EnqueueParams{Kind: "noop"}); err != nil {
						b.Fatal(err)
					}
					took = append(took, (<-began).Sub(sent))
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkClients measures how many jobs 16 clients enqueue in three seconds, one by one with durable
// commits, while workers that have little to do run them: none, polling every ten milliseconds, or
// woken. A commit that notifies waits for the one before it.
func BenchmarkClients(b *testing.B) {
	dir, err := os.MkdirTemp("", "jobledger-bench-")
	if err == nil {
		err = os.Chmod(dir, 0o755) // the server is another user where this one is root
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	server, err := embedded.StartExclusive(b.Context(), embedded.Options{DataDir: dir})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = server.Close() })
	for n, c := range []struct {
		name    string
		workers int
		cfg     worker.Config
	}{
		{"none", 0, worker.Config{}},
		{"polling", 20, worker.Config{NoListen: true, Poll: 10 * time.Millisecond}},
		{"woken", 20, worker.Config{}},
	} {
		b.Run(fmt.Sprintf("workers=%d/%s", c.workers, c.name), func(b *testing.B) {
			for round := 0; b.Loop(); round++ {
				schema := fmt.Sprintf("bench_%d_%d", n, round)
				if err := postgres.MigrateUp(b.Context(), server.URL(), schema); err != nil {
					b.Fatal(err)
				}
				pool, err := postgres.OpenPool(b.Context(), postgres.PoolConfig{URL: server.URL(), MaxConns: 40})
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(pool.Close)
				l, err := ledger.New(pool, ledger.Config{Schema: schema})
				if err != nil {
					b.Fatal(err)
				}
				clients(b, l, c.workers, c.cfg)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func clients(b *testing.B, l *ledger.Ledger, workers int, cfg worker.Config) {
	var ran, enqueued, waited atomic.Int64
	cfg.Logger = quiet
	var all []*running
	for range workers {
		all = append(all, start(b, l, cfg, func(w *worker.Worker) {
			worker.Handle(w, "noop", func(_ context.Context, job worker.Job[time.Time]) (struct{}, error) {
				waited.Add(int64(time.Since(job.Args)))
				ran.Add(1)
				return struct{}{}, nil
			})
		}))
		until(b, "it listens", func() bool { return cfg.NoListen || all[len(all)-1].Stats().Listening })
	}
	over := time.Now().Add(3 * time.Second)
	var calling sync.WaitGroup
	for range 16 {
		calling.Go(func() {
			for time.Now().Before(over) {
				if _, err := l.Enqueue(b.Context(), ledger.EnqueueParams{Kind: "noop", Args: time.Now()}); err != nil {
					b.Error(err)
					return
				}
				enqueued.Add(1)
			}
		})
	}
	calling.Wait()
	until(b, "all have run", func() bool { return workers == 0 || ran.Load() == enqueued.Load() })
	for _, w := range all {
		_ = w.stop()
	}
	b.ReportMetric(float64(enqueued.Load())/3, "jobs/s")
	b.ReportMetric(float64(waited.Load())/float64(max(1, ran.Load()))/1e6, "ms-to-start")
}
