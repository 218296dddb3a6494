package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/jobledger/jobledger/adapters/postgres/embedded"
)

func pgCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pg",
		Short: "The private Postgres: its URL, its status, stop it, open psql on it",
		Long: `The private Postgres of --data-dir, whatever DATABASE_URL says. It starts with the first command that uses it
and stops after the last; "up" keeps it running.`,
		Example: `  jobledger pg status
  jobledger pg psql -- -c 'SELECT state, count(*) FROM job GROUP BY 1'`,
	}
	a.group(cmd)
	cmd.AddCommand(pgURLCommand(a), pgStatusCommand(a), pgStopCommand(a), pgPsqlCommand(a))
	return cmd
}

// onPrivate makes sure that the private Postgres is what is meant.
func (a *app) onPrivate() error {
	if a.databaseURL == "" {
		return nil
	}
	if a.urlByFlag {
		return wrongUse("leave it out; --data-dir says which one", "--database-url is not the private Postgres, which pg is about")
	}
	a.notice("note: DATABASE_URL is set; other commands use that one, not this private Postgres")
	a.databaseURL, a.dataDir = "", os.Getenv("JOBLEDGER_DATA_DIR")
	return nil
}

func pgURLCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "url",
		Short: "Print the URL of the private Postgres",
		Long: `Print the URL of the private Postgres, which is the same at each start. The server runs as long as somebody uses it
through jobledger, and this command is over as soon as it has printed: keep the server running with "up" in another
terminal, or use "pg psql", which keeps it by itself. If it isn't running, a line on standard error says so.`,
		Example: `  jobledger up &
  psql "$(jobledger pg url)"`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.onPrivate(); err != nil {
				return err
			}
			status, err := embedded.ReadStatus(a.pgOptions())
			if err != nil {
				return err
			}
			url := status.URL
			if !status.Running {
				lease, err := embedded.Acquire(cmd.Context(), a.pgOptions())
				if err != nil {
					return err
				}
				defer lease.Close() // nothing was written through it
				url = lease.URL()
				a.notice("note: nothing holds this server, so it stops now; keep it running with: jobledger up" + a.flagsAgain())
			}
			if a.json {
				return a.printJSON(pgStatusJSON{Running: status.Running, DataDir: status.DataDir, URL: url})
			}
			_, err = fmt.Fprintln(a.stdout, url)
			return err
		},
	}
}

func pgStatusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Say whether the private Postgres runs, and where; changes nothing",
		Example: `  jobledger pg status
  jobledger pg status --json | jq .running`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := a.onPrivate(); err != nil {
				return err
			}
			status, err := embedded.ReadStatus(a.pgOptions())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(pgStatusOf(status))
			}
			return a.printPgStatus(status)
		},
	}
}

func pgStatusOf(s embedded.Status) pgStatusJSON {
	out := pgStatusJSON{Running: s.Running, DataDir: s.DataDir, Major: s.Major, URL: s.URL, PID: s.PID, StartedAt: s.StartedAt,
		TCPPort: s.TCPPort, ServerLog: s.ServerLog}
	if s.Clients >= 0 {
		out.Clients = &s.Clients
	}
	return out
}

func (a *app) printPgStatus(s embedded.Status) error {
	t := newTable(a.stdout)
	switch {
	case s.Running:
		t.row("state", "running")
	case s.Major == 0:
		t.row("state", "never started")
	default:
		t.row("state", "stopped")
	}
	t.row("data", s.DataDir)
	if s.Major != 0 {
		t.row("version", fmt.Sprint(s.Major))
		t.row("log", s.ServerLog)
	}
	if s.Running {
		t.row("url", s.URL)
		t.row("process", fmt.Sprint(s.PID))
		t.row("since", stamp(s.StartedAt))
		if s.Clients >= 0 {
			t.row("clients", fmt.Sprint(s.Clients))
		}
	}
	return t.flush()
}

func pgStopCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "stop",
		Short: "Stop the private Postgres now, whoever uses it",
		Long: `Stop the private Postgres now. It stops by itself after its last user, so this is for one that must not wait: the
connections of those who still use it break, and the next command starts it again.`,
		Example: `  jobledger pg stop
  jobledger pg stop --data-dir ./data`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.onPrivate(); err != nil {
				return err
			}
			was, err := embedded.Stop(cmd.Context(), a.pgOptions())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]bool{"stopped": was})
			}
			text := "stopped"
			if !was {
				text = "it was not running"
			}
			_, err = fmt.Fprintln(a.stdout, text)
			return err
		},
	}
}
