package modeltest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// enqueuer is who enqueues, cancels and redrives where a call names nobody.
const enqueuer = "enqueuer"

// start is when every sequence begins.
var start = time.Date(2026, 3, 29, 0, 59, 50, 0, time.UTC)

// ground is a database with a hooked clock on which sequences run, one after the other.
type ground struct {
	t   testing.TB
	ctx context.Context
	db  *pgtest.DB
	l   *ledger.Ledger
	now time.Time
}

func newGround(t testing.TB) *ground {
	t.Helper()
	return groundOn(t, pgtest.New(t))
}

// groundOn takes a database that has its functions already; setting the clock comes after them.
func groundOn(t testing.TB, db *pgtest.DB) *ground {
	t.Helper()
	l, err := ledger.New(db.Pool, ledger.Config{Actor: enqueuer})
	if err != nil {
		t.Fatal(err)
	}
	db.SetClock(t, start)
	return &ground{t: t, ctx: context.Background(), db: db, l: l, now: start}
}

// setClock moves the clock to an instant, back if need be.
func (g *ground) setClock(at time.Time) {
	g.now = g.db.Advance(g.t, at.Sub(g.now))
}

// reset empties the ledger: as a superuser, which no caller of it is.
func (g *ground) reset() error {
	_, err := g.db.Pool.Exec(g.ctx, `
DELETE FROM jobledger.job_queue; DELETE FROM jobledger.job_runtime; DELETE FROM jobledger.job_completed;
DELETE FROM jobledger.idempotency_key; DELETE FROM jobledger.tag_state;
TRUNCATE jobledger.job_event, jobledger.job_payload`)
	g.setClock(start)
	return err
}

// sequence is one run of commands against an empty ledger and its model.
type sequence struct {
	*ground
	m       *model
	gen     *generator
	seen    *coverage
	log     []string
	policy  map[domain.Policy]int
	touched []uuid.UUID // by the last call
}

// The bounds of a sequence: commands are calls of verbs; moving the clock is none.
const (
	minCommands = 30
	maxSteps    = 200
)

// runSequence empties the ledger and runs a sequence of minCommands or a few more. The error shows the
// commands up to the one where ledger and model parted.
func runSequence(g *ground, ch chooser, seen *coverage) error {
	if err := g.reset(); err != nil {
		return err
	}
	s := &sequence{ground: g, m: newModel(start), seen: seen, policy: map[domain.Policy]int{}}
	s.gen = &generator{ch: ch, m: s.m}
	commands := 0
	want := minCommands + ch.pick("commands", 11)
	for step := 0; step < maxSteps && commands < want; step++ {
		called, err := s.step(ch)
		if err != nil {
			return fmt.Errorf("%w\n\ncommands:\n%s", err, strings.Join(s.log, "\n"))
		}
		if called {
			commands++
		}
	}
	seen.sequence(commands)
	return s.whole()
}

// step does one thing: nothing, moves the clock, pauses a tag, or makes a call.
func (s *sequence) step(ch chooser) (called bool, err error) {
	what := ch.pick("step", 20)
	switch {
	case what == 0: // so that shrinking can leave a command out
		return false, nil
	case what <= 4:
		s.m.now = s.gen.advance()
		s.setClock(s.m.now)
		s.logf("at %s", s.m.now.Format("15:04:05.000000"))
		return false, nil
	case what == 5:
		return false, s.pause(oneOf(ch, "tag", tags))
	}
	c := s.gen.next()
	s.logf("%s", c)
	s.touched = nil
	if err := s.call(c); err != nil {
		return true, fmt.Errorf("command %d, %s: %w%s", len(s.log), c.verb, err, s.histories())
	}
	if err := s.compare(); err != nil {
		return true, fmt.Errorf("after command %d, %s: %w%s", len(s.log), c.verb, err, s.histories())
	}
	return true, nil
}

func (s *sequence) logf(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf("%3d  ", len(s.log)+1)+fmt.Sprintf(format, args...))
}

// histories shows the jobs that the last call was about.
func (s *sequence) histories() string {
	text := ""
	for _, id := range s.touched {
		if h, ok := s.m.jobs[id]; ok && !strings.Contains(text, id.String()) {
			text += "\n" + h.String()
		}
	}
	return text
}

// pause stops a tag from being claimed. Only one is paused at a time, and a second call lets it go on.
func (s *sequence) pause(tag string) error {
	for t := range s.m.paused {
		tag = t
	}
	if s.m.paused[tag] {
		delete(s.m.paused, tag)
	} else {
		s.m.paused[tag] = true
	}
	s.logf("tag %s paused: %t", tag, s.m.paused[tag])
	_, err := s.db.Pool.Exec(s.ctx, `
INSERT INTO jobledger.tag_state (tag, paused_at) VALUES ($1, CASE WHEN $2 THEN jobledger.clock() END)
ON CONFLICT (tag) DO UPDATE SET paused_at = excluded.paused_at, version = tag_state.version + 1`, tag, s.m.paused[tag])
	return err
}

