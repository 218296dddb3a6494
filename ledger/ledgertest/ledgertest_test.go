package ledgertest_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/ledgertest"
)

func TestNew(t *testing.T) {
	t.Parallel()
	t.Run("shares_nothing_and_is_gone_after_the_test", func(t *testing.T) {
		t.Parallel()
		var address string
		t.Run("inner", func(t *testing.T) {
			one, other := ledgertest.New(t), ledgertest.New(t, ledgertest.Config{MaxConns: 2, Actor: "ann"})
			enqueue(t, one, ledger.EnqueueParams{Kind: "k"})
			one.RequireEnqueued(t, ledgertest.Want{Kind: "k"})
			other.RequireNotEnqueued(t, ledgertest.Want{})
			id := enqueue(t, other, ledger.EnqueueParams{Kind: "k"})[0].JobID
			if actor := other.HistoryOf(t, id)[0].Actor; actor != "ann" || other.Pool.Config().MaxConns != 2 {
				t.Errorf("actor is %q, connections %d", actor, other.Pool.Config().MaxConns)
			}
			address = one.URL
		})
		if conn, err := pgx.Connect(t.Context(), address); err == nil {
			conn.Close(t.Context())
			t.Error("the database outlives its test")
		}
	})
	t.Run("in_another_schema", func(t *testing.T) {
		t.Parallel()
		l := ledgertest.New(t, ledgertest.Config{Schema: `Ten ant-'x'`})
		enqueue(t, l, ledger.EnqueueParams{Kind: "k", Delay: time.Hour})
		l.Advance(t, time.Hour)
		l.RequireEnqueued(t, ledgertest.Want{Kind: "k", Delay: time.Hour})
		if claims, err := l.Claim(t.Context(), ledger.ClaimParams{Worker: "w"}); err != nil || len(claims.Jobs) != 1 {
			t.Errorf("claimed %+v, %v", claims, err)
		}
	})
	t.Run("says_why_there_is_none", func(t *testing.T) {
		t.Parallel()
		for address, want := range map[string]string{
			"postgres://nobody@localhost:1/none?connect_timeout=1": "connect",
			"host=localhost": "postgres://user@host/database",
		} {
			message := failure(t, func(t testing.TB) { ledgertest.New(t, ledgertest.Config{DatabaseURL: address}) })
			if !strings.Contains(message, want) {
				t.Errorf("%s: %q, want %q in it", address, message, want)
			}
		}
	})
}

