package main

import (
	"io"
	"log/slog"
	"os"
	"os/user"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/jobledger/jobledger/adapters/postgres/embedded"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/projections"
)

// app is one call of the program: its streams and global flags.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	signals        *signals
	log            *slog.Logger

	databaseURL string
	directURL   string
	dataDir     string
	schema      string
	pgBin       string
	pgFetch     string
	actor       string
	logLevel    string
	json        bool

	urlByFlag    bool // the database URL, or the data directory, is on the command line and not in the environment
	directByFlag bool // so is the direct URL
}

// globalFlags are the flags of every command.
func (a *app) globalFlags(flags *pflag.FlagSet) {
	flags.StringVar(&a.databaseURL, "database-url", "", "Postgres to use (env DATABASE_URL); without one a private Postgres is used")
	flags.StringVar(&a.directURL, "direct-url", "", "the same database past a pooler, for what needs a session (env JOBLEDGER_DIRECT_URL)")
	flags.StringVar(&a.dataDir, "data-dir", "", "folder of the private Postgres (env JOBLEDGER_DATA_DIR)")
	flags.StringVar(&a.schema, "schema", "", "schema of the ledger (env JOBLEDGER_SCHEMA, default "+ledger.DefaultSchema+")")
	flags.StringVar(&a.pgBin, "pg-bin", "", "folder with initdb and postgres for the private Postgres")
	flags.StringVar(&a.pgFetch, "pg-fetch", string(embedded.FetchAuto), "auto or never: whether missing Postgres binaries may be downloaded")
	flags.StringVar(&a.actor, "actor", "", "who is written into the events (default: your user name)")
	flags.StringVar(&a.logLevel, "log-level", "info", "debug, info, warn or error")
	flags.BoolVar(&a.json, "json", false, "print JSON: one object, or one a line where there are many")
}

// settle fills in what was not given by flags: a flag goes before the environment.
func (a *app) settle(cmd *cobra.Command) error {
	flags := cmd.Flags()
	switch {
	case flags.Changed("database-url") && flags.Changed("data-dir"):
		return wrongUse("give one of them", "--database-url and --data-dir are two different databases")
	case flags.Changed("database-url"):
		if a.databaseURL == "" {
			return wrongUse(`give a URL such as postgres://user@host/database`, "--database-url is empty")
		}
		a.urlByFlag = true
	case flags.Changed("data-dir"):
		if a.dataDir == "" {
			return wrongUse("give a folder", "--data-dir is empty")
		}
		a.urlByFlag = true
	default:
		a.databaseURL, a.dataDir = os.Getenv("DATABASE_URL"), os.Getenv("JOBLEDGER_DATA_DIR")
	}
	a.directByFlag = a.directURL != ""
	fromEnv(&a.directURL, "JOBLEDGER_DIRECT_URL")
	fromEnv(&a.schema, "JOBLEDGER_SCHEMA")
	if a.schema == "" {
		a.schema = ledger.DefaultSchema
	}
	if err := projections.CheckSchema(a.schema); err != nil {
		return wrongUse("choose another name, such as "+ledger.DefaultSchema, "--%w", err)
	}
	if a.databaseURL != "" {
		if err := checkURL("the database URL", a.databaseURL); err != nil {
			return err
		}
	}
	if a.directURL != "" {
		if err := checkURL("the direct URL", a.directURL); err != nil {
			return err
		}
	}
	if a.actor == "" {
		a.actor = osUser()
	}
	if err := domain.CheckText("--actor", a.actor, domain.MaxActorBytes); err != nil {
		return wrongUse("give --actor a short name", "%w", err)
	}
	if err := oneOf("pg-fetch", a.pgFetch, string(embedded.FetchAuto), string(embedded.FetchNever)); err != nil {
		return err
	}
	return a.openLog()
}

func fromEnv(value *string, name string) {
	if *value == "" {
		*value = os.Getenv(name)
	}
}

// osUser is the name of the system's user; some containers have none for theirs.
func osUser() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return "uid " + strconv.Itoa(os.Getuid())
}

// openLog writes to standard error: standard output is for results.
func (a *app) openLog() error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(a.logLevel)); err != nil {
		return wrongUse("use debug, info, warn or error", "--log-level: got %q", a.logLevel)
	}
	options := &slog.HandlerOptions{Level: level}
	if a.json {
		a.log = slog.New(slog.NewJSONHandler(a.stderr, options))
	} else {
		a.log = slog.New(slog.NewTextHandler(a.stderr, options))
	}
	return nil
}

// private reports whether the private Postgres is used.
func (a *app) private() bool { return a.databaseURL == "" }

// pgOptions says which private Postgres is meant.
func (a *app) pgOptions() embedded.Options {
	return embedded.Options{
		DataDir: a.dataDir,
		BinDir:  a.pgBin,
		Fetch:   embedded.FetchPolicy(a.pgFetch),
		Notice:  a.notice,
	}
}

// flagsAgain is what of the command line must be given again to mean the same ledger, for hints.
func (a *app) flagsAgain() string {
	text := ""
	if a.urlByFlag && a.databaseURL != "" {
		text += " --database-url " + shellWord(withoutPassword(a.databaseURL))
	}
	if a.directByFlag && !a.private() {
		text += " --direct-url " + shellWord(withoutPassword(a.directURL))
	}
	if a.urlByFlag && a.dataDir != "" {
		text += " --data-dir " + shellWord(a.dataDir)
	}
	if a.schema != ledger.DefaultSchema && os.Getenv("JOBLEDGER_SCHEMA") != a.schema {
		text += " --schema " + shellWord(a.schema)
	}
	return text
}
