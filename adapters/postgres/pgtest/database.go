package pgtest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Database is a database for those who have no testing.TB, or want it to outlive one test. Whoever has made it drops
// it; what a killed process leaves is dropped by a later one.
type Database struct {
	URL    string // a connection URL
	Name   string
	server *server
}

// others are the servers that programs have named themselves, by URL: each a function that connects once.
var others sync.Map

// Create returns a database with the current schema on the server at serverURL, whose role may create databases; "" is
// the server that New uses.
func Create(ctx context.Context, serverURL string) (*Database, error) {
	server, err := serverAt(serverURL)
	if err != nil {
		return nil, withHint(err)
	}
	template, err := server.template(ctx)
	if err != nil {
		return nil, fmt.Errorf("prepare the template database: %w", err)
	}
	return server.copyOf(ctx, template)
}

// serverAt connects to each server once, not with the context of the caller who happens to be the first.
func serverAt(address string) (*server, error) {
	if address == "" {
		return connected()
	}
	once, _ := others.LoadOrStore(address, sync.OnceValues(func() (*server, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*stepTimeout)
		defer cancel()
		return enter(ctx, address)
	}))
	return once.(func() (*server, error))()
}

// Copy returns another database with all that is in this one, which must be sealed.
func (d *Database) Copy(ctx context.Context) (*Database, error) { return d.server.copyOf(ctx, d.Name) }

// Seal ends all sessions of the database and lets nobody connect any more: it can then be copied.
func (d *Database) Seal(ctx context.Context) error {
	if err := d.server.seal(ctx, d.Name); err != nil {
		return err
	}
	return d.server.exec(ctx, `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = `+"'"+d.Name+"'") // a name of ours has no quotes
}

// Drop drops the database with all connections to it.
func (d *Database) Drop(ctx context.Context) error { return d.server.dropDatabase(ctx, d.Name) }

func (s *server) copyOf(ctx context.Context, template string) (*Database, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	d := &Database{Name: s.nextName(), server: s}
	d.URL = s.urlOf(d.Name)
	if err := s.createDatabase(ctx, d.Name, template); err != nil {
		return nil, err
	}
	return d, nil
}

// Close closes a pool on the database, which it waits for 10 s, and drops the database.
func (d *Database) Close(ctx context.Context, pool *pgxpool.Pool) error {
	var err error
	if !closePool(pool, closeTimeout) {
		err = fmt.Errorf("a connection of the pool was not given back within %s", closeTimeout)
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	return errors.Join(err, d.Drop(ctx))
}
