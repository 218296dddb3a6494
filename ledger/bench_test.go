package ledger_test

import (
	"context"
	"testing"
	"time"

	"github.com/jobledger/jobledger/ledger"
)

// batch is how many jobs each statement of the benchmarks handles.
const batch = 500

// BenchmarkEnqueue measures jobs created per second over one connection, args of 100 bytes.
func BenchmarkEnqueue(b *testing.B) {
	l, _ := newLedger(b)
	const jobs = 20000
	for b.Loop() {
		start := time.Now()
		enqueueJobs(b, l, jobs)
		b.ReportMetric(jobs/time.Since(start).Seconds(), "jobs/s")
	}
}

// BenchmarkBurndown measures claim + complete per second by one claimer: two of a job's three events.
func BenchmarkBurndown(b *testing.B) {
	l, _ := newLedger(b)
	const jobs = 20000
	for b.Loop() {
		b.StopTimer()
		enqueueJobs(b, l, jobs)
		b.StartTimer()
		start := time.Now()
		for done := 0; done < jobs; {
			claims := must(l.Claim(context.Background(), ledger.ClaimParams{Worker: "w", Max: batch}))(b)
			ends := make([]ledger.Completion, len(claims.Jobs))
			for i, c := range claims.Jobs {
				ends[i].Held = c.Held
			}
			for _, a := range must(l.CompleteMany(context.Background(), "w", ends))(b) {
				if a.Err != nil {
					b.Fatal(a.Err)
				}
			}
			done += len(ends)
		}
		b.ReportMetric(jobs/time.Since(start).Seconds(), "jobs/s")
	}
}

func enqueueJobs(b *testing.B, l *ledger.Ledger, n int) {
	b.Helper()
	args := `{"text":"` + string(make100()) + `"}`
	for n > 0 {
		jobs := make([]ledger.EnqueueParams, min(n, batch))
		for i := range jobs {
			jobs[i] = ledger.EnqueueParams{Kind: "bench", Args: args}
		}
		must(l.EnqueueMany(context.Background(), jobs))(b)
		n -= len(jobs)
	}
}

func make100() []byte {
	text := make([]byte, 88)
	for i := range text {
		text[i] = 'a' + byte(i%26)
	}
	return text
}
