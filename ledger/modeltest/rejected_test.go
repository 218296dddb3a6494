package modeltest

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
)

// pauseAfterHome stops whoever has read the home of a job for a refusal until the lock is given back.
const pauseAfterHome = `
CREATE OR REPLACE FUNCTION jobledger.home(job_id uuid)
RETURNS TABLE (state text, version integer, generation integer, attempt integer, worker text,
               lease_until timestamptz, timeout_at timestamptz, canceled_by text, outcome text)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT j.state, j.version, j.generation, j.attempt, j.worker, j.lease_until, j.timeout_at, j.canceled_by, j.outcome
    FROM jobledger.job j WHERE j.job_id = home.job_id;
    PERFORM pg_advisory_xact_lock_shared(4711);
END
$$`

// rejectedAsJudged: between the moment at which a refusal is judged (the lease is over) and its rejected
// event, the job is taken back and claimed by another worker. The reason no longer holds (the caller is
// fenced now), so no event may carry it.
func rejectedAsJudged(g *ground) error {
	b := newBuilder(g)
	k := callFor(cell{verb: domain.VerbComplete, relation: "current"}, b.run())
	if b.advance(tableLease); b.err != nil {
		return b.err
	}
	if _, err := g.db.Pool.Exec(g.ctx, pauseAfterHome); err != nil {
		return err
	}
	conn := g.db.Connect(g.t)
	if _, err := conn.Exec(g.ctx, `SELECT pg_advisory_lock(4711)`); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		r, err := g.answer(k, k.command(k.items[0]), b.id)
		if err == nil && r.Refusal != domain.RefusedLeaseOver {
			err = fmt.Errorf("answered %+v, want %s", r, domain.RefusedLeaseOver)
		}
		done <- err
	}()
	if err := g.waits(conn, func() bool { return len(done) > 0 }); err != nil {
		return errors.Join(err, <-done)
	}
	b.expect(domain.Reaped, b.reap).claim()
	_, err := conn.Exec(g.ctx, `SELECT pg_advisory_unlock(4711)`)
	if err := errors.Join(err, <-done, b.err); err != nil {
		return err
	}
	return g.honest(b.id)
}

// honest wants of every rejected event that the domain would have appended the same one in its place.
func (g *ground) honest(id uuid.UUID) error {
	events, _, err := g.past(id)
	if err != nil {
		return err
	}
	for i, e := range events {
		if e.Type != domain.Rejected {
			continue
		}
		want, err := domain.Decide(events[:i], domain.Command{Verb: e.Verb, Actor: e.Actor, Generation: e.Generation, Digest: []byte("another")}, e.At)
		if err != nil {
			return err
		}
		if err := same("rejected event", e, want.Event); err != nil {
			return err
		}
	}
	return nil
}
