package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// signals tells of the first signal by the end of a context, and of the second and the third by channels. A command
// that doesn't ask for these dies of the second one.
type signals struct {
	incoming      chan os.Signal
	done          chan struct{}
	second, third chan struct{}
	closing       sync.Once

	mu    sync.Mutex
	more  bool // somebody waits for the second signal
	first bool // there was a first one
}

// signaled is the cause of a context that ended by a signal.
type signaled struct{ signal syscall.Signal }

func (e signaled) Error() string { return "interrupted by " + unix.SignalName(e.signal) }

// exitCode is what shells expect: 128 and the number of the signal.
func (e signaled) exitCode() int { return 128 + int(e.signal) }

// listen returns a context that the first of SIGINT, SIGTERM and SIGHUP ends. SIGHUP stays ignored where it was
// (nohup).
func listen(parent context.Context) (context.Context, *signals) {
	s := &signals{incoming: make(chan os.Signal, 2), done: make(chan struct{}), second: make(chan struct{}), third: make(chan struct{})}
	signal.Notify(s.incoming, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(s.incoming, syscall.SIGHUP)
	}
	ctx, cancel := context.WithCancelCause(parent)
	go func() {
		defer cancel(nil)
		for n := 1; ; n++ {
			select {
			case sig := <-s.incoming:
				switch n {
				case 1:
					cancel(signaled{sig.(syscall.Signal)})
					s.afterFirst()
				case 2:
					close(s.second)
				case 3:
					close(s.third)
					return
				}
			case <-s.done:
				return
			}
		}
	}()
	return ctx, s
}

// afterFirst lets the next signal end the process at once where nobody waits for it.
func (s *signals) afterFirst() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first = true
	if !s.more {
		signal.Stop(s.incoming)
	}
}

// impatient returns the channels that the second and the third signal close. Call it before the work begins.
func (s *signals) impatient() (second, third <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.more = true
	if s.first {
		// The first signal came before: the next is the second all the same.
		signal.Notify(s.incoming, syscall.SIGINT, syscall.SIGTERM)
	}
	return s.second, s.third
}

// outlivePipes keeps a process alive whose reader of logs has gone: writes fail, and that is all. Commands that it
// starts get the signal's default back, which they would not if it were ignored.
func outlivePipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// close gives the signals back to whoever wants them next. It may be called more than once.
func (s *signals) close() {
	s.closing.Do(func() {
		signal.Stop(s.incoming)
		close(s.done)
	})
}
