package ledger_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// TestWorkerStates: what a worker last said of itself is corrected by what is known better.
func TestWorkerStates(t *testing.T) {
	t.Parallel()
	l, _ := newLedger(t)
	ctx := t.Context()
	seen := func(state ledger.WorkerState) {
		must(0, l.WorkerSeen(ctx, ledger.WorkerSeen{Worker: "w", Tags: []string{"default"}, Kinds: []string{"x"}, Host: "h", Slots: 1, State: state}))(t)
	}
	sleep := func(lasting time.Duration, watching bool) {
		must(l.Sleep(ctx, ledger.SleepParams{Worker: "w", Tags: []string{"default"}, Lasting: lasting, Watching: watching}))(t)
	}
	for _, c := range []struct {
		what string
		do   func()
		want string
	}{
		{"it works", func() { seen(ledger.Working) }, "working"},
		{"it has fallen asleep since", func() { sleep(time.Hour, false) }, "sleeping"},
		{"it watches", func() { sleep(time.Hour, true) }, "working"},
		{"it was asleep when it said so, and watches now", func() { seen(ledger.Sleeping) }, "working"},
		{"it sleeps and cannot be woken", func() { sleep(0, false) }, "sleeping"},
		{"it has a job", func() {
			must(l.Enqueue(ctx, ledger.EnqueueParams{Kind: "x"}))(t)
			must(l.Claim(ctx, ledger.ClaimParams{Worker: "w"}))(t)
		}, "working"},
		{"it stops", func() { seen(ledger.Stopping) }, "stopping"},
	} {
		c.do()
		if got := must(l.Read().Workers(ctx))(t); len(got) != 1 || got[0].State != c.want {
			t.Errorf("%s: the workers are %+v, want one that is %s", c.what, got, c.want)
		}
	}
}

// TestCase21_notification_is_small: no input makes a notification too long, whatever sleeps.
func TestCase21_notification_is_small(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ctx := t.Context()
	odd := `O'dd "schema" ` + strings.Repeat("ü", 20)
	odd += strings.Repeat("x", 57-len(odd)) // the longest there may be
	must(0, postgres.MigrateUp(ctx, db.URL, odd))(t)
	l := must(ledger.New(db.Pool, ledger.Config{Schema: odd}))(t)
	other := must(ledger.New(db.Pool, ledger.Config{}))(t)
	e, elsewhere := listen(t, l), listen(t, other)
	tag := func(n int) string { return fmt.Sprintf("%d/%s", n, strings.Repeat("t", 255))[:255] }
	for n := range 20 {
		sleeps(t, l, []string{tag(n), "default"}, strings.Repeat("ü", 120)+strconv.Itoa(n))
	}
	args := `"` + strings.Repeat("a", domain.MaxArgsBytes-2) + `"`
	many := make([]ledger.EnqueueParams, domain.MaxBatch)
	for i := range many {
		many[i] = ledger.EnqueueParams{Kind: "x", Tag: tag(i)}
	}
	for _, c := range []struct {
		what string
		jobs []ledger.EnqueueParams
		want int // notifications
	}{
		{"args of a megabyte", []ledger.EnqueueParams{{Kind: "x", Args: args}}, 1},
		{"a long tag", []ledger.EnqueueParams{{Kind: strings.Repeat("k", 255), Tag: tag(3)}}, 1},
		{"10,000 jobs, each with a long tag of its own", many, 1},
		{"10,000 on few tags", slices.Repeat(many[:20], 500), 1},
	} {
		must(0, pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error {
			_, err := l.EnqueueTx(ctx, tx, c.jobs...)
			return err
		}))(t)
		got := e.heard(t)
		if len(got) != c.want {
			t.Errorf("%s: %d notifications, want %d", c.what, len(got), c.want)
		}
		for _, payload := range got {
			if len(payload) >= 400 {
				t.Errorf("%s: a payload of %d bytes", c.what, len(payload))
			}
		}
	}
	var f *domain.FieldError
	if _, err := l.Enqueue(ctx, ledger.EnqueueParams{Kind: "x", Args: `"` + strings.Repeat("a", 20<<20) + `"`}); !errors.As(err, &f) || f.Field != "args" {
		t.Errorf("20 MB: got %v", err)
	}
	if got := elsewhere.heard(t); got != nil {
		t.Errorf("another ledger of the database heard %q", got)
	}
	var channel string
	must(0, db.Pool.QueryRow(ctx, `SELECT `+pgx.Identifier{odd}.Sanitize()+`.wake_channel()`).Scan(&channel))(t)
	if len(channel) > 63 {
		t.Errorf("the channel's name has %d bytes", len(channel))
	}
}
