package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// cutsEnv is how many commits TestCase16_commit_unknown cuts off from their answers.
const cutsEnv = "JOBLEDGER_CUTS"

// TestCase16_commit_unknown: whatever a connection breaks in, before the statement is there or behind its
// commit, once or several times, each verb is carried out once and its caller is told so. A claim is the
// exception: its caller is told that nobody knows, and the jobs are claimed by nobody for no longer than
// the lease.
func TestCase16_commit_unknown(t *testing.T) {
	t.Parallel()
	cuts, seed := 60, uint64(16)
	if text := os.Getenv(cutsEnv); text != "" {
		cuts = must(strconv.Atoi(text))(t)
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("%d cuts with seed %d", cuts, seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s, p := newScene(t)
	done := map[string]int{}
	for n := range cuts {
		v := faultVerbs[n%len(faultVerbs)]
		// The answer of one commit is lost, and around it there may be other trouble.
		actions := []pgtest.Action{pgtest.CutAfter}
		if random.IntN(3) == 0 {
			actions = append([]pgtest.Action{pgtest.CutBefore}, actions...)
		}
		if random.IntN(3) == 0 && v.name != "claim" {
			actions = append(actions, []pgtest.Action{pgtest.CutBefore, pgtest.CutAfter}[random.IntN(2)])
		}
		s.cut(t, p, v, actions)
		done[v.name]++
	}
	for _, v := range faultVerbs {
		s.cut(t, p, v, []pgtest.Action{pgtest.CutBefore})
	}
	verified(t, s.l, s.db)
	t.Logf("commits whose answer was cut off: %v", done)
}

// cut makes one call of a verb whose first sendings are spoilt as actions say, and fails the test unless it
// is resolved right.
func (s *scene) cut(t *testing.T, p *pgtest.Proxy, v faultVerb, actions []pgtest.Action) {
	t.Helper()
	c := v.prepare(t, s)
	before, committed, left := s.events(t), 0, actions
	if v.name == "claim" {
		actions, left = actions[:1], actions[:1] // it is sent once
	}
	for _, a := range actions {
		if a == pgtest.CutAfter {
			committed++
		}
	}
	p.Decide(matching(v.text, func() pgtest.Action {
		if len(left) == 0 {
			return pgtest.Pass
		}
		a := left[0]
		left = left[1:]
		return a
	}))
	err := c(t.Context(), s.faulty)
	p.Decide(nil)
	want := v.events
	switch {
	case v.name == "claim":
		want = committed
		if !errors.Is(err, domain.ErrUnknownOutcome) {
			t.Fatalf("%s cut as %v: answered %v, want ErrUnknownOutcome", v.name, actions, err)
		}
		s.comesBack(t, c, committed)
		want += 1 + committed // reaped, and claimed once more
	case v.name == "ping":
		want = committed // each has extended the lease
		if actions[len(actions)-1] == pgtest.CutBefore || len(left) == 0 {
			want++
		}
		fallthrough
	default:
		if err != nil {
			t.Fatalf("%s cut as %v: %v", v.name, actions, err)
		}
	}
	if got := s.events(t) - before; got != want {
		t.Fatalf("%s cut as %v: %d events, want %d", v.name, actions, got, want)
	}
}

// comesBack: a job that was claimed without anybody knowing is claimed again, once its lease is over.
func (s *scene) comesBack(t *testing.T, claim call, committed int) {
	t.Helper()
	if committed > 0 {
		if err := claim(t.Context(), s.l); err == nil {
			t.Fatal("a job that is claimed was claimed again within its lease")
		}
		s.db.Advance(t, domain.DefaultLease)
		if answers := must(s.l.Reap(t.Context(), ledger.ReapParams{Actor: "r", Tags: []string{fmt.Sprintf("t%d", s.n)}}))(t); len(answers) != 1 {
			t.Fatalf("took back %d jobs, want 1", len(answers))
		}
	}
	if err := claim(t.Context(), s.l); err != nil {
		t.Fatalf("the job does not come back: %v", err)
	}
}

// matching asks decide about statements that contain text.
func matching(text string, decide func() pgtest.Action) func(string) pgtest.Action {
	return func(statement string) pgtest.Action {
		if !strings.Contains(statement, text) {
			return pgtest.Pass
		}
		return decide()
	}
}

// TestCase16_enqueue_without_end: a database that stays away leaves an enqueue open; its error tells the
// ids, and sending it once more under them says what became of it.
func TestCase16_enqueue_without_end(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		action pgtest.Action
		keys   bool
		stored bool
	}{
		{"not_carried_out", pgtest.CutBefore, false, false},
		{"carried_out", pgtest.CutAfter, false, true},
		{"with_keys", pgtest.CutAfter, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, p := newScene(t)
			jobs := []ledger.EnqueueParams{s.params(), s.params()}
			for i := range jobs {
				if c.keys {
					jobs[i].Key = jobs[i].Tag
				}
			}
			p.Decide(matching(".enqueue_many(", func() pgtest.Action { return c.action }))
			_, err := s.faulty.EnqueueMany(t.Context(), jobs)
			p.Decide(nil)
			lost, ok := errors.AsType[*domain.UnknownOutcomeError](err)
			if !ok || len(lost.JobIDs) != 2 || lost.Verb != domain.VerbEnqueue || lost.Repeatable != c.keys || ledger.Retryable(err) != c.keys {
				t.Fatalf("answered %#v", err)
			}
			if c.keys {
				for i, j := range must(s.faulty.EnqueueMany(t.Context(), jobs))(t) {
					if j.JobID != lost.JobIDs[i] || !j.Replayed {
						t.Errorf("sent again it is answered with %+v, want a replay of %s", j, lost.JobIDs[i])
					}
				}
			} else {
				for i := range jobs {
					jobs[i].ID = lost.JobIDs[i]
				}
				if _, err := s.faulty.EnqueueMany(t.Context(), jobs); errors.Is(err, domain.ErrExists) != c.stored {
					t.Errorf("sent again it is answered with %v", err)
				}
			}
			if n := s.events(t); n != 2 {
				t.Errorf("%d events, want 2", n)
			}
			verified(t, s.l, s.db)
		})
	}
}

