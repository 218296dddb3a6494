package ledger_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// scene is a ledger that is reached in two ways: as it is, and as the faulty one.
type scene struct {
	l      *ledger.Ledger // sees no faults
	db     *pgtest.DB
	faulty *ledger.Ledger
	n      int // of jobs made so far
}

func newScene(t testing.TB) (*scene, *pgtest.Proxy) {
	t.Helper()
	l, db := newLedger(t)
	db.SetClock(t, time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC))
	p := pgtest.NewProxy(t, db.URL)
	return &scene{l: l, db: db, faulty: must(ledger.New(p.Pool(t), ledger.Config{Actor: "tester"}))(t)}, p
}

// events counts all events.
func (s *scene) events(t testing.TB) (n int) {
	t.Helper()
	must(0, s.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM jobledger.job_event`).Scan(&n))(t)
	return n
}

// params are those of a job with a tag of its own.
func (s *scene) params() ledger.EnqueueParams {
	s.n++
	return ledger.EnqueueParams{Kind: "fault", Tag: fmt.Sprintf("t%d", s.n), Args: fmt.Sprintf(`{"n":%d}`, s.n)}
}

func (s *scene) waiting(t testing.TB) (uuid.UUID, string) {
	t.Helper()
	p := s.params()
	return must(s.l.Enqueue(t.Context(), p))(t).JobID, p.Tag
}

func (s *scene) running(t testing.TB) ledger.Held {
	t.Helper()
	_, tag := s.waiting(t)
	return must(s.l.Claim(t.Context(), ledger.ClaimParams{Worker: "w", Tags: []string{tag}}))(t).Jobs[0].Held
}

// call is a verb made ready to be called once, on the faulty ledger or another.
type call func(ctx context.Context, l *ledger.Ledger) error

// faultVerb is one verb as the tests of faults call it.
type faultVerb struct {
	name    string
	text    string // is in its statement
	events  int    // that it appends
	prepare func(t testing.TB, s *scene) call
}

// was turns an answer into an error unless it tells of the event.
func was(want domain.EventType, a ledger.Answer, err error) error {
	if err == nil && a.Event != want {
		err = fmt.Errorf("answered %+v, want %s", a, want)
	}
	return err
}

func wasOnly(want domain.EventType, answers []ledger.Answer, err error) error {
	if err != nil {
		return err
	}
	if len(answers) != 1 {
		return fmt.Errorf("%d answers, want 1", len(answers))
	}
	return was(want, answers[0], answers[0].Err)
}

// createdOnly turns the answers to an enqueue into an error unless each tells of a new job.
func createdOnly(n int, jobs []ledger.Enqueued, err error) error {
	if err != nil {
		return err
	}
	seen := map[uuid.UUID]bool{}
	for _, j := range jobs {
		if j.Replayed {
			return fmt.Errorf("job %s counts as a replay", j.JobID)
		}
		seen[j.JobID] = true
	}
	if len(seen) != n {
		return fmt.Errorf("%d jobs, want %d", len(seen), n)
	}
	return nil
}

// batchSize is that of the largest batch.
const batchSize = 500

var faultVerbs = []faultVerb{
	{"enqueue", ".enqueue_many(", 1, func(_ testing.TB, s *scene) call {
		p := s.params()
		return func(ctx context.Context, l *ledger.Ledger) error {
			j, err := l.Enqueue(ctx, p)
			return createdOnly(1, []ledger.Enqueued{j}, err)
		}
	}},
	{"enqueue_with_key", ".enqueue_many(", 1, func(_ testing.TB, s *scene) call {
		p := s.params()
		p.Key = p.Tag
		return func(ctx context.Context, l *ledger.Ledger) error {
			j, err := l.Enqueue(ctx, p)
			return createdOnly(1, []ledger.Enqueued{j}, err)
		}
	}},
	{"enqueue_with_id", ".enqueue_many(", 1, func(_ testing.TB, s *scene) call {
		p := s.params()
		p.ID, p.Args = uuid.New(), nil
		return func(ctx context.Context, l *ledger.Ledger) error {
			j, err := l.Enqueue(ctx, p)
			return createdOnly(1, []ledger.Enqueued{j}, err)
		}
	}},
	{"enqueue_batch", ".enqueue_many(", batchSize, func(_ testing.TB, s *scene) call {
		jobs := make([]ledger.EnqueueParams, batchSize)
		for i := range jobs {
			jobs[i] = s.params()
			if i%3 == 0 {
				jobs[i].Key = jobs[i].Tag
			}
		}
		return func(ctx context.Context, l *ledger.Ledger) error {
			made, err := l.EnqueueMany(ctx, jobs)
			return createdOnly(batchSize, made, err)
		}
	}},
	{"claim", ".claim(", 1, func(t testing.TB, s *scene) call {
		_, tag := s.waiting(t)
		return func(ctx context.Context, l *ledger.Ledger) error {
			c, err := l.Claim(ctx, ledger.ClaimParams{Worker: "w", Tags: []string{tag}})
			if err == nil && len(c.Jobs) != 1 {
				err = fmt.Errorf("claimed %d jobs, want 1", len(c.Jobs))
			}
			return err
		}
	}},
	{"ping", ".ping(", 1, func(t testing.TB, s *scene) call {
		held := s.running(t)
		return func(ctx context.Context, l *ledger.Ledger) error {
			a, err := l.Ping(ctx, ledger.PingParams{Worker: "w", Pings: []ledger.Ping{{Held: held, Progress: 1}}})
			return wasOnly(domain.Pinged, a, err)
		}
	}},
	{"complete", ".complete(", 1, func(t testing.TB, s *scene) call {
		held := s.running(t)
		return func(ctx context.Context, l *ledger.Ledger) error {
			a, err := l.Complete(ctx, "w", ledger.Completion{Held: held, Result: "done"})
			return was(domain.Completed, a, err)
		}
	}},
	{"complete_batch", ".complete(", batchSize, func(t testing.TB, s *scene) call {
		jobs := make([]ledger.EnqueueParams, batchSize)
		tag := s.params().Tag
		for i := range jobs {
			jobs[i] = ledger.EnqueueParams{Kind: "fault", Tag: tag}
		}
		must(s.l.EnqueueMany(t.Context(), jobs))(t)
		var cs []ledger.Completion
		for _, j := range must(s.l.Claim(t.Context(), ledger.ClaimParams{Worker: "w", Tags: []string{tag}, Max: batchSize}))(t).Jobs {
			cs = append(cs, ledger.Completion{Held: j.Held, Result: j.JobID})
		}
		return func(ctx context.Context, l *ledger.Ledger) error {
			answers, err := l.CompleteMany(ctx, "w", cs)
			for _, a := range answers {
				if err == nil {
					err = was(domain.Completed, a, a.Err)
				}
			}
			return err
		}
	}},
	{"fail", ".fail(", 1, func(t testing.TB, s *scene) call {
		held := s.running(t)
		return func(ctx context.Context, l *ledger.Ledger) error {
			a, err := l.Fail(ctx, "w", ledger.Failure{Held: held, Error: "no"})
			return was(domain.Retried, a, err)
		}
	}},
	{"release", ".release(", 1, func(t testing.TB, s *scene) call {
		held := s.running(t)
		return func(ctx context.Context, l *ledger.Ledger) error {
			a, err := l.Release(ctx, "w", held)
			return wasOnly(domain.Released, a, err)
		}
	}},
	{"snooze", ".snooze(", 1, func(t testing.TB, s *scene) call {
		held := s.running(t)
		return func(ctx context.Context, l *ledger.Ledger) error {
			a, err := l.Snooze(ctx, "w", ledger.Snooze{Held: held, Delay: time.Hour})
			return wasOnly(domain.Snoozed, a, err)
		}
	}},
	{"cancel_waiting", ".cancel(", 1, func(t testing.TB, s *scene) call {
		id, _ := s.waiting(t)
		return func(ctx context.Context, l *ledger.Ledger) error {
			a, err := l.Cancel(ctx, id, ledger.ByOperator{})
			return was(domain.CanceledEvent, a, err)
		}
	}},
	{"cancel_running", ".cancel(", 1, func(t testing.TB, s *scene) call {
		held := s.running(t)
		return func(ctx context.Context, l *ledger.Ledger) error {
			a, err := l.Cancel(ctx, held.JobID, ledger.ByOperator{})
			return was(domain.CancelRequested, a, err)
		}
	}},
	{"reap", ".reap(", 1, func(t testing.TB, s *scene) call {
		_, tag := s.waiting(t)
		must(s.l.Claim(t.Context(), ledger.ClaimParams{Worker: "w", Tags: []string{tag}, Lease: time.Second}))(t)
		s.db.Advance(t, time.Second)
		return func(ctx context.Context, l *ledger.Ledger) error {
			// Its answers are news; those of a sending whose answer is lost are nobody's.
			_, err := l.Reap(ctx, ledger.ReapParams{Actor: "r", Tags: []string{tag}})
			return err
		}
	}},
	{"redrive", ".redrive(", 1, func(t testing.TB, s *scene) call {
		id, _ := s.waiting(t)
		must(s.l.Cancel(t.Context(), id, ledger.ByOperator{}))(t)
		return func(ctx context.Context, l *ledger.Ledger) error {
			a, err := l.Redrive(ctx, id, ledger.ByOperator{})
			return was(domain.Redriven, a, err)
		}
	}},
}
