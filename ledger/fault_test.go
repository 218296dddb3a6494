package ledger_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// sabotage is a trigger behind the events that raises an error, or ends its own session, so many times as
// sabotaged says: a statement fails when it has done everything but commit. A sequence counts, because it
// is not rolled back.
const sabotage = `
CREATE SEQUENCE public.sabotages;
CREATE TABLE public.sabotaged (times bigint, code text);
CREATE FUNCTION public.sabotage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('application_name') <> 'through a proxy' OR NOT EXISTS (SELECT FROM new_events) THEN
		RETURN NULL; -- no trouble for the tests themselves
	END IF;
	IF nextval('public.sabotages') <= (SELECT times FROM public.sabotaged) THEN
		IF (SELECT code FROM public.sabotaged) = '57P01' THEN
			PERFORM pg_terminate_backend(pg_backend_pid());
		ELSE
			RAISE EXCEPTION USING ERRCODE = (SELECT code FROM public.sabotaged);
		END IF;
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER sabotage AFTER INSERT ON jobledger.job_event REFERENCING NEW TABLE AS new_events
	FOR EACH STATEMENT EXECUTE FUNCTION public.sabotage();
SELECT nextval('public.sabotages'); -- so that last_value is the number of those that were`

// spoil makes the next statements of the faulty ledger fail, times in number.
func (s *scene) spoil(t testing.TB, code string, times int) {
	t.Helper()
	must(s.db.Pool.Exec(t.Context(), `DELETE FROM public.sabotaged`))(t)
	must(s.db.Pool.Exec(t.Context(), `INSERT INTO public.sabotaged SELECT last_value + $1, $2 FROM public.sabotages`, times, code))(t)
}

// forever is more often than a verb is sent.
const forever = 1000

// fault is one kind of trouble and what it means for a call.
type fault struct {
	name  string
	bring func(t *testing.T, s *scene, p *pgtest.Proxy) (relieve func())
	// What the caller gets: nil, or the error; claim, which is not sent again, may get another one.
	want, claim error
	retryable   bool
	done        bool // the verb has been carried out, once
}

func spoilt(code string, times int) func(*testing.T, *scene, *pgtest.Proxy) func() {
	return func(t *testing.T, s *scene, _ *pgtest.Proxy) func() {
		s.spoil(t, code, times)
		return func() { s.spoil(t, code, 0) }
	}
}

// sqlStateError matches errors of Postgres by their code.
type sqlStateError string

func (code sqlStateError) Error() string { return "SQLSTATE " + string(code) }

func isError(err, want error) bool {
	switch want := want.(type) {
	case anyError:
		return err != nil
	case sqlStateError:
		return sqlState(err) == string(want)
	}
	return errors.Is(err, want)
}

var faults = []fault{
	{name: "serialization_failure", bring: spoilt("40001", 2), done: true},
	{name: "deadlock", bring: spoilt("40P01", 2), done: true},
	{name: "lock_time_out", bring: spoilt("55P03", 2), done: true},
	{name: "disk_full", bring: spoilt("53100", 1), done: true},
	{name: "session_terminated", bring: spoilt("57P01", 1), done: true, claim: domain.ErrUnknownOutcome},
	{name: "statement_canceled", bring: spoilt("57014", 1), want: sqlStateError("57014"), retryable: true},
	{name: "bug", bring: spoilt("XX000", 1), want: sqlStateError("XX000")},
	{name: "sessions_are_read_only", done: true, bring: func(t *testing.T, s *scene, p *pgtest.Proxy) func() {
		// Sessions that began while the server was read-only stay so; new ones are not.
		readOnly := func(word string) {
			must(s.db.Pool.Exec(t.Context(), `ALTER DATABASE `+pgx.Identifier{s.db.Name}.Sanitize()+` SET default_transaction_read_only = `+word))(t)
		}
		readOnly("on")
		s.faulty = must(ledger.New(p.Pool(t, pgtest.MaxConns(2)), ledger.Config{Actor: "tester"}))(t)
		must(s.faulty.Read().Counts(t.Context()))(t)
		readOnly("off")
		return func() {}
	}},
	{name: "no_connection_left", done: true, bring: func(t *testing.T, s *scene, p *pgtest.Proxy) func() {
		pool := p.Pool(t)
		s.faulty = must(ledger.New(pool, ledger.Config{Actor: "tester"}))(t)
		pool.Reset()
		p.Set(pgtest.Full)
		go func() {
			<-p.Lost()
			p.Set(pgtest.Open)
		}()
		return func() {}
	}},
	{name: "pool_exhausted", want: context.DeadlineExceeded, retryable: true, bring: func(t *testing.T, s *scene, p *pgtest.Proxy) func() {
		pool := p.Pool(t, pgtest.MaxConns(1))
		s.faulty = must(ledger.New(pool, ledger.Config{Actor: "tester"}))(t)
		return must(pool.Acquire(t.Context()))(t).Release
	}},
}

// TestFaults: each verb, outside a transaction, under each kind of trouble: what the caller gets, and that the
// ledger has all of the call or nothing.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, v := range faultVerbs {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			s, p := newScene(t)
			must(s.db.Pool.Exec(t.Context(), sabotage))(t)
			for _, f := range faults {
				s.under(t, p, v, f)
			}
			verified(t, s.l, s.db)
		})
	}
}

