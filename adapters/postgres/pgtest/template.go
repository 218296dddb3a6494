package pgtest

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/adapters/postgres"
)

// templateInfix follows the prefix in the names of templates; the hash of the schema follows it.
const templateInfix = "template_"

// template returns the name of the database with the current schema, building it if nobody has done so yet. The first
// test of a process pays for the look, the others don't.
func (s *server) template(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.templateName != "" {
		return s.templateName, nil
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	hash := postgres.SchemaHash()
	name := s.prefix + templateInfix + hash[:min(len(hash), 16)]
	// Shared, until this process ends: nobody drops the template meanwhile.
	if _, err := s.keeper.Exec(ctx, `SELECT pg_advisory_lock_shared($1, $2)`, int32(templateLocks), templateKey(name)); err != nil {
		return "", fmt.Errorf("lock %s: %w", name, err)
	}
	if err := s.buildOnce(ctx, name); err != nil {
		return "", err
	}
	if err := s.dropOldTemplates(ctx, name); err != nil {
		return "", err
	}
	s.templateName = name
	return name, nil
}

// buildOnce builds the template unless it is there. The others wait meanwhile, for they need it, too.
func (s *server) buildOnce(ctx context.Context, name string) (err error) {
	key := templateKey(name)
	if _, err := s.keeper.Exec(ctx, `SELECT pg_advisory_lock($1, $2)`, int32(buildLocks), key); err != nil {
		return fmt.Errorf("wait for who builds %s: %w", name, err)
	}
	defer func() {
		_, unlockErr := s.keeper.Exec(ctx, `SELECT pg_advisory_unlock($1, $2)`, int32(buildLocks), key)
		err = errors.Join(err, unlockErr)
	}()
	var exists bool
	err = s.keeper.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, name).Scan(&exists)
	if err != nil || exists {
		return err
	}
	return s.build(ctx, name)
}

// build makes the template under a name of this process and renames it at the end, so that it is complete or not there;
// what is left of one that was interrupted is swept like any other database.
func (s *server) build(ctx context.Context, name string) error {
	draft := s.nextName()
	if err := s.createDatabase(ctx, draft, "template0"); err != nil {
		return err
	}
	err := postgres.MigrateUp(ctx, s.urlOf(draft), Schema)
	if err == nil {
		err = s.exec(ctx, "ALTER DATABASE "+pgx.Identifier{draft}.Sanitize()+" RENAME TO "+pgx.Identifier{name}.Sanitize())
	}
	if err != nil {
		return errors.Join(err, s.dropDatabase(context.WithoutCancel(ctx), draft))
	}
	return s.seal(ctx, name)
}

// seal lets nobody connect to a database, as that would make copying it fail.
func (s *server) seal(ctx context.Context, name string) error {
	return s.exec(ctx, "ALTER DATABASE "+pgx.Identifier{name}.Sanitize()+" WITH ALLOW_CONNECTIONS false")
}

// dropOldTemplates drops templates of other schemas that no process uses: another checkout may be tested at this time.
func (s *server) dropOldTemplates(ctx context.Context, current string) error {
	const query = `SELECT datname FROM pg_database WHERE starts_with(datname, $1) AND datname <> $2`
	rows, err := s.keeper.Query(ctx, query, s.prefix+templateInfix, current)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range names {
		err := s.tryLocked(ctx, templateLocks, uint32(templateKey(name)), func() error { return s.dropDatabase(ctx, name) })
		if err != nil {
			return err
		}
	}
	return nil
}

// templateKey is the second key of a template's advisory locks.
func templateKey(name string) int32 { return int32(crc32.ChecksumIEEE([]byte(name))) }
