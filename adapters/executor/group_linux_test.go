package executor

import "testing"

func TestParseStat(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]struct {
		state byte
		group int
	}{
		"4711 (sh) S 1 4711 4711 0": {'S', 4711},
		"4711 (a) R 5 (b) Z 1 42 9": {'Z', 42}, // a name with brackets and spaces
		"":                          {0, 0},
		"4711 (sh) S":               {0, 0},
	} {
		if state, group := parseStat([]byte(line)); state != want.state || group != want.group {
			t.Errorf("%q is in state %c and group %d, want %c and %d", line, state, group, want.state, want.group)
		}
	}
}
