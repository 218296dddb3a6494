package ledger_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// TestPingWhenConnected: it is Ping, but for when it is told what to ping; and a caller who is frozen before its commit
// keeps nobody's rows.
func TestPingWhenConnected(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	held := running(t, l, "pinged", time.Minute, time.Hour)
	p := ledger.PingParams{Worker: "w", Lease: 2 * time.Minute}
	answers := must(l.PingWhenConnected(t.Context(), p, func() []ledger.Ping {
		return []ledger.Ping{{Held: held, Progress: 1}, {Held: ledger.Held{JobID: held.JobID, Generation: 7}}}
	}))(t)
	if len(answers) != 2 || answers[0].Event != domain.Pinged || answers[0].LeaseUntil.Sub(answers[0].At) != 2*time.Minute || answers[1].Err == nil {
		t.Errorf("answered %+v", answers)
	}
	if answers := must(l.PingWhenConnected(t.Context(), p, func() []ledger.Ping { return nil }))(t); answers != nil {
		t.Errorf("nothing was pinged, and answered with %+v", answers)
	}
	_, err := l.PingWhenConnected(t.Context(), p, func() []ledger.Ping {
		db.WaitTrue(t, "the server has ended the transaction", `SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'`)
		return []ledger.Ping{{Held: held}}
	})
	// It reads why the server has ended its session, or finds it closed before it gets to read.
	if state := sqlState(err); state != "25P03" && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("a caller who was frozen: %v, want its transaction to have been ended", err)
	}
	verified(t, l, db)
}