// TestCase16_first_sending_still_runs: the connection breaks, the server does not notice and commits only
// while the second sending is there already. It waits, and then finds what the first one has stored.
func TestCase16_first_sending_still_runs(t *testing.T) {
	t.Parallel()
	for _, v := range faultVerbs {
		if v.name == "claim" || v.name == "reap" || v.name == "ping" {
			continue // which wait for no lock
		}
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			s, p := newScene(t)
			c := v.prepare(t, s)
			before := s.events(t)
			// The gate stands behind the event: who passes it has done everything but commit.
			gate := s.db.Connect(t)
			must(gate.Exec(t.Context(), `CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$
				BEGIN IF current_setting('application_name') = 'through a proxy' THEN PERFORM pg_advisory_xact_lock_shared(16); END IF; RETURN NULL; END $$;
				CREATE TRIGGER gate AFTER INSERT ON jobledger.job_event FOR EACH STATEMENT EXECUTE FUNCTION gate();
				SELECT pg_advisory_lock(16)`))(t)
			answer := make(chan error, 1)
			go func() { answer <- c(context.Background(), s.faulty) }()
			s.db.WaitBlockedBy(t, gate.PgConn().PID(), 1)
			p.DropCancels()
			p.Set(pgtest.Closed) // the server is busy and does not look at its connection
			p.Set(pgtest.Open)
			// The second sending waits for the first one's locks, which waits at the gate.
			s.db.WaitTrue(t, "the second sending waits", `SELECT count(*) = 2 FROM pg_stat_activity
				WHERE datname = current_database() AND application_name = 'through a proxy' AND wait_event_type = 'Lock'`)
			must(gate.Exec(t.Context(), `SELECT pg_advisory_unlock(16)`))(t)
			if err := <-answer; err != nil {
				t.Errorf("answered %v", err)
			}
			if got := s.events(t) - before; got != v.events {
				t.Errorf("%d events, want %d", got, v.events)
			}
			verified(t, s.l, s.db)
		})
	}
}

