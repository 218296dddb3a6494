package modeltest

import (
	"errors"
	"fmt"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// The verbs that choose their jobs themselves: claim and reap.

// claim compares which jobs were given, in which order, and all that is told about them.
func (s *sequence) claim(c call) error {
	got, err := s.l.Claim(s.ctx, ledger.ClaimParams{Worker: c.actor, Tags: c.tags, Max: c.max, Lease: c.lease})
	if err != nil {
		return err
	}
	if got.Contended {
		return errors.New("answered contended, but nobody else is there")
	}
	due := s.m.claimable(c.tags)
	s.noteClaims(c, due)
	due = due[:min(len(due), c.max)]
	want := make([]ledger.Claimed, len(due))
	for n, j := range due {
		s.touched = append(s.touched, j.ID)
		if _, _, err := s.m.do(j.ID, c.command(item{}), nil); err != nil {
			return err
		}
		want[n] = s.m.of(j.ID).claimed(s.policyID(j.Policy))
		if p := s.m.jobs[j.ID]; p.job.Facts != "" {
			want[n].Facts.Labels = map[string]string{"team": "x"}
		}
	}
	return same("claim", got.Jobs, append([]ledger.Claimed(nil), want...))
}

// noteClaims counts every job that the claim passed by or took; those that only max held back are neither.
func (s *sequence) noteClaims(c call, due []domain.Job) {
	for _, j := range due[:min(len(due), c.max)] {
		s.seen.note(cell{c.verb, stateOf(s.m.of(j.ID), s.m.now), "-"})
	}
	for _, id := range s.m.ids {
		h := s.m.of(id)
		if a, err := domain.Decide(h.events, c.command(item{}), s.m.now); err == nil && a.Refusal != "" {
			s.seen.note(cell{c.verb, stateOf(h, s.m.now), "-"})
		}
	}
}

// policyID is the id under which the database keeps a policy: always the same one.
func (s *sequence) policyID(p domain.Policy) int {
	if id, ok := s.policy[p]; ok {
		return id
	}
	var id int
	err := s.db.Pool.QueryRow(s.ctx, ensurePolicy, policyArgs(p)...).Scan(&id)
	if err != nil {
		s.t.Fatal(err)
	}
	s.policy[p] = id
	return id
}

// reap compares what was taken back. Which ones, where there are more than max, is the ledger's choice.
func (s *sequence) reap(c call) error {
	due := s.m.reapable(c)
	for _, id := range s.m.ids {
		if a, err := domain.Decide(s.m.of(id).events, c.command(item{}), s.m.now); err == nil && a.Refusal != "" {
			s.seen.note(cell{c.verb, stateOf(s.m.of(id), s.m.now), "-"})
		}
	}
	got, err := c.make(s.ctx, s.l)
	if err != nil {
		return err
	}
	if len(got) != min(len(due), c.max) {
		return fmt.Errorf("took back %d jobs, want %d of %d", len(got), min(len(due), c.max), len(due))
	}
	for _, a := range got {
		s.touched = append(s.touched, a.JobID)
		if !due[a.JobID] {
			return fmt.Errorf("took back job %s, which is alive or was taken back in the same call", a.JobID)
		}
		delete(due, a.JobID)
		state := stateOf(s.m.of(a.JobID), s.m.now)
		_, want, err := s.m.do(a.JobID, c.command(item{}), nil)
		if err != nil {
			return err
		}
		s.seen.note(cell{c.verb, state, "-"})
		if err := sameAnswer(c.command(item{}), a.JobID, a, want); err != nil {
			return err
		}
	}
	return nil
}
