package ledger_test

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// TestCase22_LongNames: texts that an index has no room for, once they do not compress, are refused at the
// door, in Go and in SQL, with the limit in bytes; nothing is stored. At the limit all of them are taken.
func TestCase22_LongNames(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	held := running(t, l, "k", 0, 0)
	job, generation := held.JobID, held.Generation
	exec := func(sql string, args ...any) error {
		_, err := db.Pool.Exec(ctx, sql, args...)
		return err
	}
	second := func(_ any, err error) error { return err }
	before := jobsStored(t, db)
	for _, c := range []struct {
		field string
		limit int
		goes  func(s string) error
		sql   func(s string) error
	}{
		{"kind", 255, func(s string) error { return second(l.Enqueue(ctx, ledger.EnqueueParams{Kind: s})) },
			func(s string) error { return exec(`SELECT jobledger.enqueue($1)`, s) }},
		{"tag", 255, func(s string) error { return second(l.Enqueue(ctx, ledger.EnqueueParams{Kind: "k", Tag: s})) },
			func(s string) error { return exec(`SELECT jobledger.enqueue('k', tag => $1)`, s) }},
		{"key", 255, func(s string) error { return second(l.Enqueue(ctx, ledger.EnqueueParams{Kind: "k", Key: s})) },
			func(s string) error { return exec(`SELECT jobledger.enqueue('k', key => $1)`, s) }},
		{"trigger_kind", 255, func(s string) error {
			return second(l.Enqueue(ctx, ledger.EnqueueParams{Kind: "k", Origin: domain.Origin{TriggerKind: s}}))
		}, func(s string) error {
			return exec(`SELECT jobledger.enqueue_many('{k}', trigger_kinds => ARRAY[$1])`, s)
		}},
		{"trigger_ref", 1024, func(s string) error {
			return second(l.Enqueue(ctx, ledger.EnqueueParams{Kind: "k", Origin: domain.Origin{TriggerRef: s}}))
		}, func(s string) error {
			return exec(`SELECT jobledger.enqueue_many('{k}', trigger_refs => ARRAY[$1])`, s)
		}},
		{"worker", 255, func(s string) error {
			return second(l.Claim(ctx, ledger.ClaimParams{Worker: s, Tags: []string{"none"}}))
		},
			func(s string) error { return exec(`SELECT jobledger.claim($1, '{none}')`, s) }},
		{"worker", 255, func(s string) error {
			return l.WorkerSeen(ctx, ledger.WorkerSeen{Worker: s, Host: "h", State: ledger.Sleeping})
		}, func(s string) error {
			return exec(`SELECT jobledger.worker_seen($1, '{}', '{}', 'h', 1, 1, 1, 'working')`, s)
		}},
		{"tags", 255, func(s string) error { return second(l.Claim(ctx, ledger.ClaimParams{Worker: "w", Tags: []string{s}})) },
			func(s string) error { return exec(`SELECT jobledger.claim('w', ARRAY[$1])`, s) }},
		{"host", 255, func(s string) error {
			return l.WorkerSeen(ctx, ledger.WorkerSeen{Worker: "w", Host: s, State: ledger.Sleeping})
		},
			func(s string) error {
				return exec(`SELECT jobledger.worker_seen('w', '{}', '{}', $1, 1, 1, 1, 'working')`, s)
			}},
		{"actor", 255, func(s string) error { return second(l.Reap(ctx, ledger.ReapParams{Actor: s})) },
			func(s string) error { return exec(`SELECT jobledger.reap($1)`, s) }},
		{"actor", 255, func(s string) error { return second(ledger.New(db.Pool, ledger.Config{Actor: s})) },
			func(s string) error { return exec(`SELECT jobledger.cancel('{}', $1)`, s) }},
		{"reason", 1024, func(s string) error { return second(l.CancelMany(ctx, []uuid.UUID{job}, ledger.ByOperator{Reason: s})) },
			func(s string) error { return exec(`SELECT jobledger.cancel('{}', reason => $1)`, s) }},
		{"reason", 1024, func(s string) error {
			return second(l.Snooze(ctx, "other", ledger.Snooze{Held: held, Reason: s}))
		}, func(s string) error {
			return exec(`SELECT jobledger.snooze('other', ARRAY[$1::uuid], ARRAY[$2::int], '{0}', ARRAY[$3])`, job, generation, s)
		}},
	} {
		for name, s := range map[string]string{
			"one byte more": random(c.limit + 1), "2,600 random": random(2600), "3,000 random": random(3000), "8 KiB of one letter": strings.Repeat("k", 8192),
		} {
			want := fmt.Sprintf("1 to %d bytes", c.limit)
			err := c.goes(s)
			if f, ok := errors.AsType[*domain.FieldError](err); !ok || f.Field != c.field || !strings.Contains(f.Want, want) {
				t.Errorf("%s of %s: Go says %.200v, want a FieldError of %s", c.field, name, err, want)
			}
			if err := c.sql(s); refusedFor(t, err) != c.field || !strings.Contains(err.Error(), want) {
				t.Errorf("%s of %s: SQL says %.200v, want JL400 of %s", c.field, name, err, want)
			}
		}
	}
	for _, word := range []string{random(2600), random(3000)} {
		_, err := l.Enqueue(ctx, ledger.EnqueueParams{Kind: "k", Policy: domain.Policy{OnLostLease: domain.OnLostLease(word)}})
		if f, ok := errors.AsType[*domain.FieldError](err); !ok || f.Field != "policy.on_lost_lease" {
			t.Errorf("a long word in a policy: Go says %.200v", err)
		}
		if err := exec(`SELECT jobledger.ensure_policy(on_lost_lease => $1)`, word); refusedFor(t, err) != "policy.on_lost_lease" {
			t.Errorf("a long word in a policy: SQL says %.200v", err)
		}
	}
	if n := jobsStored(t, db); n != before {
		t.Errorf("%d rows are stored, want %d as before", n, before)
	}
	p := ledger.EnqueueParams{Kind: random(255), Tag: random(255), Key: random(255), Labels: map[string]string{random(255): random(255)},
		CorrelationID: random(255), Traceparent: random(255), Origin: domain.Origin{TriggerKind: random(255), TriggerRef: random(1024)}}
	first := must(l.Enqueue(ctx, p))(t)
	if again := must(l.Enqueue(ctx, p))(t); again.JobID != first.JobID {
		t.Errorf("the key of 255 bytes gives %+v, want a replay of %s", again, first.JobID)
	}
	worker := random(255)
	must(0, l.WorkerSeen(ctx, ledger.WorkerSeen{Worker: worker, Tags: []string{p.Tag}, Kinds: []string{p.Kind}, Host: random(255), State: ledger.Sleeping}))(t)
	must(l.Complete(ctx, worker, ledger.Completion{Held: claimOne(t, l, worker, p.Tag, 0)}))(t)
	verified(t, l, db)
}

