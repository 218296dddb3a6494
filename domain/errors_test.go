package domain_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jobledger/jobledger/domain"
)

// TestFieldError: a value is shown in part, no character of it cut in two, and its length is told.
func TestFieldError(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		value any
		want  string
	}{
		{"a b", `tag: got "a b", want x`},
		{-5, `tag: got -5, want x`},
		{domain.Described("7 bytes"), `tag: got 7 bytes, want x`},
		{strings.Repeat("ä", 3000), `tag: got "` + strings.Repeat("ä", 40) + `"... (6000 bytes), want x`},
		{"x" + strings.Repeat("ä", 40), `tag: got "x` + strings.Repeat("ä", 39) + `"... (81 bytes), want x`},
		{strings.Repeat("\xff", 100), `tag: got "` + strings.Repeat(`\xff`, 80) + `"... (100 bytes), want x`},
		{domain.OnLostLease("retry"), `tag: got retry, want x`},
	} {
		err := &domain.FieldError{Field: "tag", Value: c.value, Want: "x"}
		var field *domain.FieldError
		if err.Error() != c.want || !errors.As(error(err), &field) {
			t.Errorf("got %s, want %s", err, c.want)
		}
	}
}
