package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/embedded"
)

func migrateCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create or update the schema, or say what would be done",
		Example: `  jobledger migrate up --database-url postgres://me@db/app
  jobledger migrate status --json
  jobledger migrate print > ledger.sql`,
	}
	a.group(cmd)
	cmd.AddCommand(migrateUpCommand(a), migrateStatusCommand(a), migratePrintCommand(a))
	return cmd
}

func migrateUpCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "up",
		Short: "Bring the schema to what this binary needs",
		Long: `Bring the schema to what this binary needs: the numbered migrations, then the transition functions.
It is safe to run twice, by several processes at once, and while workers are at work.

Behind a transaction pooler give --direct-url too: migrations hold a lock of their session, and refuse to run without.`,
		Example: `  jobledger migrate up --database-url postgres://me@db/app
  jobledger migrate up --database-url postgres://me@pooler/app --direct-url postgres://me@db/app
  jobledger migrate up --schema staging`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.migrating(cmd.Context(), func(url string) error {
				status, err := postgres.MigrateStatus(cmd.Context(), url, a.schema)
				if err != nil {
					return err
				}
				if err := a.refuseNewer(status); err != nil {
					return err
				}
				if err := postgres.MigrateUp(cmd.Context(), url, a.schema); err != nil {
					return err
				}
				return a.printStatus(cmd.Context(), url)
			})
		},
	}
}

func migrateStatusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Say how far the schema is; changes nothing",
		Long:  `Say how far the schema is; changes nothing. Exit code 1 if "migrate up" has something to do.`,
		Example: `  jobledger migrate status
  jobledger migrate status --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.migrating(cmd.Context(), func(url string) error { return a.printStatus(cmd.Context(), url) })
		},
	}
}

func migratePrintCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "print",
		Short: "Print all of it as plain SQL, to be applied by hand to an empty database",
		Long: `Print all of it as plain SQL, to be applied by hand to an empty database. Nothing is connected to.
"migrate status" then finds it in place.`,
		Example: `  jobledger migrate print > ledger.sql
  jobledger migrate print --schema staging | psql app`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			text, err := postgres.MigrationSQL(a.schema)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(a.stdout, text)
			return err
		},
	}
}

// migrating runs f with the URL for migrations: past a pooler, if it is known.
func (a *app) migrating(ctx context.Context, f func(url string) error) error {
	if !a.private() {
		return f(a.pastPooler(a.databaseURL))
	}
	lease, err := embedded.Acquire(ctx, a.pgOptions())
	if err != nil {
		return err
	}
	defer lease.Close() // nothing was written through it
	return f(lease.URL())
}

// printStatus prints how far the schema is. The exit code says whether there is something to do.
func (a *app) printStatus(ctx context.Context, url string) error {
	s, err := postgres.MigrateStatus(ctx, url, a.schema)
	if err != nil {
		return err
	}
	done := &cliError{err: fmt.Errorf("schema %s is not up to date", s.Schema), code: exitFailed, quiet: true}
	if a.json {
		if err := a.printJSON(migrationJSON{Status: s, UpToDate: s.UpToDate()}); err != nil {
			return err
		}
	} else {
		t := newTable(a.stdout, "SCHEMA", "MIGRATION", "FUNCTIONS", "STATUS")
		t.row(s.Schema, fmt.Sprintf("%d of %d", s.Migration, s.LatestMigration), fmt.Sprintf("%d of %d", s.Functions, s.LatestFunctions), a.verdict(s))
		if err := t.flush(); err != nil {
			return err
		}
	}
	if s.UpToDate() {
		return nil
	}
	return done
}

func (a *app) verdict(s postgres.Status) string {
	switch {
	case s.Empty():
		return "no ledger yet: jobledger migrate up"
	case !s.UpToDate():
		return "older than this binary: jobledger migrate up"
	case a.refuseNewer(s) != nil:
		return "newer than this binary"
	case s.FunctionsChanged:
		return "up to date, with functions of a development build"
	}
	return "up to date"
}
