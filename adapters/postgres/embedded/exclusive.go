package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lookTimeout is how long a lock must be held to be more than a look at it.
const lookTimeout = 500 * time.Millisecond

// Server is a server that belongs to this process alone and ends with it, for tests that break it on purpose. It can be
// stopped, killed and restarted; nobody else can share its data directory until Close.
type Server struct {
	launch launch
	life   *fileLock

	mu sync.Mutex
	pm *postmaster // nil while it is down
}

// StartExclusive starts the server of the data directory for this process alone, creating the cluster if need be. When
// the process ends, however it does, the kernel interrupts the server (on Linux). It returns an *Error as Acquire does,
// and one if the directory is in use.
func StartExclusive(ctx context.Context, o Options) (*Server, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, acquireTimeout, fmt.Errorf("no end within %s", acquireTimeout))
	defer cancel()
	l := layout{root: o.DataDir}
	if err := l.create(); err != nil {
		return nil, err
	}
	start, err := takeLock(ctx, l.startLock(), unix.LOCK_EX)
	if err != nil {
		return nil, l.explain("wait for another process that starts or stops the server", err)
	}
	defer start.close()
	// Whoever only looks has the lock for a moment.
	wait, giveUp := context.WithTimeoutCause(ctx, lookTimeout, errors.New("a server runs in it"))
	defer giveUp()
	life, err := takeLock(wait, l.supervisorLock(), unix.LOCK_EX)
	if err != nil {
		return nil, &Error{
			Op:   "take data directory " + quote(l.root) + " for one process",
			Err:  err,
			Hint: "choose another --data-dir, or stop that server first",
		}
	}
	s := &Server{life: life}
	if err := s.begin(ctx, l, o); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Server) begin(ctx context.Context, l layout, o Options) error {
	b, who, err := l.prepare(ctx, o)
	if err != nil {
		return err
	}
	s.launch = launch{layout: l, binaries: b, account: who, options: o}
	if err := s.Restart(ctx); err != nil {
		return err
	}
	return s.pm.createDatabase(ctx)
}

// Restart starts the server, stopping it first if it runs. After Kill it recovers from its log, as after a crash.
func (s *Server) Restart(ctx context.Context) error {
	s.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	pm, err := s.launch.start(ctx)
	if err != nil {
		return err
	}
	s.pm = pm
	return s.launch.layout.writeState(pm.state(true))
}

// Stop shuts the server down: connections are cut, transactions rolled back, and nothing is left to recover. It does
// nothing if the server is down.
func (s *Server) Stop() { s.down((*postmaster).stop) }

// Kill ends all processes of the server at once by SIGKILL, as a crash would. What was committed is there after
// Restart. It does nothing if the server is down.
func (s *Server) Kill() { s.down((*postmaster).kill) }

func (s *Server) down(how func(*postmaster)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pm == nil {
		return
	}
	how(s.pm)
	s.pm = nil
}

// URL returns the connection URL of the database. It stays the same over restarts.
func (s *Server) URL() string {
	l := s.launch.layout
	state := serverState{SocketDir: l.socketDir(s.launch.account), TCPPort: s.launch.options.TCPPort}
	return state.url(DatabaseName)
}

// Major returns the server's major version.
func (s *Server) Major() int { return s.launch.binaries.Major }

// ServerLog returns the path of the server's log.
func (s *Server) ServerLog() string { return s.launch.layout.serverLog(s.launch.binaries.Major) }

// Close stops the server and gives the data directory free. It may be called more than once.
func (s *Server) Close() error {
	s.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life == nil {
		return nil
	}
	if l := s.launch.layout; l.root != "" {
		os.Remove(l.stateFile())
		if dir := l.socketDir(s.launch.account); filepath.Dir(dir) != l.root {
			os.Remove(dir) // one in /tmp isn't ours to keep
		}
	}
	err := s.life.close()
	s.life = nil
	return err
}
