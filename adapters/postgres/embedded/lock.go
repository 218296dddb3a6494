package embedded

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockPoll is how often a bounded wait looks at a lock again. The kernel's own wait cannot be canceled.
const lockPoll = 5 * time.Millisecond

// fileLock is an flock on a file. It belongs to the open file, not to the process: a copy of the descriptor in a child
// keeps it, and it is free when the last copy is closed, by whatever end the processes come to.
type fileLock struct {
	file *os.File
}

// openLock opens the file at path, creating it if need be, without locking it. The descriptor is closed on exec. It
// doesn't follow a symbolic link, so that root cannot be made to create files elsewhere.
func openLock(path string) (*fileLock, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	return &fileLock{file: file}, nil
}

// try takes the lock (unix.LOCK_SH or unix.LOCK_EX) if it is free and says whether it did.
func (l *fileLock) try(how int) (bool, error) {
	err := l.flock(how | unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// wait takes the lock as soon as it is free, or returns the context's error.
func (l *fileLock) wait(ctx context.Context, how int) error {
	return poll(ctx, lockPoll, func() (bool, error) { return l.try(how) })
}

// block takes the lock however long it takes; only for a process that has nothing else to do.
func (l *fileLock) block(how int) error { return l.flock(how) }

// unlock frees the lock, also for those who inherited the descriptor.
func (l *fileLock) unlock() error { return l.flock(unix.LOCK_UN) }

// close gives up this copy of the descriptor, and the lock with it if it was the last copy.
func (l *fileLock) close() error { return l.file.Close() }

func (l *fileLock) flock(how int) error {
	for {
		err := unix.Flock(int(l.file.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// locked says whether some process holds the file at path exclusively. It asks for a shared lock, so that two who ask
// at the same time don't take each other for the holder.
func locked(path string) (bool, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	free, err := (&fileLock{file: file}).try(unix.LOCK_SH)
	return !free, err
}

// takeLock opens the file at path and waits for the lock.
func takeLock(ctx context.Context, path string, how int) (*fileLock, error) {
	lock, err := openLock(path)
	if err != nil {
		return nil, err
	}
	if err := lock.wait(ctx, how); err != nil {
		lock.close()
		return nil, err
	}
	return lock, nil
}

// poll calls done at once and then at the given interval until it reports true or an error, or the context ends.
func poll(ctx context.Context, every time.Duration, done func() (bool, error)) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}