// call makes a call on the ledger and on the model and compares the answers.
func (s *sequence) call(c call) error {
	switch c.verb {
	case domain.VerbEnqueue:
		return s.enqueue(c)
	case domain.VerbClaim:
		return s.claim(c)
	case domain.VerbReap:
		return s.reap(c)
	}
	states := each(c.items, func(i item) cell {
		h := s.m.of(i.job)
		where := cell{c.verb, stateOf(h, s.m.now), "-"}
		if c.fenced() {
			where.relation = relationOf(h, c.command(i))
		}
		return where
	})
	got, err := c.make(s.ctx, s.l)
	if err != nil {
		return err
	}
	answers, want, err := s.m.batch(c)
	if err != nil {
		return err
	}
	if len(got) != len(want) {
		return fmt.Errorf("got %d answers for %d jobs", len(got), len(want))
	}
	for n, i := range c.items {
		s.touched = append(s.touched, i.job)
		s.seen.note(states[n], word(answers[n]))
		if err := sameAnswer(c.command(i), i.job, got[n], want[n]); err != nil {
			return fmt.Errorf("job %d: %w", n, err)
		}
	}
	return nil
}

// sameAnswer compares the answer about one job.
func sameAnswer(c domain.Command, id uuid.UUID, got ledger.Answer, want reply) error {
	if got.JobID != id {
		return fmt.Errorf("answer is about job %s, want %s", got.JobID, id)
	}
	r, err := told(c, got)
	if err != nil {
		return err
	}
	if r == want {
		return nil
	}
	return same("answer about job "+id.String(), r, want)
}

func (s *sequence) enqueue(c call) error {
	want, wantErr := s.m.enqueue(c)
	got, err := s.l.EnqueueMany(s.ctx, c.enqueue)
	if !errors.Is(err, wantErr) || (err != nil) != (wantErr != nil) {
		return fmt.Errorf("answered %v, want %v", err, wantErr)
	}
	for n, e := range want {
		s.touched = append(s.touched, e.JobID)
		s.seen.note(cell{c.verb, "gone", "-"}, fmt.Sprintf("replayed %t", e.Replayed))
		if got[n] != e {
			return fmt.Errorf("job %d: answered %+v, want %+v", n, got[n], e)
		}
	}
	if wantErr != nil {
		s.seen.note(cell{c.verb, "gone", "-"}, "key conflict")
	}
	return nil
}

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
		if _, _, err := s.m.do(j.ID, c.command(item{}), nil, uuid.Nil); err != nil {
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
		s.seen.note(cell{c.verb, stateOf(s.m.of(j.ID), s.m.now), "-"}, string(domain.Claimed))
	}
	for _, id := range s.m.ids {
		h := s.m.of(id)
		if a, err := domain.Decide(h.events, c.command(item{}), s.m.now); err == nil && a.Refusal != "" {
			s.seen.note(cell{c.verb, stateOf(h, s.m.now), "-"}, string(a.Refusal))
		}
	}
}

// policyID is the id under which the database keeps a policy: always the same one.
func (s *sequence) policyID(p domain.Policy) int {
	if id, ok := s.policy[p]; ok {
		return id
	}
	var id int
	err := s.db.Pool.QueryRow(s.ctx, `SELECT jobledger.ensure_policy($1, $2, $3, $4, $5, $6, $7, $8, NULLIF($9, interval '0'))`,
		p.MaxAttempts, p.Timeout, p.RestartLimit, string(p.OnLostLease), p.BackoffBase, p.BackoffFactor, p.BackoffCap, p.BackoffJitter, p.StallAfter).Scan(&id)
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
			s.seen.note(cell{c.verb, stateOf(s.m.of(id), s.m.now), "-"}, string(a.Refusal))
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
		answer, want, err := s.m.do(a.JobID, c.command(item{}), nil, uuid.Nil)
		if err != nil {
			return err
		}
		s.seen.note(cell{c.verb, state, "-"}, word(answer))
		if err := sameAnswer(c.command(item{}), a.JobID, a, want); err != nil {
			return err
		}
	}
	return nil
}

// compare compares all home rows, and all events and bodies of the jobs that the last call was about;
// that no other job has a new event, their number shows.
func (s *sequence) compare() error {
	if err := sameHomes(s.ctx, s.l, s.m.homes()); err != nil {
		return err
	}
	for _, id := range s.touched {
		h := s.m.of(id)
		if err := sameEvents(s.ctx, s.db, s.l, id, h.events, h.bodies); err != nil {
			return err
		}
	}
	var events int
	if err := s.db.Pool.QueryRow(s.ctx, `SELECT count(*) FROM jobledger.job_event`).Scan(&events); err != nil {
		return err
	}
	if events != s.m.events() {
		return fmt.Errorf("the ledger holds %d events, want %d", events, s.m.events())
	}
	return nil
}

// whole lets the ledger's own verification look at the end of the sequence, too.
func (s *sequence) whole() error {
	v, err := s.l.Read().Verify(s.ctx, s.db.Pool, nil)
	if err != nil {
		return err
	}
	if len(v.Findings) > 0 || v.Events != int64(s.m.events()) || v.Jobs != int64(len(s.m.ids)) {
		return fmt.Errorf("verify: %+v, want %d events of %d jobs and no findings", v, s.m.events(), len(s.m.ids))
	}
	return nil
}
