package embedded

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// serviceUsers are the users that root runs the server as, best first: Postgres refuses to run as root.
var serviceUsers = []string{"jobledger", "postgres", "nobody"}

// account is the operating-system user that initdb and postgres run as, and who owns the cluster.
type account struct {
	name string
	uid  int
	gid  int
}

// chooseAccount returns the user for a data directory: whoever calls, or, when that is root, the owner of what is
// there already, or else the first service user that exists. owner is the uid that owns the cluster or the directory.
func chooseAccount(owner int) (account, error) {
	if uid := os.Geteuid(); uid != 0 {
		return lookupAccount(uid)
	}
	if owner != 0 {
		return lookupAccount(owner)
	}
	for _, name := range serviceUsers {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		return newAccount(u)
	}
	return account{}, &Error{
		Op:   "choose a user for Postgres",
		Err:  errors.New("it cannot run as root, and none of the users jobledger, postgres, nobody exists"),
		Hint: "useradd --system --no-create-home jobledger",
	}
}

// lookupAccount returns the user with this uid. initdb and peer authentication need it to have a name.
func lookupAccount(uid int) (account, error) {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return account{}, &Error{
			Op:   fmt.Sprintf("look up user %d", uid),
			Err:  err,
			Hint: "Postgres needs a user with a name: add an entry to /etc/passwd, or run as a user that has one",
		}
	}
	return newAccount(u)
}

func newAccount(u *user.User) (account, error) {
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return account{}, fmt.Errorf("read uid of user %s: %w", u.Username, err)
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return account{}, fmt.Errorf("read gid of user %s: %w", u.Username, err)
	}
	return account{name: u.Username, uid: uid, gid: gid}, nil
}

// foreign says whether processes must change their user to become this account.
func (a account) foreign() bool { return a.uid != os.Geteuid() }

// credential returns what a child process needs to become this account, nil if it is it already. Supplementary groups
// of root are dropped with it.
func (a account) credential() *syscall.Credential {
	if !a.foreign() {
		return nil
	}
	return &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
}

// own gives the file to this account.
func (a account) own(path string) error {
	if !a.foreign() {
		return nil
	}
	return os.Lchown(path, a.uid, a.gid)
}

// blockedAt returns the first folder on the way to path that this account cannot enter, "" if there is none. It goes
// by owner and mode, and only by them; a child process inherits no other rights from root.
func (a account) blockedAt(path string) string {
	var folders []string
	for dir := filepath.Clean(path); ; dir = filepath.Dir(dir) {
		folders = append(folders, dir)
		if dir == filepath.Dir(dir) {
			break
		}
	}
	for _, dir := range slices.Backward(folders) {
		info, err := os.Stat(dir)
		if err != nil {
			return ""
		}
		if info.IsDir() && !a.canEnter(info) {
			return dir
		}
	}
	return ""
}

// canEnter says whether the search bit that applies to this account is set.
func (a account) canEnter(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || a.uid == 0 {
		return true
	}
	switch {
	case int(stat.Uid) == a.uid:
		return info.Mode().Perm()&0o100 != 0
	case int(stat.Gid) == a.gid:
		return info.Mode().Perm()&0o010 != 0
	default:
		return info.Mode().Perm()&0o001 != 0
	}
}

// ownerOf returns the uid that owns path, or what it links to.
func ownerOf(path string) (int, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("read owner of %s: not known on this system", path)
	}
	return int(stat.Uid), nil
}
