package embedded

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"
)

// smallDisk returns a data directory on a disk of its own, of so many bytes.
func smallDisk(t *testing.T, size string) (disk, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a disk")
	}
	disk = dataDir(t)
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size="+size+",mode=0755"); err != nil {
		t.Skipf("no disk can be mounted here: %v", err)
	}
	dir = filepath.Join(disk, "data")
	t.Cleanup(func() {
		if _, err := Stop(bounded(t), testOptions(dir)); err != nil {
			t.Errorf("stop the server: %v", err)
		}
		// A process that has just ended may hold the disk for a moment yet.
		err := poll(bounded(t), lockPoll, func() (bool, error) {
			err := unix.Unmount(disk, 0)
			return !errors.Is(err, unix.EBUSY), err
		})
		if err != nil && !errors.Is(err, unix.EBUSY) {
			t.Errorf("unmount: %v", err)
		}
	})
	return disk, dir
}

// fill takes all the room that is left on the disk; free gives it back.
func fill(t *testing.T, disk string) (free func()) {
	t.Helper()
	path := filepath.Join(disk, "filler")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := io.Copy(file, zeros{}); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the disk: %v", err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// diskOptions are those of production: files of shared memory on a full disk would be a fault of the test's own.
func diskOptions(dir string) Options { return Options{DataDir: dir, UnsafeNoFsync: true} }

func TestFullDisk(t *testing.T) {
	t.Parallel()
	const hint = "make room"

	t.Run("at_initdb", func(t *testing.T) {
		for _, size := range []string{"8m", "20m", "30m"} { // it fails in another part of its work each time
			_, dir := smallDisk(t, size)
			_, err := Acquire(bounded(t), diskOptions(dir))
			refused(t, err, "run initdb in ", hint)
			if got := names(t, dir); got != "run" {
				t.Errorf("on a disk of %s it has left %s", size, got)
			}
		}
	})

	t.Run("before_all", func(t *testing.T) {
		disk, dir := smallDisk(t, "200m")
		free := fill(t, disk)
		_, err := Acquire(bounded(t), diskOptions(dir))
		refused(t, err, "no space left on device", hint)
		free()
		acquire(t, diskOptions(dir))
	})

	t.Run("at_start_and_at_work", func(t *testing.T) {
		disk, dir := smallDisk(t, "200m")
		lease := acquire(t, diskOptions(dir))
		execute(t, lease.URL(), `CREATE TABLE kept AS SELECT 'still here' AS word`)
		execute(t, lease.URL(), `CREATE TABLE grows (word text)`)
		lease.Close()
		waitGone(t, dir)

		free := fill(t, disk)
		before := names(t, dir)
		_, err := Acquire(bounded(t), diskOptions(dir))
		refused(t, err, "o space left on device", hint)
		if after := names(t, dir); after != before {
			t.Errorf("there was %s, now there is %s", before, after)
		}
		free()

		lease = acquire(t, diskOptions(dir))
		conn, err := pgx.Connect(bounded(t), lease.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(bounded(t))
		free = fill(t, disk)
		for err == nil {
			_, err = conn.Exec(bounded(t), `INSERT INTO grows SELECT repeat('x', 1000) FROM generate_series(1, 10000)`)
		}
		if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && refusal.Code != pgerrcode.DiskFull && !pgerrcode.IsOperatorIntervention(refusal.Code) {
			t.Errorf("on a full disk it says %v", err)
		}
		free()
		// With room it goes on, be it after a restart of its own or of the next client.
		again := acquire(t, diskOptions(dir))
		execute(t, again.URL(), `INSERT INTO grows VALUES ('more')`)
		if got := query(t, again.URL(), `SELECT word || (SELECT count(*) FROM grows WHERE word = 'more') FROM kept`); got != "still here1" {
			t.Errorf("the data: %q", got)
		}
	})
}

func TestReadOnlyDisk(t *testing.T) {
	t.Parallel()
	disk, dir := smallDisk(t, "200m")
	stopped(t, dir)
	if err := unix.Mount("", disk, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Skipf("no disk can be made read-only here: %v", err)
	}
	_, err := Acquire(bounded(t), testOptions(dir))
	refused(t, err, "read-only file system", "make the file system writable")
	_, err = Acquire(bounded(t), testOptions(filepath.Join(disk, "new")))
	refused(t, err, "read-only file system", "make the file system writable")
	if status, err := ReadStatus(testOptions(dir)); err != nil || status.Running || !strings.HasPrefix(status.ClusterDir, dir) {
		t.Errorf("status: %+v, %v", status, err)
	}
	if err := unix.Mount("", disk, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	kept(t, dir)
}
