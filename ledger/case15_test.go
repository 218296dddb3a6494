package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// keySurface enqueues with a key and tells the job, or the errors of package domain.
type keySurface func(p ledger.EnqueueParams) (uuid.UUID, error)

// keySurfaces are the ways to a key: the Go API and the SQL function, on the ledger of a schema.
func keySurfaces(l *ledger.Ledger, db *pgtest.DB) map[string]keySurface {
	return map[string]keySurface{
		"go": func(p ledger.EnqueueParams) (uuid.UUID, error) {
			e, err := l.Enqueue(context.Background(), p)
			return e.JobID, err
		},
		"sql": func(p ledger.EnqueueParams) (id uuid.UUID, err error) {
			var ttl *time.Duration
			if p.KeyTTL != 0 {
				ttl = new(max(p.KeyTTL, 0))
			}
			err = db.Pool.QueryRow(context.Background(), `SELECT `+l.Schema()+`.enqueue($1, $2, key => $3, key_ttl => $4)`, p.Kind, p.Args, p.Key, ttl).Scan(&id)
			switch sqlState(err) {
			case "JL409":
				return id, domain.ErrKeyConflict
			case "JL423":
				return id, domain.ErrKeyBusy
			}
			return id, err
		},
	}
}

// TestCase15_SameKeyOtherPayload: a key stands for one kind and one payload, however it is spelled, for as long as
// it lives, whatever has become of its job; over Go and SQL, each meeting keys of the other.
func TestCase15_SameKeyOtherPayload(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	db.SetClock(t, zeroHour)
	must(0, postgres.MigrateUp(t.Context(), db.URL, "tenant"))(t)
	tenant := keySurfaces(must(ledger.New(db.Pool, ledger.Config{Schema: "tenant"}))(t), db)["go"]
	const p1 = `{"amount":1,"to":"a","at":1.50}`
	for first, create := range keySurfaces(l, db) {
		for again, send := range keySurfaces(l, db) {
			for became, end := range map[string]func(id uuid.UUID){
				"waiting": func(uuid.UUID) {},
				"running": func(uuid.UUID) { claimOne(t, l, "w", domain.DefaultTag, time.Hour) },
				"completed": func(uuid.UUID) {
					must(l.Complete(t.Context(), "w", ledger.Completion{Held: claimOne(t, l, "w", domain.DefaultTag, time.Hour)}))(t)
				},
				"canceled": func(id uuid.UUID) { must(l.Cancel(t.Context(), id, ledger.ByOperator{}))(t) },
			} {
				t.Run(strings.Join([]string{first, again, became}, "_"), func(t *testing.T) {
					key := strings.Join([]string{first, again, became}, "/")
					id := must(create(keyed(key, p1)))(t)
					end(id)
					for _, spelling := range []string{p1, "{ \"to\":\"\\u0061\",\n\"at\" : 1.50, \"amount\":1 }", `{"amount":2,"amount":1,"at":1.50,"to":"a"}`} {
						if got, err := send(keyed(key, spelling)); err != nil || got != id {
							t.Errorf("%s: got %s, %v; want the first job %s", spelling, got, err, id)
						}
					}
					before := jobsStored(t, db)
					for _, p := range []ledger.EnqueueParams{keyed(key, `{"amount":1.0,"to":"a","at":1.50}`), keyed(key, `{"amount":1,"to":"a","at":1.5}`),
						keyed(key, `{}`), keyed(key, nil), keyed(key, `[`+p1+`]`), {Kind: "refund", Key: key, Args: p1}} {
						if got, err := send(p); !errors.Is(err, domain.ErrKeyConflict) {
							t.Errorf("%s %v: got %s, %v; want ErrKeyConflict", p.Kind, p.Args, got, err)
						}
					}
					if n := jobsStored(t, db); n != before {
						t.Errorf("%d rows are stored, want %d as before", n, before)
					}
					if got, err := tenant(keyed(key, `"another payload"`)); err != nil || got == id {
						t.Errorf("another tenant got %s, %v; want a job of its own", got, err)
					}
				})
			}
		}
	}
	verified(t, l, db)
}

