package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/jobledger/jobledger/adapters/postgres/embedded"
)

func pgPsqlCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "psql [-- ARGS]",
		Short: "Open psql on the private Postgres, with the ledger's schema first in its search_path",
		Long: `Open psql on the private Postgres, with the ledger's schema first in its search_path. The server runs at least until
psql ends. What stands behind -- goes to psql; the exit code is psql's.`,
		Example: `  jobledger pg psql
  jobledger pg psql -- -c 'SELECT * FROM job LIMIT 5'
  jobledger pg psql -- -f report.sql`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && cmd.ArgsLenAtDash() != 0 {
				return wrongUse("write -- before what is for psql: jobledger pg psql -- "+strings.Join(args, " "), "%q stands before --", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.onPrivate(); err != nil {
				return err
			}
			return a.psql(cmd.Context(), args)
		},
	}
}

// psql runs psql as a child and not in our place: our share in the server must live as long as psql does.
func (a *app) psql(ctx context.Context, args []string) error {
	lease, err := embedded.Acquire(ctx, a.pgOptions())
	if err != nil {
		return err
	}
	defer lease.Close() // psql's own connection has told it of any trouble
	if err := a.fitSchema(ctx, lease.URL()); err != nil {
		return err
	}
	path, err := embedded.Psql(ctx, a.pgOptions())
	if err != nil {
		return err
	}
	cmd := exec.Command(path, append([]string{"-d", lease.URL()}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.stdin, a.stdout, a.stderr
	cmd.Env = append(os.Environ(), "PGOPTIONS="+strings.TrimSpace(os.Getenv("PGOPTIONS")+" "+searchPath(a.schema)))
	// A terminal sends ^C to psql as well, which ends a query and not the session; a signal to us alone is passed on.
	incoming := make(chan os.Signal, 1)
	signal.Notify(incoming, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(incoming)
	a.signals.close()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start psql: %w", err)
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for {
			select {
			case sig := <-incoming:
				if sig != syscall.SIGINT {
					_ = cmd.Process.Signal(sig) // it may have ended meanwhile
				}
			case <-ended:
				return
			}
		}
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return &cliError{err: fmt.Errorf("psql: %w", err), code: max(exit.ExitCode(), exitFailed), quiet: true}
	}
	return err
}

// searchPath is a setting for PGOPTIONS, in which a backslash and white space need a backslash before them.
func searchPath(schema string) string {
	quoted := `"` + strings.ReplaceAll(schema, `"`, `""`) + `"`
	return "-csearch_path=" + strings.NewReplacer(`\`, `\\`, ` `, `\ `, "\t", "\\\t", "\n", "\\\n").Replace(quoted+", public")
}
