package ledger_test

import (
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/ledger"
)

// BenchmarkWake measures what an enqueue pays for wake-ups: against the same function without them in
// another schema of the same database, in turn, call by call, so that neighbours disturb both alike.
func BenchmarkWake(b *testing.B) {
	for _, size := range []int{1, batch} {
		for _, c := range []struct {
			name, tag string
			sleepers  int
		}{{"nobody_sleeps", "", 0}, {"50_sleep_elsewhere", "other", 50}, {"1_sleeps", "default", 1}, {"50_sleep", "default", 50}} {
			b.Run(fmt.Sprintf("jobs=%d/%s", size, c.name), func(b *testing.B) {
				l, db := newLedger(b)
				must(0, postgres.MigrateUp(b.Context(), db.URL, "without"))(b)
				without := must(ledger.New(db.Pool, ledger.Config{Schema: "without"}))(b)
				var text string
				const source = `SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = 'enqueue_many' AND pronamespace = 'without'::regnamespace`
				must(0, db.Pool.QueryRow(b.Context(), source).Scan(&text))(b)
				cut := regexp.MustCompile(`(?s)IF EXISTS \(SELECT FROM sleeper.*?END IF;`).ReplaceAllString(text, "")
				if len(cut) == len(text) {
					b.Fatal("there is nothing to leave out")
				}
				must(db.Pool.Exec(b.Context(), cut))(b)
				for n := range c.sleepers {
					must(l.Sleep(b.Context(), ledger.SleepParams{Worker: fmt.Sprintf("w%d", n), Tags: []string{c.tag}, Lasting: time.Hour}))(b)
				}
				jobs := make([]ledger.EnqueueParams, size)
				for i := range jobs {
					jobs[i] = ledger.EnqueueParams{Kind: "bench"}
				}
				var took [2][]time.Duration
				for b.Loop() {
					for i := range 2000 / size * 2 {
						sent := time.Now()
						must([]*ledger.Ledger{l, without}[i%2].EnqueueMany(b.Context(), jobs))(b)
						took[i%2] = append(took[i%2], time.Since(sent))
					}
				}
				// Not the median: what is slow here is slow because of the neighbours.
				tenth := func(d []time.Duration) float64 {
					slices.Sort(d)
					return float64(d[len(d)/10].Nanoseconds()) / 1000
				}
				b.ReportMetric(tenth(took[1]), "us-without")
				b.ReportMetric(tenth(took[0]), "us-with")
				b.ReportMetric(tenth(took[0])/tenth(took[1]), "ratio")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