// TestCase16_foreign_id: an id of the caller's own that another job has is refused, whether or not the
// answer gets through.
func TestCase16_foreign_id(t *testing.T) {
	t.Parallel()
	s, p := newScene(t)
	params := s.params()
	params.ID = uuid.New()
	must(s.l.Enqueue(t.Context(), params))(t)
	for _, action := range []pgtest.Action{pgtest.Pass, pgtest.CutBefore, pgtest.CutAfter} {
		p.Once(".enqueue_many(", action)
		if _, err := s.faulty.Enqueue(t.Context(), params); !errors.Is(err, domain.ErrExists) {
			t.Errorf("action %d: answered %v, want ErrExists", action, err)
		}
	}
	if n := s.events(t); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
}

// TestCase16_key_free_again: a key that was free again as soon as its job had ended does not let the second
// sending of the same call create the job once more.
func TestCase16_key_free_again(t *testing.T) {
	t.Parallel()
	s, p := newScene(t)
	params := s.params()
	params.Key, params.KeyTTL = "k", ledger.KeyUntilEnded
	cut := p.Once(".enqueue_many(", pgtest.CutAfter)
	p.Decide(matching(".enqueue_many(", func() pgtest.Action {
		<-cut // the job is there; it ends before the second sending is
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		c, err := s.l.Claim(ctx, ledger.ClaimParams{Worker: "w", Tags: []string{params.Tag}})
		if err == nil && len(c.Jobs) == 1 {
			_, err = s.l.Complete(ctx, "w", ledger.Completion{Held: c.Jobs[0].Held})
		}
		if err != nil {
			t.Error(err)
		}
		return pgtest.Pass
	}))
	j, err := s.faulty.Enqueue(t.Context(), params)
	p.Decide(nil)
	if err != nil || j.Replayed {
		t.Errorf("answered %+v and %v", j, err)
	}
	if n := s.events(t); n != 3 {
		t.Errorf("%d events, want enqueued, claimed and completed", n)
	}
	// For another call the key is free, and the id is not, even where no index of the events says so.
	must(s.db.Pool.Exec(t.Context(), `SELECT setval('jobledger.job_event_seq', 16777216 + 1000)`))(t)
	params.ID = j.JobID
	if _, err := s.l.Enqueue(t.Context(), params); !errors.Is(err, domain.ErrExists) {
		t.Errorf("the same id again: %v, want ErrExists", err)
	}
	verified(t, s.l, s.db)
}

// TestCase16_moved_while_waited: an enqueue waits for another one of the same id, whose job has left the
// queue again by the time of the commit, into which no index of the queue reaches. The events are in
// different partitions, so none of theirs does either.
func TestCase16_moved_while_waited(t *testing.T) {
	t.Parallel()
	s, _ := newScene(t)
	id, conn := uuid.New(), s.db.Connect(t)
	tx := must(conn.Begin(t.Context()))(t)
	must(tx.Exec(t.Context(), `SELECT FROM jobledger.enqueue_many(ARRAY['k'], jobs => ARRAY[$1::uuid])`, id))(t)
	must(tx.Exec(t.Context(), `SELECT FROM jobledger.claim('w', ARRAY['default'])`))(t)
	must(s.db.Pool.Exec(t.Context(), `SELECT setval('jobledger.job_event_seq', 16777216 + 1000)`))(t)
	answer := make(chan error, 1)
	go func() {
		_, err := s.l.Enqueue(context.Background(), ledger.EnqueueParams{Kind: "k", ID: id})
		answer <- err
	}()
	s.db.WaitBlockedBy(t, conn.PgConn().PID(), 1)
	must(0, tx.Commit(t.Context()))(t)
	if err := <-answer; !errors.Is(err, domain.ErrExists) {
		t.Errorf("answered %v, want ErrExists", err)
	}
	verified(t, s.l, s.db)
}
