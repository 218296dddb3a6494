package worker_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// chaosDepth is how many waiting jobs the sender of TestChaos keeps up.
const chaosDepth = 300

// feeder sends jobs, in every way there is, to a server that may be gone. It numbers them in their
// args and remembers what it was told.
type feeder struct {
	l     *ledger.Ledger
	pool  *pgxpool.Pool
	rand  *rand.Rand
	storm *atomic.Bool // send without a pause, commit by commit: the server is about to be killed

	next  int
	sends []sending

	acknowledged, carriedOut, notCarriedOut, rolledBack int // by judge
}

// sending is one batch of jobs: all of them are there, or none.
type sending struct {
	first, n int
	ids      []uuid.UUID // told; nil where nothing was
	err      error       // not nil: the outcome is unknown to the sender
	nothing  bool        // the error came before the commit
}

// feed sends until ctx is done.
func (f *feeder) feed(ctx context.Context) {
	for ctx.Err() == nil {
		var waiting int
		err := f.pool.QueryRow(ctx, `SELECT count(*) FROM jobledger.job_queue`).Scan(&waiting)
		switch {
		case err == nil && f.storm.Load():
			f.send(ctx, inTx)
		case err == nil && waiting < chaosDepth:
			f.send(ctx, f.rand.IntN(ways))
		default:
			pause(ctx)
		}
	}
}

// The ways of sending.
const (
	single = iota
	batched
	inTx  // in a transaction of the sender
	keyed // again and again until it is told, as one with a key may
	ways
)

// send sends one batch.
func (f *feeder) send(ctx context.Context, way int) {
	s := sending{first: f.next, n: 1}
	if way != single && way != keyed {
		s.n += f.rand.IntN(30)
	}
	f.next += s.n
	batch := make([]ledger.EnqueueParams, s.n)
	for i := range batch {
		batch[i] = ledger.EnqueueParams{
			Kind: chaosKinds[f.rand.IntN(len(chaosKinds))], Args: chaosArgs{N: s.first + i},
			Policy: domain.Policy{RestartLimit: 1000, MaxAttempts: 1000, BackoffBase: time.Millisecond, BackoffCap: 10 * time.Millisecond},
		}
	}
	var made []ledger.Enqueued
	switch way {
	case single, batched:
		made, s.err = f.l.EnqueueMany(ctx, batch)
	case inTx:
		s.nothing = true
		s.err = pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) (err error) {
			made, err = f.l.EnqueueTx(ctx, tx, batch...)
			s.nothing = err != nil
			return err
		})
	case keyed:
		batch[0].Key = fmt.Sprint("chaos-", s.first)
		for {
			if made, s.err = f.l.EnqueueMany(ctx, batch); s.err == nil || ctx.Err() != nil {
				break
			}
			pause(ctx)
		}
	}
	if s.err == nil {
		for _, e := range made {
			s.ids = append(s.ids, e.JobID)
		}
	}
	f.sends = append(f.sends, s)
}

// pause waits a moment: nobody tells when a server is back.
func pause(ctx context.Context) {
	timer := time.NewTimer(10 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// judge compares what the sender was told with what is stored, by number.
func (f *feeder) judge(t *testing.T, stored map[int][]uuid.UUID) {
	t.Helper()
	for _, s := range f.sends {
		there := 0
		for i := range s.n {
			ids := stored[s.first+i]
			if len(ids) > 1 {
				t.Errorf("job number %d is there %d times", s.first+i, len(ids))
			}
			there += len(ids)
			if s.err == nil && (len(ids) != 1 || ids[0] != s.ids[i]) {
				t.Errorf("job number %d was acknowledged as %s, stored is %v", s.first+i, s.ids[i], ids)
			}
		}
		switch {
		case s.err == nil:
			f.acknowledged++
		case s.nothing && there > 0:
			t.Errorf("the batch from number %d is there and was never committed", s.first)
		case s.nothing:
			f.rolledBack++
		case there == s.n:
			f.carriedOut++
		case there == 0:
			f.notCarriedOut++
		default:
			t.Errorf("of the batch from number %d, %d of %d jobs are there", s.first, there, s.n)
		}
	}
}

// generationOf names one run of a job.
type generationOf struct {
	id         uuid.UUID
	generation int
}

// sayings are what the workers of TestChaos have said.
type sayings struct {
	listeners *sync.WaitGroup
	mu        *sync.Mutex
	ran       map[generationOf]int
	committed map[generationOf]bool
	repeated  int // outcomes whose first report had got through without its answer
}

func newSayings() sayings {
	return sayings{listeners: &sync.WaitGroup{}, mu: &sync.Mutex{}, ran: map[generationOf]int{}, committed: map[generationOf]bool{}}
}

// listen takes down what a worker says until its end.
func (s *sayings) listen(p *child) {
	s.listeners.Go(func() {
		for line := range p.lines {
			s.note(line)
		}
	})
}

func (s *sayings) note(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var g generationOf
	var id string
	word, rest, _ := strings.Cut(line, " ")
	if word == "stats" {
		var repeated int
		if _, err := fmt.Sscan(rest, &repeated); err == nil {
			s.repeated += repeated
		}
		return
	}
	_, err := fmt.Sscan(rest, &id, &g.generation)
	if err == nil {
		g.id, err = uuid.Parse(id)
	}
	if err != nil {
		return // a kill has cut the line
	}
	switch word {
	case "run":
		s.ran[g]++
	case "committed":
		s.committed[g] = true
	}
}

// runs is how many runs have begun.
func (s *sayings) runs() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ran)
}

// wait waits until all workers have said everything.
func (s *sayings) wait() { s.listeners.Wait() }
