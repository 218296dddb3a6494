package postgres_test

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// node does what a process of release 1 does all day, until stop is closed: it enqueues, claims, pings and completes, and keeps
// one job for all of the time.
func (b *binary) node(ctx context.Context, tag string, stop <-chan struct{}) (rounds int, err error) {
	kept, err := b.take(ctx, tag)
	for err == nil {
		select {
		case <-stop:
			return rounds, nil
		default:
		}
		var job held
		if err = b.expect(ctx, "pinged", "ping", tag, kept.jobs, kept.generations, "30 seconds", nil, nil); err != nil {
			break
		}
		if job, err = b.take(ctx, tag); err != nil {
			break
		}
		err = b.expect(ctx, "completed", "complete", tag, job.jobs, job.generations, []string{"1"}, []uuid.UUID{uuid.New()})
		rounds++
	}
	return rounds, err
}

// held is one lease as the statements take it.
type held struct {
	jobs        []uuid.UUID
	generations []int
}

// take enqueues a job and claims it.
func (b *binary) take(ctx context.Context, tag string) (h held, err error) {
	id := []uuid.UUID{uuid.Must(uuid.NewV7())}
	if err := b.expect(ctx, "enqueued", "enqueue", []string{"old"}, []string{`{}`}, []string{tag}, []int{0}, nil, nil, []int{1}, nil, nil, nil,
		[]string{"api"}, nil, nil, nil, nil, id, []uuid.UUID{uuid.New()}, "release 1", true); err != nil {
		return h, err
	}
	rows, err := b.conn.Query(ctx, b.statements["claim"], tag, []string{tag}, 1, "30 seconds")
	if err != nil {
		return h, err
	}
	claims, err := pgx.CollectRows(rows, pgx.RowToMap)
	if err != nil || len(claims) != 1 || claims[0]["job_id"] != [16]byte(id[0]) {
		return h, fmt.Errorf("claimed %v, %w, want job %s", claims, err, id[0])
	}
	return held{jobs: id, generations: []int{int(claims[0]["generation"].(int32))}}, nil
}

// expect sends a verb about one job; the event tells what became of it.
func (b *binary) expect(ctx context.Context, event, name string, args ...any) error {
	rows, err := b.conn.Query(ctx, b.statements[name], args...)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	answers, err := pgx.CollectRows(rows, pgx.RowToMap)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if len(answers) != 1 || answers[0]["event"] != event {
		return fmt.Errorf("%s answered %v, want %s", name, answers, event)
	}
	return nil
}
