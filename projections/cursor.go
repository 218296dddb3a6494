package projections

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// cursor reads a server-side cursor page by page, so that memory stays bounded and two of them can
// be merged on one connection and one snapshot.
type cursor[T any] struct {
	tx   pgx.Tx
	name string
	scan pgx.RowToFunc[T]
	buf  []T
	done bool
}

// peek returns the next row without taking it, nil at the end.
func (c *cursor[T]) peek(ctx context.Context) (*T, error) {
	if len(c.buf) == 0 && !c.done {
		rows, err := c.tx.Query(ctx, fmt.Sprintf("FETCH %d FROM %s", page, c.name))
		if err != nil {
			return nil, err
		}
		if c.buf, err = pgx.CollectRows(rows, c.scan); err != nil {
			return nil, err
		}
		c.done = len(c.buf) < page
	}
	if len(c.buf) == 0 {
		return nil, nil
	}
	return &c.buf[0], nil
}

// takeWhile takes rows as long as ok says so.
func (c *cursor[T]) takeWhile(ctx context.Context, ok func(T) bool) ([]T, error) {
	var out []T
	for {
		next, err := c.peek(ctx)
		if err != nil {
			return nil, err
		}
		if next == nil || !ok(*next) {
			return out, nil
		}
		out = append(out, *next)
		c.buf = c.buf[1:]
	}
}
