package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Binaries is a Postgres installation.
type Binaries struct {
	Dir     string // the folder with initdb and postgres
	Major   int    // such as 17
	Version string // such as "17.10", with what the distribution says about it
}

// installedPatterns are where packages put Postgres, besides PATH.
var installedPatterns = []string{
	"/usr/lib/postgresql/*/bin",          // Debian, Ubuntu
	"/usr/pgsql-*/bin",                   // the Postgres project's own packages for Fedora and Red Hat
	"/usr/libexec/postgresql*",           // Alpine
	"/opt/homebrew/opt/postgresql@*/bin", // Homebrew on Apple silicon
	"/usr/local/opt/postgresql@*/bin",    // Homebrew on Intel
	"/usr/local/pgsql/bin",               // built from source
	"/Library/PostgreSQL/*/bin",          // EDB's installer on macOS
}

// versionLine matches the answer of postgres --version, also of a beta ("17beta1").
var versionLine = regexp.MustCompile(`\(PostgreSQL\) ((\d+).*)`)

// FindBinaries returns the Postgres that Acquire would start: BinDir if it is given; else one of the major version of
// the cluster that is there; else the newest installed one, of MinMajor or later; else the cached or downloaded one.
// It returns an *Error that names both versions if the cluster is of another one than all that were found.
func FindBinaries(ctx context.Context, o Options) (Binaries, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Binaries{}, err
	}
	l := layout{root: o.DataDir}
	major, err := l.major()
	if err != nil {
		return Binaries{}, err
	}
	owner := 0
	if _, err := os.Stat(l.root); err == nil {
		if owner, err = l.owner(major); err != nil {
			return Binaries{}, err
		}
	}
	account, err := chooseAccount(owner)
	if err != nil {
		return Binaries{}, err
	}
	return findBinaries(ctx, o, major, account)
}

// findBinaries looks for binaries of the wanted major version, or of any if it is 0, that the account can run.
func findBinaries(ctx context.Context, o Options, want int, a account) (Binaries, error) {
	if o.BinDir != "" {
		return namedBinaries(ctx, o, want, a)
	}
	var best Binaries
	var seen []string
	for _, dir := range installedFolders() {
		b, err := inspect(ctx, dir)
		if err != nil || a.blockedAt(b.Dir) != "" {
			continue
		}
		if found := fmt.Sprintf("%d in %s", b.Major, b.Dir); !slices.Contains(seen, found) {
			seen = append(seen, found)
		}
		if b.Major >= MinMajor && b.Major > best.Major && (want == 0 || b.Major == want) {
			best = b
		}
	}
	if best.Major != 0 {
		return best, nil
	}
	if ctx.Err() != nil {
		// They were not asked to the end, which is no reason to download others.
		return best, &Error{Op: "look for Postgres", Err: context.Cause(ctx), Hint: "try again"}
	}
	if want == 0 || want == fetchedMajor {
		b, err := fetchedBinaries(ctx, o)
		if err == nil || !errors.Is(err, errNothingToFetch) {
			return b, err
		}
	}
	return Binaries{}, noBinaries(o, want, seen)
}

// namedBinaries returns what --pg-bin names, if it fits the cluster.
func namedBinaries(ctx context.Context, o Options, want int, a account) (Binaries, error) {
	op := "use the Postgres in " + quote(o.BinDir)
	b, err := inspect(ctx, o.BinDir)
	if err != nil {
		return b, &Error{Op: op, Err: err, Hint: "name the folder that holds initdb and postgres with --pg-bin"}
	}
	if folder := a.blockedAt(b.Dir); folder != "" {
		return b, &Error{
			Op:   op,
			Err:  fmt.Errorf("user %s cannot enter folder %q", a.name, folder),
			Hint: "put the binaries where that user can run them, for example below /opt",
		}
	}
	if want != 0 && b.Major != want {
		return b, mismatch(o, want, []string{fmt.Sprintf("%d in %s", b.Major, b.Dir)})
	}
	if b.Major < MinMajor {
		return b, &Error{
			Op:   op,
			Err:  fmt.Errorf("it is version %d, %d or later is needed", b.Major, MinMajor),
			Hint: "name a newer one with --pg-bin, or leave it out to have one found",
		}
	}
	return b, nil
}

