package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/embedded"
	"github.com/jobledger/jobledger/cmd/jobledger/demo"
)

// demoSchema is a ledger of the demo's own, made anew each time; it is left for people to look at.
const demoSchema = "jobledger_demo"

func demoCommand(a *app) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run the main job on real input, with a killed and a frozen worker",
		Long: `Inspect every Go file of the Go installation, one job each, with three worker processes. One is killed, one is
frozen beyond its lease and thawed, the third takes over; some jobs cannot succeed, some are canceled. In the
end the ledger's totals are compared with counting the files directly, and the ledger is verified.

It runs on the private Postgres, in the schema ` + demoSchema + `, which it makes anew; about half a minute at most.`,
		Example: `  jobledger demo
  jobledger demo --dir ./src
  jobledger jobs list --schema ` + demoSchema + ` --outcome failure`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("database-url") || cmd.Flags().Changed("schema") {
				return wrongUse("use --data-dir to choose where", "the demo runs on the private Postgres, in a schema of its own")
			}
			a.databaseURL, a.schema = "", demoSchema
			return a.demo(cmd.Context(), dir)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "folder with Go files (default: the Go installation, from go env GOROOT)")
	cmd.AddCommand(demoWorkerCommand(a))
	return cmd
}

func (a *app) demo(ctx context.Context, dir string) (err error) {
	if dir == "" {
		root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
		if err != nil {
			return failed("give a folder with Go files: jobledger demo --dir DIR", "find the Go installation: %w", err)
		}
		dir = strings.TrimSpace(string(root))
	}
	// Held throughout, so that the server does not stop between the two uses of it.
	lease, err := embedded.Acquire(ctx, a.pgOptions())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Close()) }()
	if err := dropDemo(ctx, lease.URL()); err != nil {
		return err
	}
	return a.with(ctx, func(s *session) error {
		err := demo.Run(ctx, demo.Config{
			Ledger: s.Ledger, Pool: s.pool, Schema: pgx.Identifier{a.schema}.Sanitize(), Dir: dir, Out: a.stdout,
			Start: func(name string, stdout *os.File) (*os.Process, error) { return a.startDemoWorker(name, s.url, stdout) },
		})
		if err == nil {
			fmt.Fprintf(a.stdout, "look at it: jobledger jobs list --schema %s%s\n", demoSchema, a.dataDirAgain())
		}
		return err
	})
}

// dropDemo drops the ledger of an earlier demo.
func dropDemo(ctx context.Context, url string) error {
	pool, err := postgres.OpenPool(ctx, postgres.PoolConfig{URL: url})
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+demoSchema+" CASCADE"); err != nil {
		return fmt.Errorf("drop the ledger of an earlier demo: %w", err)
	}
	return nil
}

// startDemoWorker starts this binary as one of the demo's workers. It is ended by the demo.
func (a *app) startDemoWorker(name, url string, stdout *os.File) (*os.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "demo", "worker", name, "--database-url", url, "--schema", demoSchema, "--log-level", "error")
	cmd.Stdout, cmd.Stderr = stdout, a.stderr
	err = cmd.Start()
	return cmd.Process, err
}

func demoWorkerCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    "worker NAME",
		Short:  "One worker process of the demo",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(s *session) error { return demo.Work(cmd.Context(), s.Ledger, args[0], a.log, a.stdout) })
		},
	}
}

func (a *app) dataDirAgain() string {
	if a.urlByFlag && a.dataDir != "" {
		return " --data-dir " + shellWord(a.dataDir)
	}
	return ""
}