func (s *scene) under(t *testing.T, p *pgtest.Proxy, v faultVerb, f fault) {
	t.Helper()
	c := v.prepare(t, s)
	before := s.events(t)
	usual := s.faulty
	ctx, cancel := context.WithCancel(t.Context())
	if f.want == context.DeadlineExceeded {
		ctx, cancel = context.WithTimeout(t.Context(), 1)
	}
	defer cancel()
	relieve := f.bring(t, s, p)
	err := c(ctx, s.faulty)
	relieve()
	s.faulty = usual
	want, done := f.want, f.done
	if v.name == "claim" && f.claim != nil {
		want, done = f.claim, false
	}
	if want == nil && err != nil || want != nil && !isError(err, want) {
		t.Fatalf("%s: answered %v, want %v", f.name, err, want)
	}
	if errors.Is(err, domain.ErrUnknownOutcome) != (want == domain.ErrUnknownOutcome) {
		t.Errorf("%s: nothing about it is unknown: %v", f.name, err)
	}
	if err != nil && want != domain.ErrUnknownOutcome && ledger.Retryable(err) != f.retryable {
		t.Errorf("%s: Retryable of %v is %t", f.name, err, !f.retryable)
	}
	events := 0
	if done {
		events = v.events
	}
	if got := s.events(t) - before; got != events {
		t.Fatalf("%s: %d events, want %d", f.name, got, events)
	}
	if err == nil {
		return
	}
	if err := c(t.Context(), s.l); err != nil {
		t.Fatalf("%s: made again, the call is answered with %v", f.name, err)
	}
}

// TestFaultsWithoutEnd: what does not pass within the bounds is told as it is, with the ledger unchanged.
func TestFaultsWithoutEnd(t *testing.T) {
	t.Parallel()
	names := []string{"enqueue", "complete", "cancel_running"}
	for _, v := range faultVerbs {
		if !slices.Contains(names, v.name) {
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			s, p := newScene(t)
			must(s.db.Pool.Exec(t.Context(), sabotage))(t)
			s.under(t, p, v, fault{name: "serialization_failure", bring: spoilt("40001", forever), want: sqlStateError("40001"), retryable: true})
			s.under(t, p, v, fault{name: "database_down", want: anyError{}, retryable: true, bring: func(t *testing.T, s *scene, p *pgtest.Proxy) func() {
				pool := p.Pool(t)
				s.faulty = must(ledger.New(pool, ledger.Config{}))(t)
				pool.Reset() // or a broken connection would leave open what it is
				p.Set(pgtest.Closed)
				return func() { p.Set(pgtest.Open) }
			}})
			verified(t, s.l, s.db)
		})
	}
}

// anyError matches every error.
type anyError struct{}

func (anyError) Error() string { return "any" }

// TestFaultsInFlight: a caller that leaves while its statement runs is told that nobody knows; the same call,
// made again where that is allowed, says what became of it.
func TestFaultsInFlight(t *testing.T) {
	t.Parallel()
	for _, v := range faultVerbs {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			s, p := newScene(t)
			c := v.prepare(t, s)
			before := s.events(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			muted := p.Once(v.text, pgtest.Mute)
			answer := make(chan error, 1)
			go func() { answer <- c(ctx, s.faulty) }()
			<-muted
			cancel(errors.New("the caller has left"))
			err := <-answer
			p.Set(pgtest.Closed)
			p.Set(pgtest.Open)
			if !errors.Is(err, domain.ErrUnknownOutcome) || !errors.Is(err, context.Canceled) {
				t.Fatalf("answered %v, want ErrUnknownOutcome and context.Canceled", err)
			}
			if again := !strings.HasPrefix(v.name, "enqueue") || v.name == "enqueue_with_key"; ledger.Retryable(err) != again {
				t.Errorf("Retryable is %t", !again)
			}
			if got := s.events(t) - before; got != v.events {
				t.Errorf("%d events, want %d", got, v.events)
			}
			verified(t, s.l, s.db)
		})
	}
}

// TestFaultsInTx: in a caller's transaction nothing is sent again; the error says that all of it must be run
// again, and nothing of it is stored.
func TestFaultsInTx(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"40001", "40P01", "55P03", "25006", "57P01"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			s, p := newScene(t)
			must(s.db.Pool.Exec(t.Context(), sabotage))(t)
			held := s.running(t)
			before := s.events(t)
			pool := p.Pool(t)
			in := func(work func(pgx.Tx) error) {
				t.Helper()
				s.spoil(t, code, 1)
				if err := pgx.BeginFunc(t.Context(), pool, work); !errors.Is(err, domain.ErrRunAgain) || !ledger.Retryable(err) || errors.Is(err, domain.ErrUnknownOutcome) {
					t.Errorf("answered %v, want ErrRunAgain", err)
				}
				if got := s.events(t) - before; got != 0 {
					t.Errorf("%d events, want none", got)
				}
				if err := pgx.BeginFunc(t.Context(), pool, work); err != nil {
					t.Errorf("run again: %v", err)
				}
				if got := s.events(t) - before; got != 1 {
					t.Errorf("%d events, want 1", got)
				}
				before++
			}
			in(func(tx pgx.Tx) error {
				_, err := s.faulty.EnqueueTx(t.Context(), tx, s.params())
				return err
			})
			in(func(tx pgx.Tx) error {
				_, err := s.faulty.CompleteTx(t.Context(), tx, "w", ledger.Completion{Held: held})
				return err
			})
			verified(t, s.l, s.db)
		})
	}
}
