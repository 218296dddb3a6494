package executor_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/jobledger/jobledger/adapters/executor"
)

// TestCase54_GrandchildHoldsThePipe: a command's end is that of its first process, whoever holds its pipes, and nothing
// of the reading is left afterwards. It is not parallel, so that it can tell.
func TestCase54_GrandchildHoldsThePipe(t *testing.T) {
	for _, tc := range []struct {
		name, command string
		stop          bool
	}{
		{"first_process_ends", `sleep 600 & echo hi; echo up > $0`, false},
		{"first_process_ends_and_the_other_ignores_SIGTERM", `(trap '' TERM HUP; echo up > $0; sleep 600) & echo hi; read up < $0`, false},
		{"stopped", `sleep 600 & echo hi; echo up > $0; wait`, true},
		{"stopped_and_all_ignore_SIGTERM", `trap '' TERM; (echo hi; echo up > $0; sleep 600) & wait`, true},
		{"stopped_and_only_the_grandchild_holds_it", `(trap '' TERM; echo hi; echo up > $0; exec sleep 600) & exec > /dev/null; wait`, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			var r executor.Result
			if tc.stop {
				r, _ = stopped(t, 50*time.Millisecond, tc.command)
			} else {
				c := shell(tc.command)
				c.Args = append(c.Args, "/dev/null")
				if tc.command[0] == '(' {
					c.Args[2] = fifo(t)
				}
				r = run(t, c)
			}
			if string(r.Stdout) != "hi\n" || r.Success() == tc.stop || r.Survived {
				t.Errorf("%+v", r)
			}
			goleak.VerifyNone(t, before)
		})
	}
}
