package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
)

// Template is a database with an empty ledger and what the application needs beside it, made once in a process and
// copied for each test.
type Template struct {
	prepare func(ctx context.Context, databaseURL string) error

	mu      sync.Mutex
	servers map[string]*prepared // by Config.DatabaseURL
}

// prepared is a template on one server: made by the first test that needs it, for better or worse.
type prepared struct {
	database *pgtest.Database
	err      error
}

// NewTemplate returns a template that prepare fills, given the URL of a database with an empty ledger in it: typically
// it runs the application's own migrations. It must close its connections.
//
//	var app = ledgertest.Config{Template: ledgertest.NewTemplate(migrate)}
//
//	func TestSignUp(t *testing.T) {
//		l := ledgertest.New(t, app)
func NewTemplate(prepare func(ctx context.Context, databaseURL string) error) *Template {
	return &Template{prepare: prepare, servers: map[string]*prepared{}}
}

// on returns the template on a server, and makes it if nobody has. The others wait meanwhile.
func (p *Template) on(ctx context.Context, serverURL string) (*pgtest.Database, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.servers[serverURL] == nil {
		database, err := p.build(ctx, serverURL)
		p.servers[serverURL] = &prepared{database, err}
	}
	return p.servers[serverURL].database, p.servers[serverURL].err
}

func (p *Template) build(ctx context.Context, serverURL string) (*pgtest.Database, error) {
	database, err := pgtest.Create(ctx, serverURL)
	if err != nil {
		return nil, err
	}
	if err = p.prepare(ctx, database.URL); err == nil {
		err = database.Seal(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare the template: %w", err), database.Drop(context.WithoutCancel(ctx)))
	}
	return database, nil
}
