package embedded

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// socketPort is part of the socket's file name where the server has no TCP port.
const socketPort = 5432

// maxSocketPath is how long the path of a Unix socket may be, in bytes, on the strictest system that is served: 107 on
// Linux, 103 on macOS.
const maxSocketPath = 103

// layout names everything in a data directory:
//
//	pg17/            the cluster; the number is its major version
//	pg17.password    the password for TCP, made with the cluster
//	pg17.log         what the server writes; pg17.log.1 is what was before
//	socket/          the server's socket, unless its path would be too long
//	run/             start.lock, clients.lock, supervisor.lock, server.lock, server.json, supervisor.log
type layout struct {
	root string
}

func (l layout) cluster(major int) string  { return filepath.Join(l.root, "pg"+strconv.Itoa(major)) }
func (l layout) password(major int) string { return l.cluster(major) + ".password" }
func (l layout) serverLog(major int) string {
	return l.cluster(major) + ".log"
}
func (l layout) run(name string) string { return filepath.Join(l.root, "run", name) }

func (l layout) startLock() string      { return l.run("start.lock") }
func (l layout) clientsLock() string    { return l.run("clients.lock") }
func (l layout) supervisorLock() string { return l.run("supervisor.lock") }
func (l layout) serverLock() string     { return l.run("server.lock") }
func (l layout) stateFile() string      { return l.run("server.json") }
func (l layout) supervisorLog() string  { return l.run("supervisor.log") }

// socketDir returns the folder of the server's socket: in the data directory, or, where the path of the socket would
// be longer than the system allows, a short one in /tmp that is named after the user and the directory.
func (l layout) socketDir(a account) string {
	dir := filepath.Join(l.root, "socket")
	if len(socketFile(dir, 65535)) <= maxSocketPath {
		return dir
	}
	sum := sha256.Sum256([]byte(l.root))
	return fmt.Sprintf("/tmp/jobledger-%d-%s", a.uid, hex.EncodeToString(sum[:6]))
}

// portOf returns the port that the server is told, and that its socket is named after.
func portOf(tcpPort int) int {
	if tcpPort != 0 {
		return tcpPort
	}
	return socketPort
}

func socketFile(dir string, port int) string {
	return filepath.Join(dir, fmt.Sprintf(".s.PGSQL.%d", port))
}

// create makes the data directory and its run folder where they are missing. Root's are open to be passed through by
// the user that runs the server; a user's are closed to everybody else.
func (l layout) create() error {
	mode := os.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o755
	}
	if err := makeFolders(l.root, mode); err != nil {
		return l.explain("create data directory", err)
	}
	run := l.run("")
	if err := os.Mkdir(run, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return l.explain("create folder "+quote(run), err)
	}
	info, err := os.Lstat(run)
	if err != nil {
		return l.explain("look at folder "+quote(run), err)
	}
	if !info.IsDir() {
		return l.explain("use folder "+quote(run), errors.New("it is not a folder"))
	}
	if err := l.give(run); err != nil {
		return l.explain("hand over folder "+quote(run), err)
	}
	for _, lock := range []string{l.startLock(), l.clientsLock(), l.supervisorLock(), l.serverLock()} {
		file, err := openLock(lock)
		if err != nil {
			return l.explain("open lock", err)
		}
		file.close()
		if err := l.give(lock); err != nil {
			return l.explain("hand over a lock", err)
		}
	}
	return nil
}

// give hands a file that root has made in somebody else's data directory to them, so that they aren't locked out of
// their own server afterwards.
func (l layout) give(path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	owner, err := ownerOf(l.root)
	if err != nil || owner == 0 {
		return err
	}
	return os.Lchown(path, owner, -1)
}

