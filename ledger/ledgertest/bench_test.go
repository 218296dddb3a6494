package ledgertest_test

import (
	"testing"

	"github.com/jobledger/jobledger/ledger/ledgertest"
)

// BenchmarkNew is what a test pays for its ledger beyond the first test of its process, which finds or
// starts the server.
func BenchmarkNew(b *testing.B) {
	warm, err := ledgertest.Open(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer warm.Close()
	for b.Loop() {
		l, err := ledgertest.Open(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
