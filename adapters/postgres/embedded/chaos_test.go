package embedded

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
)

// TestChaos lets clients come and go, some of them by SIGKILL and some before they have what they came for, while
// server and supervisor are killed or stopped as soon as there is a new one. Every client that asks gets a server. A
// supervisor that was started by a client which is killed at once once left the next client with two of them; that
// took 1,500 rounds to see, so a longer run (-count) is worth it after a change to the locks.
func TestChaos(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes seconds")
	}
	const clients, rounds = 3, 12
	dir := dataDir(t)
	acquire(t, testOptions(dir)).Close()

	ctx, done := context.WithCancel(bounded(t))
	var all, killer sync.WaitGroup
	for range clients {
		all.Go(func() {
			for range rounds {
				if err := comeAndGo(ctx, t, dir); err != nil {
					t.Error(err)
				}
			}
		})
	}
	killer.Go(func() { killEachServer(ctx, t, dir) })
	all.Wait()
	done()
	killer.Wait()
	waitGone(t, dir)
}

func comeAndGo(ctx context.Context, t *testing.T, dir string) error {
	switch rand.IntN(3) {
	case 0:
		c := spawn(t, "acquire", dir)
		if rand.IntN(2) == 0 {
			if _, err := fmt.Fscan(c.stdout, &c.server, &c.supervisor); err != nil {
				return fmt.Errorf("a client got no server: %w", err)
			}
		}
		c.kill()
		return nil
	default:
		lease, err := Acquire(ctx, testOptions(dir))
		if err != nil {
			return err
		}
		return lease.Close()
	}
}

// killEachServer kills the supervisor, or the server, or stops both, each time that there is a new one; every second
// is left in peace, as a client doesn't try for ever.
func killEachServer(ctx context.Context, t *testing.T, dir string) {
	last := 0
	for turn := 0; ; turn++ {
		var state serverState
		err := poll(ctx, lockPoll, func() (bool, error) {
			var err error
			state, err = layout{root: dir}.readState()
			return err == nil && state.ServerPID != last, nil
		})
		if err != nil {
			return // the clients are done
		}
		last = state.ServerPID
		switch turn % 6 {
		case 0:
			syscall.Kill(state.SupervisorPID, syscall.SIGKILL)
		case 2:
			syscall.Kill(state.ServerPID, syscall.SIGKILL)
		case 4:
			if _, err := Stop(bounded(t), testOptions(dir)); err != nil {
				t.Error(err)
			}
		}
	}
}
