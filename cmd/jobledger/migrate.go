package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/embedded"
	"github.com/jobledger/jobledger/domain"
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
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring the schema to what this binary needs",
		Long: `Bring the schema to what this binary needs: the numbered migrations, then the transition functions.
It is safe to run twice, by several processes at once, and while workers are at work. Each step is one transaction: after
an error, or SIGKILL, what it began is undone, and the next run goes on from there.

A step that must lock a table waits for others for 200 ms at a time, and tries again between pauses, for --wait in all.`,
		Example: `  jobledger migrate up --database-url postgres://me@db/app
  jobledger migrate up --schema staging --wait 10m`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if wait < 0 {
				return wrongUse("give a duration such as 2m", "--wait: got %s", wait)
			}
			return a.migrating(cmd.Context(), func(url string) error {
				err := postgres.MigrateUp(cmd.Context(), url, a.schema, postgres.MigrateWait(wait), postgres.MigrateNotice(a.notice))
				if err != nil {
					return err
				}
				return a.printStatus(cmd.Context(), url)
			})
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", postgres.DefaultMigrateWait, "how long to try again for locks that others hold; 0 tries once")
	return cmd
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

// migrating runs f with the URL for migrations.
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
		if err := a.printJSON(migrationJSON{Status: s, UpToDate: s.UpToDate(), Misfit: code(s.Fit())}); err != nil {
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
	misfit := s.Fit()
	switch {
	case errors.Is(misfit, domain.ErrNoLedger):
		return "no ledger yet: jobledger migrate up"
	case errors.Is(misfit, domain.ErrLedgerDamaged):
		return "damaged: " + s.Damage
	case errors.Is(misfit, domain.ErrLedgerNewer):
		return "newer than this binary"
	case s.FunctionsMissing > 0:
		return fmt.Sprintf("functions missing: %d; put them back: jobledger migrate up", s.FunctionsMissing)
	case misfit != nil:
		return "older than this binary: jobledger migrate up"
	case s.FunctionsChanged:
		return "up to date, with functions of a development build"
	case s.Functions > s.LatestFunctions || s.Migration > s.LatestMigration:
		return "one release ahead: this binary works with it"
	}
	return "up to date"
}
