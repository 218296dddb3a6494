package embedded

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxLog is how large a log may grow, in bytes, before it becomes the .1 of a new one. Together they stay below twice
// that, plus what is written between two looks.
const maxLog = 10 << 20

// openLog opens a log for appending, and begins a new one where the last has grown too large.
func (l layout) openLog(path string) (*os.File, error) {
	if info, err := os.Lstat(path); err == nil && info.Size() > maxLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, err
		}
	}
	log, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := l.give(path); err != nil {
		log.Close()
		return nil, err
	}
	return log, nil
}

// trimLog bounds a log that a process has open: it is copied and then cut, because the server would go on writing to a
// renamed file. It appends, so its next line is the first. Lines written between the two steps are lost.
func trimLog(path string) error {
	info, err := os.Lstat(path)
	if err != nil || info.Size() <= maxLog {
		return err
	}
	from, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(path+".1", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer to.Close()
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	return from.Truncate(0)
}

func logSize(log *os.File) int64 {
	info, err := log.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}