// TestCase15_KeyUntilEnded: a key that ends with its job is free at once, for another payload too.
func TestCase15_KeyUntilEnded(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	db.SetClock(t, zeroHour)
	for name, enqueue := range keySurfaces(l, db) {
		for became, end := range map[string]func(id uuid.UUID){
			"completed": func(uuid.UUID) {
				must(l.Complete(t.Context(), "w", ledger.Completion{Held: claimOne(t, l, "w", domain.DefaultTag, time.Hour)}))(t)
			},
			"canceled": func(id uuid.UUID) { must(l.Cancel(t.Context(), id, ledger.ByOperator{}))(t) },
		} {
			p := keyed(name+"/"+became, `1`)
			p.KeyTTL = ledger.KeyUntilEnded
			first := must(enqueue(p))(t)
			if again := must(enqueue(p))(t); again != first {
				t.Errorf("%s: while its job waits the key gave %s, want %s", p.Key, again, first)
			}
			end(first)
			p.Args = `2`
			second := must(enqueue(p))(t)
			if second == first {
				t.Errorf("%s: the key outlived its job", p.Key)
			}
			if again := must(enqueue(p))(t); again != second {
				t.Errorf("%s: in its second life the key gave %s, want %s", p.Key, again, second)
			}
			must(l.Cancel(t.Context(), second, ledger.ByOperator{}))(t)
		}
	}
	verified(t, l, db)
}

// TestCase15_OddKeys: 300 characters are refused; in SQL an empty key is, too, where Go means none by it.
func TestCase15_OddKeys(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	for name, enqueue := range keySurfaces(l, db) {
		for _, key := range []string{strings.Repeat("k", 300), strings.Repeat("é", 128)} {
			_, err := enqueue(keyed(key, `1`))
			if f, ok := errors.AsType[*domain.FieldError](err); (!ok || f.Field != "key") && refusedFor(t, err) != "key" {
				t.Errorf("%s: %d bytes: %v, want the key refused", name, len(key), err)
			}
		}
	}
	if _, err := keySurfaces(l, db)["sql"](keyed("", `1`)); refusedFor(t, err) != "key" {
		t.Errorf("an empty key in SQL: %v", err)
	}
	if n := jobsStored(t, db); n != 0 {
		t.Errorf("%d rows are stored, want none", n)
	}
}

// TestManyKeysInOtherWords: a body of many small objects is compared as a whole; and it is not compared with
// each element of a large batch once the first has been refused: the key is locked meanwhile.
func TestManyKeysInOtherWords(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	var objects strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&objects, `,{"id": %d, "n" : {"v":[%d]}}`, i, i)
	}
	args := `{"rows":[0` + objects.String() + `]}`
	first := must(l.Enqueue(t.Context(), keyed("k", args)))(t)
	if again := must(l.Enqueue(t.Context(), keyed("k", strings.ReplaceAll(args, " ", ""))))(t); again.JobID != first.JobID {
		t.Errorf("without white space: got %+v, want a replay of %s", again, first.JobID)
	}
	if _, err := l.Enqueue(t.Context(), keyed("k", strings.Replace(args, "19999", "19999.0", 1))); !errors.Is(err, domain.ErrKeyConflict) {
		t.Errorf("with one digit more: %v, want ErrKeyConflict", err)
	}
	must(db.Pool.Exec(t.Context(), `CREATE SEQUENCE jobledger.compared;
		CREATE OR REPLACE FUNCTION jobledger.same_json(a text, b text) RETURNS boolean LANGUAGE sql AS $$ SELECT nextval('jobledger.compared') < 0 $$`))(t)
	batch := make([]ledger.EnqueueParams, 1000)
	for i := range batch {
		batch[i] = keyed("k", fmt.Sprint(i))
	}
	_, err := l.EnqueueMany(t.Context(), batch)
	if refused, ok := errors.AsType[*domain.RefusedError](err); !ok || !errors.Is(err, domain.ErrKeyConflict) || refused.Index != 0 {
		t.Errorf("many elements with another payload: %v, want ErrKeyConflict of the first", err)
	}
	var compared int
	must(0, db.Pool.QueryRow(t.Context(), `SELECT last_value FROM jobledger.compared`).Scan(&compared))(t)
	if compared != 1 {
		t.Errorf("%d comparisons, want one", compared)
	}
}
