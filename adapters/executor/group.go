package executor

import (
	"errors"
	"sync"
	"syscall"
	"time"
)

const (
	// groupPoll is how often a group that is about to end is looked at.
	groupPoll = 5 * time.Millisecond
	// goneTimeout bounds the wait for processes that have got SIGKILL. Only what hangs in the kernel takes longer.
	goneTimeout = 2 * time.Second
)

// group is the process group of a command. Its id is the id of the first process, which belongs to nobody else until
// that process has been reaped.
type group struct {
	id    int
	grace time.Duration

	mu       sync.Mutex
	stopped  error     // why, once it got SIGTERM
	deadline time.Time // when it gets SIGKILL
	timer    *time.Timer
	killed   bool
	ended    bool // the first process has ended: signals, and all but deadline, are end's business
}

// stop sends SIGTERM, and SIGKILL when the grace is over. A group whose first process has ended already is left alone.
func (g *group) stop(cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended || g.stopped != nil {
		return
	}
	g.stopped, g.deadline = cause, time.Now().Add(g.grace)
	g.signal(syscall.SIGTERM)
	// A process that is held by SIGSTOP could not hear of it.
	g.signal(syscall.SIGCONT)
	g.timer = time.AfterFunc(g.grace, g.kill)
}

// kill ends a grace.
func (g *group) kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.ended {
		g.killed = true
		g.signal(syscall.SIGKILL)
	}
}

// killNow gives no grace.
func (g *group) killNow() {
	g.mu.Lock()
	if !g.ended && g.stopped == nil {
		g.stopped = ErrKilled
	}
	g.deadline = time.Now()
	g.mu.Unlock()
	g.kill()
}

// end kills what is left when the first process has ended but is not yet reaped. Where it was stopped, the others have
// the rest of the grace to clear up in; where it ended by itself, they have not: a command is done when its first
// process is.
func (g *group) end() (stopped error, killed bool) {
	g.mu.Lock()
	g.ended = true
	if g.timer != nil {
		g.timer.Stop()
	}
	g.mu.Unlock()
	for g.stopped != nil && len(members(g.id)) > 0 {
		rest := g.rest()
		if rest <= 0 {
			g.killed = true
			break
		}
		time.Sleep(min(rest, groupPoll))
	}
	g.signal(syscall.SIGKILL)
	return g.stopped, g.killed
}

// rest is what is left of the grace.
func (g *group) rest() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Until(g.deadline)
}

// gone waits, once the first process has been reaped, until the last of the group is gone.
func (g *group) gone() bool {
	for deadline := time.Now().Add(goneTimeout); ; time.Sleep(groupPoll) {
		// Signal 0 disturbs nobody, should the id be in use again. It finds the dead too, as long as nobody has
		// reaped them; in some containers nobody ever does.
		if err := syscall.Kill(-g.id, 0); errors.Is(err, syscall.ESRCH) || len(members(g.id)) == 0 {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// signal sends s to every process of the group. There may be none left, and that is no error.
func (g *group) signal(s syscall.Signal) { _ = syscall.Kill(-g.id, s) }
