package embedded

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// initTimeout bounds initdb, which takes about a second on a quiet machine.
const initTimeout = 3 * time.Minute

// settingsFile holds our defaults inside the cluster. It is included at the end of postgresql.conf and written anew at
// each start, so that a newer jobledger brings newer defaults; what ALTER SYSTEM says overrules it.
const settingsFile = "jobledger.conf"

const settings = `# Written by jobledger at each start. To change a setting: ALTER SYSTEM SET name = value, then restart.
max_connections = 200
shared_buffers = 256MB
max_wal_size = 4GB
min_wal_size = 256MB
checkpoint_timeout = 15min
fsync = on
full_page_writes = on
synchronous_commit = on
timezone = 'UTC'
log_timezone = 'UTC'
log_line_prefix = '%m [%p] %a '
log_lock_waits = on
# Compiling a plan takes longer than any of our statements.
jit = off
`

// identMap maps system users to the database user in pg_ident.conf.
const identMap = "jobledger"

// createCluster makes the cluster under a temporary name and renames it, so that one with the final name is complete.
// The caller holds start.lock.
func (l layout) createCluster(ctx context.Context, b Binaries, a account, noFsync bool) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, initTimeout, fmt.Errorf("no end within %s", initTimeout))
	defer cancel()
	// What a killed process left behind is nobody's now.
	leftovers, _ := filepath.Glob(l.cluster(b.Major) + ".init-*")
	for _, leftover := range leftovers {
		os.RemoveAll(leftover)
	}
	work, err := os.MkdirTemp(l.root, filepath.Base(l.cluster(b.Major))+".init-")
	if err != nil {
		return l.explain("create a cluster", err)
	}
	defer os.RemoveAll(work)
	if err := a.own(work); err != nil {
		return l.explain("create a cluster", err)
	}
	if err := l.writePassword(b.Major, a); err != nil {
		return l.explain("write the password", err)
	}
	defer func() {
		if err != nil {
			os.Remove(l.password(b.Major))
		}
	}()
	if err := l.runInitdb(ctx, b, a, work, noFsync); err != nil {
		return err
	}
	if err := configure(work, a); err != nil {
		return l.explain("write the server's configuration", err)
	}
	if err := os.Rename(work, l.cluster(b.Major)); err != nil {
		return l.explain("put the new cluster in its place", err)
	}
	return syncFolder(l.root)
}

// runInitdb fills the folder. C is the only locale whose order never changes with an update of the system.
func (l layout) runInitdb(ctx context.Context, b Binaries, a account, work string, noFsync bool) error {
	args := []string{
		"-D", work, "-U", UserName, "--encoding=UTF8", "--locale=C", "--data-checksums",
		"--auth-local=peer", "--auth-host=scram-sha-256", "--pwfile=" + l.password(b.Major), "--no-instructions",
	}
	if noFsync {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(b.Dir, "initdb"), args...)
	cmd.Dir = work
	cmd.Env = cleanEnv()
	cmd.SysProcAttr = processAttributes(a)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = stopGrace // initdb has children that write there, too
	err := onOwnThread(cmd.Run)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return l.explain("run initdb", context.Cause(ctx))
	case errors.Is(err, os.ErrPermission):
		return l.unreachable(b, a, work, err)
	default:
		complaint := complaintOf(out.Bytes())
		hint := "see that the disk has room and that user {user} may write there, or choose another --data-dir"
		return &Error{Op: "run initdb in " + quote(l.root), Err: fmt.Errorf("%w: %s", err, complaint), Hint: l.hintFor(complaint, b.Major, a.name, hint)}
	}
}

// unreachable names the folder that keeps the server's user away from its data or its programs.
func (l layout) unreachable(b Binaries, a account, path string, cause error) error {
	op := fmt.Sprintf("start Postgres as user %s", a.name)
	if folder := a.blockedAt(filepath.Dir(path)); folder != "" {
		return &Error{
			Op:   op,
			Err:  fmt.Errorf("it cannot enter folder %q, above the data directory %q", folder, l.root),
			Hint: "choose a folder that every user can enter with --data-dir, for example /var/lib/jobledger, or chmod o+x " + folder,
		}
	}
	return &Error{Op: op, Err: cause, Hint: fmt.Sprintf("let user %s enter %s and run %s", a.name, l.root, b.Dir)}
}

// configure says who may connect and includes our settings.
func configure(cluster string, a account) error {
	access := strings.Join([]string{
		"# Written by jobledger when the cluster was created.",
		"local all all peer map=" + identMap,
		"host all all 127.0.0.1/32 scram-sha-256",
		"host all all ::1/128 scram-sha-256",
		"local replication all peer map=" + identMap,
		"",
	}, "\n")
	users := "# Written by jobledger: map, system user, database user.\n"
	for _, name := range []string{"root", a.name} {
		users += fmt.Sprintf("%s %q %s\n", identMap, name, UserName)
	}
	for name, body := range map[string]string{"pg_hba.conf": access, "pg_ident.conf": users, settingsFile: settings} {
		if err := replaceFile(filepath.Join(cluster, name), []byte(body), a.own); err != nil {
			return err
		}
	}
	main := filepath.Join(cluster, "postgresql.conf")
	body, err := os.ReadFile(main)
	if err != nil {
		return err
	}
	return replaceFile(main, append(body, "\ninclude = '"+settingsFile+"'\n"...), a.own)
}

// refreshSettings brings our defaults up to date, before each start.
func refreshSettings(cluster string, a account) error {
	path := filepath.Join(cluster, settingsFile)
	if body, err := os.ReadFile(path); err == nil && string(body) == settings {
		return nil
	}
	return replaceFile(path, []byte(settings), a.own)
}

// writePassword makes a new password for a new cluster.
func (l layout) writePassword(major int, a account) error {
	return replaceFile(l.password(major), []byte(rand.Text()+"\n"), a.own)
}

// syncFolder makes a rename in this folder durable.
func syncFolder(dir string) error {
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}
