package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/embedded"
	"github.com/jobledger/jobledger/ledger"
)

// session is an open ledger. A private Postgres runs at least until it is closed.
type session struct {
	*ledger.Ledger
	pool      *pgxpool.Pool
	url       string
	directURL string          // past a pooler, for what needs a session of its own; url where no other is known
	lease     *embedded.Lease // nil on another's Postgres
}

// open opens the ledger that the flags mean. On the private Postgres it brings the schema to what this binary needs;
// elsewhere that is a decision of who owns the database, and the error says what to run.
func (a *app) open(ctx context.Context) (_ *session, err error) {
	s := &session{url: a.databaseURL, directURL: a.pastPooler(a.databaseURL)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if a.private() {
		if s.lease, err = embedded.Acquire(ctx, a.pgOptions()); err != nil {
			return nil, err
		}
		s.url, s.directURL = s.lease.URL(), s.lease.URL()
	}
	if err := a.fitSchema(ctx, s.url); err != nil {
		return nil, err
	}
	if s.pool, err = postgres.OpenPool(ctx, postgres.PoolConfig{URL: s.url}); err != nil {
		return nil, err
	}
	s.Ledger, err = ledger.New(s.pool, ledger.Config{Schema: a.schema, Actor: a.actor})
	return s, err
}

// close gives everything back, the server last: it must not stop under open connections.
func (s *session) close() error {
	if s.pool != nil {
		s.pool.Close()
	}
	if s.lease != nil {
		return s.lease.Close()
	}
	return nil
}

// with runs f on an open ledger.
func (a *app) with(ctx context.Context, f func(*session) error) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	return errors.Join(f(s), s.close())
}

// pastPooler is the URL for what needs a session of its own: on another's Postgres the direct one, if there is one.
func (a *app) pastPooler(databaseURL string) string {
	if a.directURL != "" && !a.private() {
		return a.directURL
	}
	return databaseURL
}

// fitSchema makes sure that the schema and this binary fit together.
func (a *app) fitSchema(ctx context.Context, databaseURL string) error {
	status, err := postgres.MigrateStatus(ctx, databaseURL, a.schema)
	if err != nil {
		return err
	}
	if a.private() && (!status.UpToDate() || status.FunctionsChanged) {
		return postgres.MigrateUp(ctx, databaseURL, a.schema, postgres.MigrateNotice(a.notice))
	}
	return status.Fit()
}

// now is the database's clock: ages are measured by the clock that set the times.
func (s *session) now(ctx context.Context) (time.Time, error) {
	var now time.Time
	err := s.pool.QueryRow(ctx, "SELECT "+pgx.Identifier{s.Schema()}.Sanitize()+".clock()").Scan(&now)
	if err != nil {
		return now, fmt.Errorf("read the database's clock: %w", err)
	}
	return now.UTC(), nil
}

// withoutPassword is a database URL that may be shown. What is no URL may hide a password anywhere.
func withoutPassword(databaseURL string) string {
	u, err := url.Parse(databaseURL)
	if err != nil || u.Scheme == "" {
		return "..."
	}
	if u.User != nil {
		u.User = url.User(u.User.Username())
	}
	query := u.Query()
	for key := range query {
		if strings.Contains(strings.ToLower(key), "password") {
			query.Del(key)
			u.RawQuery = query.Encode()
		}
	}
	return u.String()
}

// checkURL refuses a database URL that would be misread, in words of our own: the driver's quote the text, and a
// password may stand anywhere in it.
func checkURL(flag, databaseURL string) error {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return wrongUse("it looks like postgres://user:password@host:5432/database; write @ : / in a password as %40 %3A %2F", "%s cannot be read", flag)
	}
	if strings.Contains(config.Host, "@") {
		return wrongUse("write @ in a password as %40", "%s has an @ in its host", flag)
	}
	return nil
}
