package executor

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestGuardProtocol(t *testing.T) {
	t.Parallel()
	for in, want := range map[string][]int{
		"":                       nil,
		"+17\n":                  {17},
		"+17\n-17\n":             nil,
		"+17\n+18\n-17\n+19\n":   {18, 19},
		"+17\n+17\n-17\n":        nil,
		"-5\n+17\n":              {17},
		"+17\n+":                 {17},
		"+17\n\n+0\n-0\nnoise\n": {17},
	} {
		var killed []int
		guard(strings.NewReader(in), func(group int) { killed = append(killed, group) })
		slices.Sort(killed)
		if fmt.Sprint(killed) != fmt.Sprint(want) {
			t.Errorf("%q: killed %v, want %v", in, killed, want)
		}
	}
}

// A guard that was killed is replaced, and the next one knows of the groups that the last one knew.
func TestGuardIsReplaced(t *testing.T) {
	t.Parallel()
	g, err := StartGuard()
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	const group = 1 << 30 // no process has such an id
	g.add(group)
	first := g.cmd.Process.Pid
	if err := g.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := g.cmd.Wait(); err == nil {
		t.Fatal("the guard has ended by itself")
	}
	g.add(group + 1)
	if g.cmd == nil || g.cmd.Process.Pid == first {
		t.Fatal("the guard was not replaced")
	}
	if len(g.groups) != 2 {
		t.Errorf("it knows of %v", g.groups)
	}
}

// A command whose guard could not hear of it any more, because we died in between, does nothing.
func TestGateThatIsNotOpened(t *testing.T) {
	t.Parallel()
	cmd, err := gated(Command{Path: "echo", Args: []string{"was run"}})
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w.Close()
	cmd.ExtraFiles = []*os.File{r}
	if out, err := cmd.Output(); err == nil || len(out) > 0 {
		t.Errorf("it printed %q and ended with %v", out, err)
	}
}
