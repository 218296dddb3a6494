package worker_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
)

// BenchmarkRun works off 20,000 no-op jobs with one worker, client and Postgres (without fsync) on the
// same machine.
func BenchmarkRun(b *testing.B) {
	const jobs = 20_000
	for _, slots := range []int{10, 200, 500, 1000} {
		b.Run(fmt.Sprintf("slots=%d", slots), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				l, _ := newLedger(b, pgtest.MaxConns(12))
				var batch []ledger.EnqueueParams
				for range jobs / 10 {
					batch = append(batch, ledger.EnqueueParams{Kind: "noop"})
				}
				for range 10 {
					if _, err := l.EnqueueMany(b.Context(), batch); err != nil {
						b.Fatal(err)
					}
				}
				w, err := worker.New(l, worker.Config{Concurrency: slots, Drain: true, Logger: quiet})
				if err != nil {
					b.Fatal(err)
				}
				worker.Handle(w, "noop", func(context.Context, worker.Job[struct{}]) (struct{}, error) { return struct{}{}, nil })
				b.StartTimer()
				if err := w.Run(b.Context()); err != nil {
					b.Fatal(err)
				}
				if s := w.Stats(); s.Succeeded != jobs {
					b.Fatalf("stats are %+v", s)
				}
			}
			b.ReportMetric(float64(b.N)*jobs/b.Elapsed().Seconds(), "jobs/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}