// major returns the major version of the cluster in the data directory, 0 if there is none yet. After an upgrade by
// hand there may be several; the newest counts. A cluster may be a symbolic link to another disk. One that was there before
// and is gone is an error: an empty or an older one in its place would look like lost data.
func (l layout) major() (int, error) {
	entries, err := os.ReadDir(l.root)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, l.explain("read data directory", err)
	}
	newest, logged := 0, 0
	for _, entry := range entries {
		name, isPostgres := strings.CutPrefix(entry.Name(), "pg")
		number, isLog := strings.CutSuffix(name, ".log")
		major, err := strconv.Atoi(number)
		switch {
		case !isPostgres || err != nil:
		case isLog:
			logged = max(logged, major) // written by a server, so its cluster was complete
		default:
			info, err := os.Stat(l.cluster(major))
			if target, linkErr := os.Readlink(l.cluster(major)); err != nil && linkErr == nil {
				err = fmt.Errorf("it is a link to %s, which is not there", target)
			}
			if err != nil {
				return 0, l.damaged(l.cluster(major), err)
			}
			if !info.IsDir() {
				return 0, l.damaged(l.cluster(major), errors.New("it is not a folder"))
			}
			newest = max(newest, major)
		}
	}
	if logged > newest {
		cluster := l.cluster(logged)
		return 0, &Error{
			Op:   "open data directory " + quote(l.root),
			Err:  fmt.Errorf("its cluster %s is gone; the log of its server is still there", filepath.Base(cluster)),
			Hint: "put " + cluster + " back, or mount its disk; if you have removed it on purpose, remove " + l.serverLog(logged) + ", too",
		}
	}
	return newest, nil
}

// owner returns the uid that owns the cluster of this major version, or the data directory if there is none.
func (l layout) owner(major int) (int, error) {
	path := l.root
	if major != 0 {
		path = l.cluster(major)
	}
	owner, err := ownerOf(path)
	if err != nil {
		return 0, l.explain("look at the owner of "+quote(path), err)
	}
	return owner, nil
}

// makeFolders creates dir and its missing parents with this mode, whatever the umask says.
func makeFolders(dir string, mode os.FileMode) error {
	if info, err := os.Stat(dir); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a folder", dir)
		}
		return nil
	}
	if target, err := os.Readlink(dir); err == nil {
		return fmt.Errorf("%s is a link to %s, which is not there: is its disk mounted?", dir, target)
	}
	if parent := filepath.Dir(dir); parent != dir {
		if err := makeFolders(parent, mode); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, mode); err != nil {
		if errors.Is(err, os.ErrExist) {
			return nil
		}
		return err
	}
	return os.Chmod(dir, mode)
}

// serverState is what the supervisor, or the owner of an exclusive server, writes down for others. It is only valid
// while supervisor.lock is held.
type serverState struct {
	SupervisorPID int       `json:"supervisor_pid"`
	ServerPID     int       `json:"server_pid"`
	Major         int       `json:"major"`
	BinDir        string    `json:"bin_dir"`
	SocketDir     string    `json:"socket_dir"`
	TCPPort       int       `json:"tcp_port,omitempty"`
	NoFsync       bool      `json:"no_fsync,omitempty"`
	Exclusive     bool      `json:"exclusive,omitempty"`
	StartedAt     time.Time `json:"started_at"`
}

// readState returns the state, or an error that is os.ErrNotExist as long as nothing has started.
func (l layout) readState() (serverState, error) {
	var state serverState
	body, err := os.ReadFile(l.stateFile())
	if err != nil {
		return state, err
	}
	if err := json.Unmarshal(body, &state); err != nil {
		return state, fmt.Errorf("read %s: %w", l.stateFile(), err)
	}
	return state, nil
}

// writeState replaces the state in one step.
func (l layout) writeState(state serverState) error {
	body, err := json.MarshalIndent(state, "", "  ")
	if err != nil {
		return err
	}
	return replaceFile(l.stateFile(), append(body, '\n'), l.give)
}

// replaceFile writes a file, closed to others, in one step, and waits for the disk. It makes a new one under a name of
// its own, so that root cannot be led through a symbolic link in a folder that somebody else owns. hand says whose it
// is to be.
func replaceFile(path string, body []byte, hand func(path string) error) error {
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".next-")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // nothing is left of that name after the rename
	defer file.Close()
	if _, err := file.Write(body); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	if err := hand(file.Name()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}
