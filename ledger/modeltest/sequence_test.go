package modeltest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

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
	minCommands  = 40
	moreCommands = 20
	maxSteps     = 400
)

// runSequence empties the ledger and runs a sequence of minCommands to moreCommands more. The error shows the
// commands up to the one where ledger and model parted.
func runSequence(g *ground, ch chooser, seen *coverage) error {
	if err := g.reset(); err != nil {
		return err
	}
	s := &sequence{ground: g, m: newModel(start), seen: seen, policy: map[domain.Policy]int{}}
	s.gen = &generator{ch: ch, m: s.m}
	commands := 0
	want := minCommands + ch.pick("commands", moreCommands+1)
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
	want, err := s.m.batch(c)
	if err != nil {
		return err
	}
	if len(got) != len(want) {
		return fmt.Errorf("got %d answers for %d jobs", len(got), len(want))
	}
	for n, i := range c.items {
		s.touched = append(s.touched, i.job)
		s.seen.note(states[n])
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
		s.seen.note(cell{c.verb, "gone", "-"})
		if got[n] != e {
			return fmt.Errorf("job %d: answered %+v, want %+v", n, got[n], e)
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
