package modeltest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// delayInput is one call of RetryDelay.
type delayInput struct {
	policy  domain.Policy
	job     uuid.UUID
	attempt int
}

// delayInputs are a few thousand random ones, and all combinations of the extremes that are accepted.
func delayInputs() []delayInput {
	r := rand.New(rand.NewPCG(20260329, 1))
	id := func() (id uuid.UUID) {
		binary.BigEndian.PutUint64(id[:8], r.Uint64())
		binary.BigEndian.PutUint64(id[8:], r.Uint64())
		return id
	}
	var in []delayInput
	for range 4000 {
		base := time.Millisecond + time.Duration(r.Int64N(int64(24*time.Hour-time.Millisecond)))
		if r.IntN(2) == 0 {
			base = time.Millisecond + time.Duration(r.Int64N(int64(time.Minute)))
		}
		in = append(in, delayInput{domain.Policy{BackoffBase: base.Truncate(time.Microsecond), BackoffFactor: 100 + r.IntN(9901),
			BackoffCap: (base + time.Duration(r.Int64N(int64(720*time.Hour-base)))).Truncate(time.Microsecond), BackoffJitter: r.IntN(101)}, id(), r.IntN(201)})
	}
	for _, base := range []time.Duration{time.Millisecond, time.Second, 24 * time.Hour} {
		for _, most := range []time.Duration{base, base + time.Microsecond, 720 * time.Hour} {
			for _, factor := range []int{100, 101, 199, 10000} {
				for _, jitter := range []int{0, 1, 99, 100} {
					for _, attempt := range []int{0, 1, 2, 3, 64, 200, 1000} {
						in = append(in, delayInput{domain.Policy{BackoffBase: base, BackoffFactor: factor, BackoffCap: most, BackoffJitter: jitter}, id(), attempt})
					}
				}
			}
		}
	}
	return in
}

// TestRetryDelay compares the delay that SQL computes with the domain's, to the microsecond.
func TestRetryDelay(t *testing.T) {
	t.Parallel()
	conn, in := pgtest.New(t).Connect(t), delayInputs()
	// Callers without Go have whatever search_path they have.
	if _, err := conn.Exec(context.Background(), `SET search_path = pg_catalog`); err != nil {
		t.Fatal(err)
	}
	rows, err := conn.Query(context.Background(), `
SELECT (extract(epoch FROM d) * 1000000)::bigint, extract(day FROM d) + extract(month FROM d) = 0
FROM unnest($1::interval[], $2::int[], $3::interval[], $4::int[], $5::uuid[], $6::int[]) WITH ORDINALITY AS u (base, factor, cap, jitter, job, attempt, ord)
CROSS JOIN LATERAL jobledger.retry_delay(base, factor, cap, jitter, job, attempt) d
ORDER BY ord`,
		each(in, func(i delayInput) time.Duration { return i.policy.BackoffBase }), each(in, func(i delayInput) int { return i.policy.BackoffFactor }),
		each(in, func(i delayInput) time.Duration { return i.policy.BackoffCap }), each(in, func(i delayInput) int { return i.policy.BackoffJitter }),
		each(in, func(i delayInput) uuid.UUID { return i.job }), each(in, func(i delayInput) int { return i.attempt }))
	if err != nil {
		t.Fatal(err)
	}
	var micros int64
	var plain bool
	n := 0
	_, err = pgx.ForEachRow(rows, []any{&micros, &plain}, func() error {
		want := in[n].policy.RetryDelay(in[n].job, in[n].attempt)
		if got := time.Duration(micros) * time.Microsecond; got != want || !plain {
			t.Errorf("attempt %d of job %s with %+v: SQL says %s, Go says %s", in[n].attempt, in[n].job, in[n].policy, got, want)
		}
		n++
		return nil
	})
	if err != nil || n != len(in) {
		t.Fatalf("compared %d of %d delays: %v", n, len(in), err)
	}
}

// TestDefaultPolicy wants the first row, the defaults of ensure_policy and domain.DefaultPolicy to be one.
func TestDefaultPolicy(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ctx := context.Background()
	policyID := func(query string, args ...any) int {
		t.Helper()
		var id int
		if err := db.Pool.QueryRow(ctx, query, args...).Scan(&id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	if id := policyID(`SELECT jobledger.ensure_policy()`); id != 1 {
		t.Errorf("ensure_policy() is %d, want 1", id)
	}
	if id := policyID(ensurePolicy, policyArgs(domain.DefaultPolicy)...); id != 1 {
		t.Errorf("domain.DefaultPolicy is %d, want 1", id)
	}
	var got domain.Policy
	err := db.Pool.QueryRow(ctx, `
SELECT max_attempts, timeout, restart_limit, on_lost_lease, backoff_base, backoff_factor, backoff_cap, backoff_jitter, coalesce(stall_after, '0')
FROM jobledger.policy WHERE policy_id = 1`).Scan(&got.MaxAttempts, &got.Timeout, &got.RestartLimit, &got.OnLostLease, &got.BackoffBase,
		&got.BackoffFactor, &got.BackoffCap, &got.BackoffJitter, &got.StallAfter)
	if err != nil || got != domain.DefaultPolicy {
		t.Errorf("policy 1 is %+v, %v, want %+v", got, err, domain.DefaultPolicy)
	}
	if digest := policyDigest(domain.DefaultPolicy); !bytes.Equal(digest, one[[]byte](t, db.Connect(t), `SELECT digest FROM jobledger.policy WHERE policy_id = 1`)) {
		t.Errorf("the digest of policy 1 is not %x", digest)
	}
	seen := map[int]domain.Policy{1: domain.DefaultPolicy}
	for i, p := range policies[1:] {
		id, again := policyID(ensurePolicy, policyArgs(p.WithDefaults())...), policyID(ensurePolicy, policyArgs(p.WithDefaults())...)
		if other, taken := seen[id]; taken || id != again {
			t.Errorf("policy %d has the ids %d and %d, the first of which belongs to %+v", i, id, again, other)
		}
		seen[id] = p
	}
}

// policyDigest is what an enqueued event says about its policy: the SHA-256 of its fields in order.
func policyDigest(p domain.Policy) []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d|%d|%d|%s|%d|%d|%d|%d|%d", p.MaxAttempts, p.Timeout.Microseconds(), p.RestartLimit, p.OnLostLease,
		p.BackoffBase.Microseconds(), p.BackoffFactor, p.BackoffCap.Microseconds(), p.BackoffJitter, p.StallAfter.Microseconds()))
	return sum[:]
}

// TestPolicyDigest: the event of an enqueue carries the digest of the policy that the job was given.
func TestPolicyDigest(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	for _, p := range policies {
		e, err := g.l.Enqueue(g.ctx, ledger.EnqueueParams{Kind: "k", Policy: p})
		if err != nil {
			t.Fatal(err)
		}
		got := one[[]byte](t, g.db.Connect(t), `SELECT policy_digest FROM jobledger.job_event WHERE job_id = $1`, e.JobID)
		if want := policyDigest(p.WithDefaults()); !bytes.Equal(got, want) {
			t.Errorf("the event has the policy digest %x, want %x of %+v", got, want, p.WithDefaults())
		}
	}
}
