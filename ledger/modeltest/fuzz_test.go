package modeltest

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// FuzzJSON holds CheckJSON against Postgres' own parser: both doors say the same of a text, and what they accept comes back
// as it was, to the byte and in the meaning of every string.
func FuzzJSON(f *testing.F) {
	db := pgtest.New(f)
	for _, text := range nastyTexts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		inGo := domain.CheckJSON("args", []byte(text))
		var id uuid.UUID
		var back string
		inSQL := undone(t, db, func(tx pgx.Tx) error {
			if err := tx.QueryRow(t.Context(), `SELECT jobledger.enqueue('k', $1)`, text).Scan(&id); err != nil {
				return err
			}
			return tx.QueryRow(t.Context(), `SELECT body FROM jobledger.job_payload WHERE job_id = $1`, id).Scan(&back)
		})
		if (inGo == nil) != (inSQL == nil) && len(text) <= domain.MaxArgsBytes {
			t.Fatalf("Go says %v, SQL says %v", inGo, inSQL)
		}
		if inSQL != nil {
			if !refusedField(inSQL) && !notText(inSQL) {
				t.Errorf("SQL refuses with %v, want SQLSTATE JL400", inSQL)
			}
			return
		}
		if back != text {
			t.Errorf("it came back as %q", back)
		}
		if strings.Contains(text, "null") {
			return // strip_nulls, which reads every string, would leave some out
		}
		var inPostgres string
		readBack := undone(t, db, func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), `SELECT json_strip_nulls($1::json)::text`, text).Scan(&inPostgres)
		})
		if readBack != nil || spelled(t, inPostgres) != spelled(t, text) {
			t.Errorf("Postgres reads %q (%v)", inPostgres, readBack)
		}
	})
}

// FuzzSameJSON: under one key, args that say the same in another spelling are a replay, and others are a conflict. What
// the same is, the test decides by a reading of its own.
func FuzzSameJSON(f *testing.F) {
	db := pgtest.New(f)
	l, err := ledger.New(db.Pool, ledger.Config{})
	if err != nil {
		f.Fatal(err)
	}
	for i, text := range nastyTexts {
		f.Add(text, nastyTexts[(i+1)%len(nastyTexts)], uint64(i))
	}
	f.Add(`{"a":1,"b":[1.0,{"c":"é"}]}`, `{"b":[1.0,{"c":"\u00e9"}],"a":1}`, uint64(1))
	f.Add(`[1]`, `[1.0]`, uint64(1))
	f.Add(`["1"]`, `[1]`, uint64(1))
	f.Add(`{"a":{"b":1e2,"c":-0}}`, `{"a":{"c":-0.0,"b":100}}`, uint64(1))
	f.Fuzz(func(t *testing.T, a, b string, seed uint64) {
		if domain.CheckJSON("args", []byte(a)) != nil {
			return
		}
		same := func(other string) bool {
			var second error
			err := undone(t, db, func(tx pgx.Tx) error {
				p := ledger.EnqueueParams{Kind: "k", Key: "key", Args: json.RawMessage(a)}
				if _, err := l.EnqueueTx(t.Context(), tx, p); err != nil {
					return err
				}
				p.Args = json.RawMessage(other)
				_, second = l.EnqueueTx(t.Context(), tx, p)
				return nil
			})
			if err != nil || second != nil && !errors.Is(second, domain.ErrKeyConflict) {
				t.Fatalf("%v, %v", err, second)
			}
			return second == nil
		}
		if other := respelled(t, a, rand.New(rand.NewPCG(seed, 0))); !same(other) {
			t.Errorf("%q is a conflict with the same in another spelling, %q", a, other)
		}
		if domain.CheckJSON("args", []byte(b)) == nil {
			if want := spelled(t, a) == spelled(t, b); same(b) != want {
				t.Errorf("%q and %q are the same: %t, want %t", a, b, !want, want)
			}
		}
	})
}

// undone runs f in a transaction that is rolled back.
func undone(t *testing.T, db *pgtest.DB, f func(pgx.Tx) error) error {
	t.Helper()
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}()
	return f(tx)
}

// tree is a JSON value with its numbers as they are spelled.
func tree(t *testing.T, text string) (v any) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return v
}

// spelled is one spelling for all texts that say the same: encoding/json sorts the keys, and takes the last of those that are
// there twice.
func spelled(t *testing.T, text string) string {
	t.Helper()
	b, err := json.Marshal(tree(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// respelled says the same with other white space, keys in another order and other escapes.
func respelled(t *testing.T, text string, random *rand.Rand) string {
	var b strings.Builder
	space := func() { b.WriteString([]string{"", "", " ", "\n\t", "\r\n"}[random.IntN(5)]) }
	word := func(s string) {
		b.WriteByte('"')
		for _, r := range s {
			switch quoted, err := json.Marshal(string(r)); {
			case err != nil:
				t.Fatal(err)
			case r < utf8.RuneSelf && random.IntN(3) == 0:
				b.WriteString(`\u00` + string("0123456789abcdef"[r>>4]) + string("0123456789ABCDEF"[r&15]))
			case r == '/' && random.IntN(2) == 0:
				b.WriteString(`\/`)
			case r >= 0x20 && r != '"' && r != '\\' && random.IntN(2) == 0:
				b.WriteRune(r)
			default:
				b.Write(quoted[1 : len(quoted)-1])
			}
		}
		b.WriteByte('"')
	}
	var write func(v any)
	write = func(v any) {
		space()
		switch v := v.(type) {
		case map[string]any:
			b.WriteByte('{')
			keys := make([]string, 0, len(v))
			for key := range v {
				keys = append(keys, key)
			}
			random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
			for i, key := range keys {
				if i > 0 {
					b.WriteByte(',')
				}
				space()
				word(key)
				space()
				b.WriteByte(':')
				write(v[key])
			}
			space()
			b.WriteByte('}')
		case []any:
			b.WriteByte('[')
			for i, value := range v {
				if i > 0 {
					b.WriteByte(',')
				}
				write(value)
			}
			space()
			b.WriteByte(']')
		case string:
			word(v)
		case json.Number:
			b.WriteString(v.String())
		default:
			text, _ := json.Marshal(v)
			b.Write(text)
		}
		space()
	}
	write(tree(t, text))
	return b.String()
}
