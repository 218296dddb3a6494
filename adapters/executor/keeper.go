package executor

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// keeperEnv makes this executable a keeper; its value is a charge.
	keeperEnv = "JOBLEDGER_EXECUTOR_KEEPER"
	// treePoll is how often a tree that is about to end is looked at, should no signal tell of it.
	treePoll = 20 * time.Millisecond
	// goneTimeout bounds the wait for processes that have got SIGKILL: for so long none of them has ended. Only what
	// hangs in the kernel takes longer, and what runs as a user that we may not signal. goneLongest bounds all of the
	// wait, should they be many on a busy machine, or fork faster than we kill.
	goneTimeout, goneLongest = 2 * time.Second, 20 * time.Second
)

// The keeper's descriptors beside the three standard streams, which it hands on to the command.
const (
	ordersFD = 3 // it reads: one byte for each order, and the end when the worker has gone
	reportFD = 4 // it writes: a report, and then the end
)

// The orders.
const (
	orderStop = 's' // SIGTERM, and SIGKILL after the grace
	orderKill = 'k' // SIGKILL
)

// charge is what a keeper has to know beside the command, which is its own arguments, environment and folder.
type charge struct {
	Grace  time.Duration
	Memory int64  // the limit in bytes that the cgroup gets, 0 for none
	Cgroup string // where to make one, "" for nowhere
}

// report is what a keeper tells when nothing of the command is left.
type report struct {
	NotStarted  string // the system call that did not succeed, and
	Errno       syscall.Errno
	Status      syscall.WaitStatus // of the first process
	Stopped     bool               // it was told to stop, or killed, before it ended by itself
	Killed      bool
	Survived    bool
	OutOfMemory bool
}

// init turns the process into a keeper if it was started as one. It must happen before main, so that every executable
// that links this package can be its own keeper, test binaries included.
func init() {
	text, ok := os.LookupEnv(keeperEnv)
	if !ok {
		return
	}
	// A command that is this executable, too, must not become a keeper.
	_ = os.Unsetenv(keeperEnv)
	runtime.LockOSThread() // the command's death signal is sent when the thread that started it ends
	unix.CloseOnExec(ordersFD)
	unix.CloseOnExec(reportFD)
	var c charge
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		os.Exit(2)
	}
	// Where nobody hears the report any more, nobody misses it.
	_ = json.NewEncoder(os.NewFile(reportFD, "report")).Encode(keep(c, os.Args))
	os.Exit(0)
}

// keeper is the parent of one command: a process of its own, so that what the command leaves behind comes back to it
// and is known as that command's, and so that it is there to kill all of it when the worker is not any more.
type keeper struct {
	charge
	tree   tree
	report report
	kill   *patience // not nil: SIGKILL is sent to whatever is left
}

// patience is how long processes that have got SIGKILL are waited for.
type patience struct{ began, progress time.Time }

func newPatience() *patience {
	now := time.Now()
	return &patience{now, now}
}

// over reports whether it is, after a look that has found something new or not.
func (p *patience) over(progress bool) bool {
	if progress {
		p.progress = time.Now()
	}
	return time.Since(p.progress) > goneTimeout || time.Since(p.began) > goneLongest
}

// keep runs a command until nothing of it is left.
func keep(c charge, args []string) report {
	// Who stops the worker's session or container stops us too; but we are needed until the end. A handler, unlike
	// ignoring them, leaves the command with the default.
	deaf := make(chan os.Signal, 1)
	signal.Notify(deaf, unix.SIGINT, unix.SIGTERM)
	if !signal.Ignored(unix.SIGHUP) {
		signal.Notify(deaf, unix.SIGHUP)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	k := &keeper{charge: c}
	defer k.tree.close()
	if err := k.tree.start(c, args); err != nil {
		k.report.NotStarted = "start"
		k.report.Errno, _ = err.(syscall.Errno)
		return k.report
	}
	k.untilGone(ended, readOrders(os.NewFile(ordersFD, "orders")))
	k.report.Status, k.report.OutOfMemory = k.tree.status, k.tree.outOfMemory()
	return k.report
}

// readOrders turns the pipe into a channel that is closed at its end.
func readOrders(pipe *os.File) <-chan byte {
	orders := make(chan byte)
	go func() {
		defer close(orders)
		for buf := make([]byte, 1); ; {
			if n, err := pipe.Read(buf); n == 0 || err != nil {
				return
			}
			orders <- buf[0]
		}
	}()
	return orders
}

// untilGone waits for the end of the tree and carries out orders. When the first process has ended by itself, what it
// left behind is killed: a command is done when its first process is. Where it was stopped, the others have the rest of
// the grace to clear up in.
func (k *keeper) untilGone(ended <-chan os.Signal, orders <-chan byte) {
	poll := time.NewTicker(treePoll)
	defer poll.Stop()
	var grace <-chan time.Time
	for {
		some := k.tree.reap()
		switch {
		case k.tree.empty:
			return
		case k.tree.ended && !k.report.Stopped && k.kill == nil:
			k.kill = newPatience()
		case k.kill != nil && k.kill.over(some):
			k.report.Survived = true
			return
		}
		if k.kill != nil {
			k.tree.signal(unix.SIGKILL) // again: what was forked meanwhile has not got it
		}
		looks := poll.C
		if k.kill == nil && !k.report.Stopped {
			looks = nil // nothing but the signal is needed, and most commands take long
		}
		select {
		case <-ended:
		case <-looks:
		case order, ok := <-orders:
			if !ok {
				orders = nil
			}
			if ok && order == orderStop {
				if k.stop() {
					grace = time.After(k.Grace)
				}
				continue
			}
			k.cut()
		case <-grace:
			k.cut()
		}
	}
}

// stop sends SIGTERM, unless the first process has ended just now: how it ended is its own doing then.
func (k *keeper) stop() bool {
	k.tree.reap()
	if k.tree.ended || k.report.Stopped || k.kill != nil {
		return false
	}
	k.report.Stopped = true
	k.tree.signal(unix.SIGTERM)
	// What is held by SIGSTOP could not hear of it.
	k.tree.signal(unix.SIGCONT)
	return true
}

// cut ends the grace, or gives none.
func (k *keeper) cut() {
	k.tree.reap()
	if k.kill != nil || k.tree.empty {
		return
	}
	if !k.tree.ended {
		k.report.Stopped = true
	}
	k.report.Killed, k.kill = k.report.Stopped, newPatience()
}

// err is what a report says of a command that could not be started.
func (r report) err(path string) error {
	if r.NotStarted == "" {
		return nil
	}
	return &os.PathError{Op: r.NotStarted, Path: path, Err: r.Errno}
}

// String is for the environment of the keeper.
func (c charge) String() string {
	text, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("jobledger: encode a charge: %v", err)) // its fields always encode
	}
	return string(text)
}