// random is text of n bytes that does not compress.
func random(n int) string {
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(rand.Text())
	}
	return b.String()[:n]
}

// TestCase21_SizeOfTheArgs: an enqueue does not depend on how much fits into a notification, whoever listens
// and sleeps. Args beyond the limit are refused before there is a transaction, or even a connection.
func TestCase21_SizeOfTheArgs(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	tags := []string{"default", random(70), random(255)}
	must(0, l.WorkerSeen(ctx, ledger.WorkerSeen{Worker: "sleeper", Tags: tags, Host: "h", State: ledger.Sleeping}))(t)
	for _, n := range []int{7990, 8000, 8001, 1 << 20} {
		for _, tag := range tags {
			args := `"` + random(n-2) + `"`
			id := must(l.Enqueue(ctx, ledger.EnqueueParams{Kind: "k", Tag: tag, Args: args}))(t).JobID
			if got := must(l.Job(ctx, id))(t); string(got.Args) != args {
				t.Errorf("args of %d bytes came back as %d bytes", n, len(got.Args))
			}
			must(db.Pool.Exec(ctx, `SELECT jobledger.enqueue('k', $1, $2)`, args, tag))(t)
		}
	}
	wide := strings.Repeat("\U0001F600", 2000) // four bytes each
	_, err := l.Enqueue(ctx, ledger.EnqueueParams{Kind: "k", Tag: wide})
	if f, ok := errors.AsType[*domain.FieldError](err); !ok || f.Field != "tag" {
		t.Errorf("a tag of 2,000 wide characters: %v", err)
	}
	before := jobsStored(t, db)
	huge := `"` + big(20<<20) + `"`
	if _, err := db.Pool.Exec(ctx, `SELECT jobledger.enqueue('k', $1)`, huge); refusedFor(t, err) != "args" || !strings.Contains(err.Error(), "1048576") {
		t.Errorf("20 MB: SQL says %.200v, want JL400 of args", err)
	}
	nowhere := must(pgxpool.New(ctx, "host=127.0.0.1 port=1 user=nobody connect_timeout=1"))(t)
	t.Cleanup(nowhere.Close)
	_, err = must(ledger.New(nowhere, ledger.Config{}))(t).EnqueueMany(ctx, []ledger.EnqueueParams{{Kind: "k"}, {Kind: "k", Args: huge}})
	if f, ok := errors.AsType[*domain.FieldError](err); !ok || f.Field != "args" || f.Index != 1 || !strings.Contains(f.Want, "1048576") {
		t.Errorf("20 MB without a database: %v, want a FieldError of args", err)
	}
	var unreachable net.Error
	if _, err := must(ledger.New(nowhere, ledger.Config{}))(t).Enqueue(ctx, ledger.EnqueueParams{Kind: "k"}); !errors.As(err, &unreachable) {
		t.Errorf("the control: %v, want no connection", err)
	}
	if n := jobsStored(t, db); n != before {
		t.Errorf("%d rows are stored, want %d as before", n, before)
	}
	verified(t, l, db)
}

// TestCase21_LargestBatch: 10,000 jobs in one transaction.
func TestCase21_LargestBatch(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	ctx := t.Context()
	must(0, l.WorkerSeen(ctx, ledger.WorkerSeen{Worker: "sleeper", Tags: []string{"default"}, Host: "h", State: ledger.Sleeping}))(t)
	jobs := make([]ledger.EnqueueParams, domain.MaxBatch)
	for i := range jobs {
		jobs[i] = ledger.EnqueueParams{Kind: "k", Args: json.RawMessage(fmt.Sprint(i))}
	}
	must(0, pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error {
		created, err := l.EnqueueTx(ctx, tx, jobs...)
		if len(created) != len(jobs) {
			t.Errorf("%d jobs were created", len(created))
		}
		return err
	}))(t)
	if n := jobsStored(t, db); n != 3*len(jobs) {
		t.Errorf("%d rows are stored, want a job, an event and a body for each of %d", n, len(jobs))
	}
	if _, err := l.EnqueueMany(ctx, append(jobs, jobs[0])); !strings.Contains(fmt.Sprint(err), "at most 10000 jobs") {
		t.Errorf("10,001 jobs: %v", err)
	}
}
