package pgtest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// TestProxy holds what tests of faults rely on: a statement that is cut before the server has it was not carried out,
// one that is cut behind the server's answer was, in whichever form the client sends it.
func TestProxy(t *testing.T) {
	t.Parallel()
	modes := []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}

	for _, mode := range modes {
		t.Run("cut/"+strings.ReplaceAll(mode.String(), " ", "_"), func(t *testing.T) {
			t.Parallel()
			db, p, conn := proxied(t)
			for n, c := range []struct {
				action Action
				stored int
			}{{CutBefore, 0}, {CutAfter, 1}, {CutBefore, 1}, {CutAfter, 2}} {
				if _, err := conn().Exec(t.Context(), `INSERT INTO t VALUES ($1)`, mode, -1); err != nil {
					t.Fatal(err) // whatever is kept of it from now on
				}
				execute(t, db, `DELETE FROM t WHERE n < 0`)
				done := p.Once("INTO t", c.action)
				if _, err := conn().Exec(t.Context(), `INSERT INTO t VALUES ($1)`, mode, n); err == nil {
					t.Fatalf("case %d: the client has an answer", n)
				}
				<-done
				if got := ask[int](t, db, `SELECT count(*) FROM t`); got != c.stored {
					t.Fatalf("case %d: %d rows are stored, want %d", n, got, c.stored)
				}
			}
		})
	}

	t.Run("commit", func(t *testing.T) {
		t.Parallel()
		db, p, conn := proxied(t)
		for want, action := range []Action{CutBefore, CutAfter} {
			done := p.Once("commit", action)
			err := pgx.BeginFunc(t.Context(), conn(), func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), `INSERT INTO t VALUES (1)`)
				return err
			})
			if err == nil {
				t.Fatal("the client has an answer")
			}
			<-done
			query := fmt.Sprintf(`SELECT count(*) = %d FROM t`, want)
			db.WaitTrue(t, "the transaction is over", query)
		}
	})

	t.Run("mute", func(t *testing.T) {
		t.Parallel()
		db, p, conn := proxied(t)
		for _, c := range []struct {
			action Action
			stored int
		}{{MuteBefore, 0}, {Mute, 2}} {
			done := p.Once("INTO t", c.action)
			answer := make(chan error)
			client := conn()
			go func() {
				_, err := client.Exec(t.Context(), `INSERT INTO t VALUES (1)`)
				answer <- err
			}()
			<-done
			if got := ask[int](t, db, `SELECT count(*) FROM t`); got != c.stored {
				t.Errorf("%d rows are stored, want %d", got, c.stored)
			}
			p.Set(Open)
			if err := <-answer; err != nil {
				t.Errorf("after it was opened again: %v", err)
			}
		}
	})

	t.Run("decide", func(t *testing.T) {
		t.Parallel()
		_, p, conn := proxied(t)
		var seen []string
		p.Decide(func(statement string) Action {
			seen = append(seen, statement)
			return Pass
		})
		c := conn()
		batch := &pgx.Batch{}
		batch.Queue(`SELECT $1::int`, 1)
		batch.Queue(`SELECT 2, $1::int`, 1)
		if err := c.SendBatch(t.Context(), batch).Close(); err != nil {
			t.Fatal(err)
		}
		p.Decide(nil)
		if got := strings.Join(seen, "; "); !strings.HasSuffix(got, "SELECT $1::int; SELECT 2, $1::int") {
			t.Errorf("statements are %q", got)
		}
	})

	t.Run("ways", func(t *testing.T) {
		t.Parallel()
		_, p, conn := proxied(t)
		c := conn()
		p.Set(Full)
		_, err := pgx.Connect(t.Context(), p.URL)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "53300" {
			t.Errorf("a full proxy answers %v", err)
		}
		if err := c.Ping(t.Context()); err != nil {
			t.Errorf("a full proxy has cut who was there: %v", err)
		}
		p.Set(Closed)
		if err := c.Ping(t.Context()); err == nil {
			t.Error("a closed proxy answers")
		}
		if _, err := pgx.Connect(t.Context(), p.URL); err == nil {
			t.Error("a closed proxy lets in")
		}
		<-p.Lost()
		p.Set(Open)
		c = conn()
		p.Set(Silent)
		answer := make(chan error)
		go func() { answer <- c.Ping(t.Context()) }()
		<-p.Lost()
		p.SetDelay(time.Millisecond)
		p.Set(Open)
		if err := <-answer; err != nil {
			t.Errorf("what was kept back did not come through: %v", err)
		}
	})
}

// proxied returns a database with a table t (n), a proxy to it, and what opens connections through it.
func proxied(t *testing.T) (*DB, *Proxy, func() *pgx.Conn) {
	t.Helper()
	db := Empty(t)
	execute(t, db, `CREATE TABLE t (n int)`)
	p := NewProxy(t, db.URL)
	return db, p, func() *pgx.Conn {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), p.URL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			p.Set(Closed)
			_ = conn.PgConn().Conn().Close()
		})
		return conn
	}
}
