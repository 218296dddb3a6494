// Command jobledger is the ledger's command line: it runs the private Postgres and the reaper, enqueues and works off
// jobs, and shows, cancels, redrives and verifies them.
//
//	main -> run -> the list of subcommands, each in a file of its own
package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the whole program: it returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, json: wantsJSON(args)}
	ctx, a.signals = listen(ctx)
	defer a.signals.close()
	root := a.rootCommand()
	root.SetArgs(args)
	return a.exit(ctx, root.ExecuteContext(ctx))
}

// subcommands is the wiring, in the order of the help.
var subcommands = []func(*app) *cobra.Command{
	upCommand,
	migrateCommand,
	enqueueCommand,
	workCommand,
	reapCommand,
	jobCommand,
	jobsCommand,
	statusCommand,
	workersCommand,
	verifyCommand,
	pgCommand,
	demoCommand,
	versionCommand,
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "jobledger",
		Short: "A ledger of background jobs on Postgres",
		Long: `A ledger of background jobs on Postgres: every transition of every job is an event that stays.

Which database: --database-url, else --data-dir, else DATABASE_URL, else JOBLEDGER_DATA_DIR, else a private
Postgres in the default data directory. A private Postgres starts with the first command that uses it, is
shared by all that run at the same time, and stops after the last.

Exit codes: 0 done, 1 failed, 2 wrong use, 130 and 143 interrupted. "job wait" and "work" have more of them.
With --json, results are JSON on standard output and errors are JSON on standard error.`,
		Example: `  jobledger enqueue greet --args '{"name": "Ada"}'
  jobledger work --exec greet='jq .name' --drain
  jobledger jobs list
  jobledger verify`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	a.group(root)
	a.globalFlags(root.PersistentFlags())
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return a.settle(cmd) }
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(flagError)
	for _, subcommand := range subcommands {
		root.AddCommand(subcommand(a))
	}
	return root
}

// group makes cmd one that only holds others: without a verb, or with an unknown one, it is used wrongly.
func (a *app) group(cmd *cobra.Command) {
	cmd.Args, cmd.SuggestionsMinimumDistance = cobra.ArbitraryArgs, 2
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		help := "see: " + cmd.CommandPath() + " --help"
		if len(args) == 0 {
			return wrongUse(help, "%s needs a command", cmd.CommandPath())
		}
		if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
			help = "did you mean: " + cmd.CommandPath() + " " + similar[0]
		}
		return wrongUse(help, "%s has no command %q", cmd.CommandPath(), args[0])
	}
}

// wantsJSON looks for --json before the flags are parsed: an error in the flags is told in the same form.
func wantsJSON(args []string) bool {
	for _, arg := range args {
		switch arg {
		case "--json", "--json=true":
			return true
		case "--":
			return false
		}
	}
	return false
}
