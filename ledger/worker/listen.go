package worker

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"

	"github.com/jobledger/jobledger/ledger"
)

const (
	// A listener that hears nothing, as behind a transaction pooler, is tried again after ... at first and at most.
	deafFirst, deafLongest = time.Minute, 10 * time.Minute
	// A connection that is silent is asked whether it is still there every PingEvery, and at least every ...
	askMost = 30 * time.Second
	// closeListener bounds how long it takes leave of the database.
	closeListener = time.Second
)

// errDeaf: the connection works, and notifications do not come through it.
var errDeaf = errors.New("a notification to itself did not arrive")

// listener hears on a connection of its own that jobs have become due. It is never needed: a worker
// whose listener is deaf, and knows it or not, polls as ever.
type listener struct {
	l       *ledger.Ledger
	url     string        // in place of the pool's; may be empty
	every   time.Duration // how often a connection that is silent is asked whether it is still there
	limit   time.Duration // bounds each step: connecting, the proof, the question
	log     *slog.Logger
	trouble *outages

	// ear counts the connections that were proven to hear and is negative between two of them: who
	// fell asleep under one must not believe in it under the next.
	ear    atomic.Int64
	number atomic.Int64 // by which notifications name the worker, once it has slept

	// woken has a token when there may be something to claim.
	woken chan struct{}
}

func newListener(l *ledger.Ledger, url string, every, limit time.Duration, log *slog.Logger, trouble *outages) *listener {
	return &listener{l: l, url: url, every: every, limit: limit, log: log, trouble: trouble, woken: make(chan struct{}, 1)}
}

// hears returns the number of the connection that it listens on, or 0 if there is none just now.
func (e *listener) hears() int64 { return max(0, e.ear.Load()) }

// connections is how many it has had that heard.
func (e *listener) connections() int64 { return max(e.ear.Load(), -e.ear.Load()) }

// run listens until ctx ends. What breaks is opened again; the worker looks for jobs each time, since
// nobody keeps notifications for those who are not there.
func (e *listener) run(ctx context.Context) {
	pauses := newBackoff()
	later := backoff.NewExponentialBackOff()
	later.InitialInterval, later.MaxInterval = deafFirst, deafLongest
	later.Reset()
	deaf := false
	for ctx.Err() == nil {
		err := e.listen(ctx, func() {
			e.trouble.over(ctx, doesListen)
			pauses.Reset()
			later.Reset()
			if deaf {
				e.log.LogAttrs(ctx, slog.LevelInfo, "wake-ups are on")
			}
			deaf = false
		})
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, errDeaf):
			if !deaf {
				e.log.LogAttrs(ctx, slog.LevelWarn, "wake-ups are off, polling goes on: notifications do not reach this worker, as behind a transaction pooler",
					slog.String("hint", "give it a direct URL: ListenURL in Go, --direct-url on the command line"))
			}
			deaf = true
			e.trouble.over(ctx, doesListen)
			sleep(ctx, later.NextBackOff())
		default:
			e.trouble.failed(ctx, doesListen, err)
			sleep(ctx, pauses.NextBackOff())
		}
	}
}

// listen lives as long as one connection; proven is called when it has been shown to hear.
func (e *listener) listen(ctx context.Context, proven func()) error {
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeListener)
		defer cancel()
		_ = conn.Close(ctx) // nothing more is wanted of it
	}()
	if err := e.prove(ctx, conn); err != nil {
		return err
	}
	proven()
	e.log.LogAttrs(ctx, slog.LevelDebug, "listens for wake-ups")
	e.ear.Store(e.connections() + 1)
	e.look() // for what was notified while nobody listened
	defer func() {
		e.ear.Store(-e.connections())
		e.look() // who sleeps shall take its word back
	}()
	for {
		payload, err := e.wait(ctx, conn)
		if err != nil {
			return err
		}
		e.heard(payload)
	}
}

func (e *listener) connect(ctx context.Context) (*ledger.Listener, error) {
	ctx, cancel := context.WithTimeout(ctx, e.limit)
	defer cancel()
	return e.l.Listen(ctx, e.url)
}

// prove shows that notifications arrive: it has one sent to itself. By the pool and not by the
// connection itself, to which a pooler would hand what its own statement brings about.
func (e *listener) prove(ctx context.Context, conn *ledger.Listener) error {
	limited, cancel := context.WithTimeout(ctx, e.limit)
	defer cancel()
	token := "hear " + uuid.NewString()
	if err := e.l.Notify(limited, token); err != nil {
		return err
	}
	for {
		payload, err := conn.Wait(limited)
		if err == nil && payload == token {
			return nil
		}
		if err == nil {
			continue // for others, or for the look that follows
		}
		if limited.Err() == nil || ctx.Err() != nil {
			return err
		}
		if err := e.ask(ctx, conn); err != nil {
			return err
		}
		return errDeaf
	}
}

// wait returns the next payload. A connection that was silent for a while is asked whether it is still
// there: a link that was cut without a word looks like one on which nothing happens.
func (e *listener) wait(ctx context.Context, conn *ledger.Listener) (string, error) {
	for {
		limited, cancel := context.WithTimeout(ctx, jittered(e.every))
		payload, err := conn.Wait(limited)
		cancel()
		if err == nil {
			return payload, nil
		}
		if limited.Err() == nil || ctx.Err() != nil {
			return "", err
		}
		if err := e.ask(ctx, conn); err != nil {
			return "", err
		}
	}
}

// ask makes a round trip.
func (e *listener) ask(ctx context.Context, conn *ledger.Listener) error {
	ctx, cancel := context.WithTimeout(ctx, e.limit)
	defer cancel()
	return conn.Ping(ctx)
}

// heard acts on a payload: empty, it is meant for all; else it has the numbers of those who are meant.
func (e *listener) heard(payload string) {
	number := strconv.FormatInt(e.number.Load(), 10)
	for name := range strings.SplitSeq(payload, ",") {
		if name == "" || name == number {
			e.look()
		}
	}
}

// look makes the worker look for jobs.
func (e *listener) look() {
	select {
	case e.woken <- struct{}{}:
	default:
	}
}
