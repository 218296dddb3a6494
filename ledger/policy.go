package ledger

import (
	"context"

	"github.com/jobledger/jobledger/domain"
)

// defaultPolicyID is the row of domain.DefaultPolicy, which the first migration inserts.
const defaultPolicyID = 1

// maxPolicies bounds what a Ledger remembers; a caller that computes a policy for each job pays a
// round trip for it instead of memory.
const maxPolicies = 10000

// policyID returns the id of p, adding it to the ledger if it is new. remember must be false inside
// a caller's transaction, whose roll-back would take the row away again.
func (l *Ledger) policyID(ctx context.Context, q querier, p domain.Policy, remember bool) (int, error) {
	l.mu.Lock()
	id, ok := l.policies[p]
	l.mu.Unlock()
	if ok {
		return id, nil
	}
	r := &request{verb: "ensure policy", name: "ensure_policy", harmless: true, args: []any{p.MaxAttempts, p.Timeout, p.RestartLimit,
		string(p.OnLostLease), p.BackoffBase, p.BackoffFactor, p.BackoffCap, p.BackoffJitter, nullable(p.StallAfter)}}
	r.read = func(rows rows) error {
		for rows.Next() {
			if err := rows.Scan(&id); err != nil {
				return err
			}
		}
		return nil
	}
	if err := l.do(ctx, q, r); err != nil {
		return 0, err
	}
	if remember {
		l.mu.Lock()
		if len(l.policies) < maxPolicies {
			l.policies[p] = id
		}
		l.mu.Unlock()
	}
	return id, nil
}