// TestServerOfTheApplication: a role that may create databases, and nothing more, is enough.
func TestServerOfTheApplication(t *testing.T) {
	t.Parallel()
	server := pgtest.Exclusive(t)
	conn, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var identFile string
	if err := conn.QueryRow(t.Context(), `SHOW ident_file`).Scan(&identFile); err != nil {
		t.Fatal(err)
	}
	users, err := os.ReadFile(identFile)
	if err != nil {
		t.Fatal(err)
	}
	// Whoever may come as the superuser may come as the maker.
	users = append(users, strings.ReplaceAll(string(users), "jobledger\n", "maker\n")...)
	if err := os.WriteFile(identFile, users, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{`CREATE ROLE maker LOGIN CREATEDB`, `CREATE DATABASE app`, `SELECT pg_reload_conf()`} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	address, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	query := address.Query()
	query.Set("user", "maker")
	address.RawQuery = query.Encode()
	prepare := func(ctx context.Context, databaseURL string) error {
		_, err := pgx.Connect(ctx, databaseURL) // never closed
		return err
	}
	for _, database := range []string{"/postgres", "/app"} { // those who meet in one don't see the others
		address.Path = database
		cfg := ledgertest.Config{DatabaseURL: address.String(), Template: ledgertest.NewTemplate(prepare)}
		t.Run(database[1:], func(t *testing.T) {
			for range 2 {
				l := ledgertest.New(t, cfg)
				l.Advance(t, time.Hour)
				enqueue(t, l, ledger.EnqueueParams{Kind: "k"})
				l.RequireEnqueued(t, ledgertest.Want{Kind: "k"})
			}
		})
	}
	rows, err := conn.Query(t.Context(), `SELECT count(*), bool_and(datname ~ '^jl_[0-9a-f]{4}_') FROM pg_database WHERE datdba = 'maker'::regrole`)
	if err != nil {
		t.Fatal(err)
	}
	left, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[struct {
		Databases int
		Named     bool
	}])
	// The two templates and what was prepared from each; the databases of the tests are gone.
	if err != nil || left.Databases != 4 || !left.Named {
		t.Errorf("of the role there are %+v, %v", left, err)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	l, err := ledgertest.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	enqueue(t, l, ledger.EnqueueParams{Kind: "k"})
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := pgx.Connect(t.Context(), l.URL); err == nil {
		t.Error("the database is still there")
	}
	if _, err := ledgertest.Open(t.Context(), ledgertest.Config{Actor: "a\x00"}); err == nil {
		t.Error("a bad actor was taken")
	}
}

// TestOn: the database that an application's tests have already.
func TestOn(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	if message := failure(t, func(t testing.TB) { ledgertest.On(t, db.Pool) }); !strings.Contains(message, "no ledger in schema jobledger") {
		t.Errorf("of a database without a ledger it says %q", message)
	}
	if err := postgres.MigrateUp(t.Context(), db.URL, "jobs"); err != nil {
		t.Fatal(err)
	}
	l := ledgertest.On(t, db.Pool, ledgertest.Config{Schema: "jobs"})
	enqueue(t, l, ledger.EnqueueParams{Kind: "k"})
	l.RequireEnqueued(t, ledgertest.Want{Kind: "k"})
	l.SetClock(t, time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	if got := l.Advance(t, time.Hour); !got.Equal(time.Date(2030, 1, 1, 1, 0, 0, 0, time.UTC)) || !l.Now(t).Equal(got) {
		t.Errorf("it is %s, told %s", l.Now(t), got)
	}
	if err := l.Close(); err == nil {
		t.Error("it was closed, whose database is not its own")
	}
}

// TestTemplate: the application's own tables are made once and are in each test's database.
func TestTemplate(t *testing.T) {
	t.Parallel()
	made := 0
	app := ledgertest.Config{Template: ledgertest.NewTemplate(func(ctx context.Context, databaseURL string) error {
		made++
		conn, err := pgx.Connect(ctx, databaseURL)
		if err != nil {
			return err
		}
		// Left open, as a careless one would.
		_, err = conn.Exec(ctx, `CREATE TABLE account (user_id bigint PRIMARY KEY); INSERT INTO account VALUES (1)`)
		return err
	})}
	for range 3 {
		l := ledgertest.New(t, app)
		if _, err := l.Pool.Exec(t.Context(), `INSERT INTO account VALUES (2)`); err != nil {
			t.Error(err)
		}
		l.RequireNotEnqueued(t, ledgertest.Want{})
	}
	if made != 1 {
		t.Errorf("it was made %d times", made)
	}
	errMigrate := errors.New("syntax error in 0007.sql")
	broken := ledgertest.Config{Template: ledgertest.NewTemplate(func(context.Context, string) error { return errMigrate })}
	for range 2 {
		if _, err := ledgertest.Open(t.Context(), broken); !errors.Is(err, errMigrate) {
			t.Errorf("opened with %v, want what prepare said", err)
		}
	}
}

func TestClock(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t)
	before := l.Now(t)
	stopped := l.Advance(t, time.Hour)
	if moved := stopped.Sub(before); moved < time.Hour || moved > time.Hour+time.Minute {
		t.Errorf("the real clock was moved by %s", moved)
	}
	if !l.Now(t).Equal(stopped) {
		t.Error("a clock that was moved goes on")
	}
}
