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

	"github.com/jobledger/jobledger/adapters/postgres/embedded"
	"github.com/jobledger/jobledger/cmd/jobledger/demo"
	"github.com/jobledger/jobledger/projections"
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

It runs on the private Postgres, in the schema ` + demoSchema + `, which it makes anew, and takes less than a minute.`,
		Example: `  jobledger demo
  jobledger demo --dir ./src
  jobledger jobs list --schema ` + demoSchema + ` --outcome failure`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case cmd.Flags().Changed("database-url") || cmd.Flags().Changed("schema"):
				return wrongUse("use --data-dir to choose where", "the demo runs on the private Postgres, in a schema of its own")
			case a.json:
				return wrongUse("jobledger demo; the ledger that it leaves has --json: jobledger jobs list --schema "+demoSchema+" --json",
					"the demo tells a story for people, it has no --json")
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
	conn, err := aloneWithDemo(ctx, lease.URL())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	return a.with(ctx, func(s *session) error {
		err := demo.Run(ctx, demo.Config{
			Ledger: s.Ledger, Pool: s.pool, Schema: pgx.Identifier{a.schema}.Sanitize(), Dir: dir, Out: a.stdout,
			Start: func(name string, stdout *os.File) (*os.Process, error) { return a.startDemoWorker(name, s.url, stdout) },
		})
		if err == nil {
			fmt.Fprintf(a.stdout, "look at it: %s jobs list%s\n", shellWord(os.Args[0]), a.flagsAgain())
		}
		return err
	})
}

// aloneWithDemo makes sure that no other demo uses the schema, for as long as the connection lives, and
// drops the ledger of an earlier one.
func aloneWithDemo(ctx context.Context, url string) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	var alone bool
	err = conn.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtextextended('"+demoSchema+"', 0))").Scan(&alone)
	if err == nil && !alone {
		err = failed("wait until it has ended, or choose another folder: jobledger demo --data-dir DIR", "another demo runs on this private Postgres")
	}
	if err == nil {
		_, err = conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+demoSchema+", "+demoSchema+projections.SpineSuffix+" CASCADE")
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
	}
	return conn, nil
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