// installedFolders returns the folders that hold a postgres, those of PATH first.
func installedFolders() []string {
	var folders []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(dir) {
			folders = append(folders, dir)
		}
	}
	for _, pattern := range installedPatterns {
		matches, err := filepath.Glob(pattern)
		if err != nil {
			panic(err) // the patterns are constants
		}
		folders = append(folders, matches...)
	}
	found := folders[:0]
	for _, dir := range folders {
		if info, err := os.Stat(filepath.Join(dir, "postgres")); err == nil && !info.IsDir() {
			found = append(found, dir)
		}
	}
	return found
}

// inspect asks the postgres in dir for its version. A folder without initdb is that of a client's package. If postgres
// is a link, as in /usr/local/bin, the installation is where it leads: there are psql and the others.
func inspect(ctx context.Context, dir string) (Binaries, error) {
	if info, err := os.Lstat(filepath.Join(dir, "postgres")); err == nil && info.Mode().Type() == os.ModeSymlink {
		if program, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres")); err == nil {
			dir = filepath.Dir(program)
		}
	}
	for _, name := range []string{"initdb", "postgres"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return Binaries{}, err
		}
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version")
	cmd.Env = cleanEnv()
	out, err := cmd.Output()
	if err != nil {
		return Binaries{}, fmt.Errorf("run postgres --version: %w", err)
	}
	found := versionLine.FindStringSubmatch(strings.TrimSpace(string(out)))
	if found == nil {
		return Binaries{}, fmt.Errorf("run postgres --version: unknown answer %q", out)
	}
	major, err := strconv.Atoi(found[2])
	if err != nil {
		return Binaries{}, fmt.Errorf("read version %q: %w", found[1], err)
	}
	return Binaries{Dir: dir, Major: major, Version: found[1]}, nil
}

// Tool returns the path of a client program such as psql or pg_dump: the one beside the server, or else the one in
// PATH. The downloaded build has none. It returns an *Error whose hint is the command that installs it.
func (b Binaries) Tool(name string) (string, error) {
	beside := filepath.Join(b.Dir, name)
	if info, err := os.Stat(beside); err == nil && !info.IsDir() {
		return beside, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", &Error{
			Op:   "find " + name,
			Err:  fmt.Errorf("it is neither in %s nor in PATH", b.Dir),
			Hint: installCommand("postgresql-client"),
		}
	}
	return path, nil
}

// noBinaries says what is missing and how to get it.
func noBinaries(o Options, want int, seen []string) error {
	if want != 0 {
		return mismatch(o, want, seen)
	}
	cause := "none is installed"
	if len(seen) > 0 {
		cause = fmt.Sprintf("found only Postgres %s, %d or later is needed", strings.Join(seen, ", "), MinMajor)
	}
	return &Error{
		Op:   "find Postgres",
		Err:  errors.New(cause),
		Hint: installCommand("postgresql") + ", or name its folder with --pg-bin",
	}
}

// mismatch refuses a cluster of another major version, naming both and the ways out. Nothing is touched: an empty
// cluster beside the old one would look like lost data.
func mismatch(o Options, want int, seen []string) error {
	found := "no other Postgres"
	if len(seen) > 0 {
		found = "only Postgres " + strings.Join(seen, ", ")
	}
	return &Error{
		Op:  "open data directory " + quote(o.DataDir),
		Err: fmt.Errorf("it holds a cluster of Postgres %d, but there is %s", want, found),
		Hint: fmt.Sprintf("install Postgres %d or name its folder with --pg-bin; to move the data to another version use"+
			" pg_upgrade, or pg_dump and pg_restore; to begin anew choose another --data-dir (the old data stay)", want),
	}
}

// installCommand returns the command of this system's package manager for a package, by its Debian name.
func installCommand(debian string) string {
	client := debian != "postgresql"
	for _, manager := range []struct{ name, server, client string }{
		{"apt-get", "apt-get install postgresql", "apt-get install postgresql-client"},
		{"dnf", "dnf install postgresql-server", "dnf install postgresql"},
		{"apk", "apk add postgresql", "apk add postgresql-client"},
		{"zypper", "zypper install postgresql-server", "zypper install postgresql"},
		{"pacman", "pacman -S postgresql", "pacman -S postgresql-libs"},
		{"brew", "brew install postgresql@17", "brew install libpq"},
	} {
		if _, err := exec.LookPath(manager.name); err != nil {
			continue
		}
		if client {
			return manager.client
		}
		return manager.server
	}
	return "install Postgres " + strconv.Itoa(MinMajor) + " or later with your system's package manager"
}

// cleanEnv is the environment of every process of Postgres: nothing of the caller's but PATH, so that neither PGDATA
// nor a locale changes what they do. With TZ set, initdb needn't compare hundreds of time zones with the system's.
func cleanEnv() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
}
