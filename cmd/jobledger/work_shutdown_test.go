package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// shutdownRoundsEnv is how often TestCase58 stops a worker of 50 jobs, each time with another seed. Default 1.
const shutdownRoundsEnv = "JOBLEDGER_SHUTDOWN_ROUNDS"

// shift is a number of jobs at one worker that is stopped. Each command ends after a time of its own, at first writing
// its exit code into a file: the truth.
type shift struct {
	*bench
	dir  string
	pipe *pipe
	jobs []uuid.UUID
}

// shiftCommand notes that it was asked to stop, unless it is about to end. Run again, it succeeds.
const shiftCommand = `
[ $JOBLEDGER_GENERATION = 1 ] || exit 0
f=%[1]s/$JOBLEDGER_JOB_ID
trap 'echo asked > $f.asked; exit 143' TERM
read -r plan
set -- $(echo "$plan" | tr -d '"')
exec 9> %[2]s
echo started >&9
sleep $1 & wait $!
trap '' TERM
echo $2 > $f.truth
exit $2`

// forever is longer than any test waits, in seconds.
const forever = 600

// newShift enqueues n jobs: a fifth ends at once, a fifth after longest, the others within five seconds. Half of them fail.
func newShift(t *testing.T, n int, seed uint64, longest float64) *shift {
	t.Helper()
	s := &shift{bench: newBench(t), dir: t.TempDir(), pipe: newPipe(t)}
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range n {
		after := 5 * random.Float64()
		switch i % 5 {
		case 0:
			after = 0
		case 1:
			after = longest
		}
		plan := fmt.Sprintf(`"%.3f %d"`, after, i/5%2)
		s.jobs = append(s.jobs, s.enqueue(t, ledger.EnqueueParams{Kind: "run", Policy: once, Args: json.RawMessage(plan)}))
	}
	return s
}

// begin starts its worker and waits until all commands run.
func (s *shift) begin(t *testing.T, more ...string) *process {
	t.Helper()
	var w *process
	s.begun(t, func() { w = s.start(t, s.args(more...)...) })
	return w
}

// begun waits until all commands run that start lets run.
func (s *shift) begun(t *testing.T, start func()) {
	t.Helper()
	start()
	held, err := os.OpenFile(s.pipe.path, os.O_WRONLY, 0) // else it would end when those that run have ended
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for range s.jobs {
		s.pipe.says(t, "started")
	}
}

func (s *shift) args(more ...string) []string {
	return append([]string{"work", "--exec", "run=" + fmt.Sprintf(shiftCommand, s.dir, s.pipe.path), "--poll", "20ms",
		"--concurrency", strconv.Itoa(len(s.jobs)), "--lease", "10m", "--grace", "5s"}, more...)
}

// said is what a command has left in a file.
func (s *shift) said(id uuid.UUID, what string) string {
	text, _ := os.ReadFile(filepath.Join(s.dir, id.String()+"."+what)) // no file, nothing said
	return strings.TrimSpace(string(text))
}

// agrees compares each job with the truth, and with what the worker's log says of its command. It returns how many
// have ended and how many were given back.
func (s *shift) agrees(t *testing.T, log string) (ended, released int) {
	t.Helper()
	for _, id := range s.jobs {
		end := ""
		if m := regexp.MustCompile(`job_id=` + id.String() + ` .*generation=1 .*end="([^"]*)"`).FindStringSubmatch(log); m != nil {
			end = m[1]
		}
		job, truth, asked := s.job(t, id), s.said(id, "truth"), s.said(id, "asked")
		right := false
		switch {
		case job.Outcome == domain.Success:
			right = truth == "0" && end == "exit code 0"
			ended++
		case job.Outcome == domain.Failure:
			right = truth == "1" && end == "exit code 1" && job.Error == "exit code 1" && job.Class == domain.ClassTransient
			ended++
		case job.State == domain.Waiting:
			// A command that got SIGTERM in its last moment may have come to its end in spite of it.
			right = strings.Contains(end, ": stopped by SIG") && job.Attempt == 0 && s.types(t, id) == "enqueued claimed released"
			released++
		}
		if !right {
			t.Errorf("job %s is %s %s, error %.60q; its truth is %q %q and the log says %q", id, job.State, job.Outcome, job.Error, truth, asked, end)
		}
	}
	s.verified(t)
	return ended, released
}

// rest lets another worker do what is left. It doesn't wait for leases.
func (s *shift) rest(t *testing.T) {
	t.Helper()
	s.start(t, s.args("--drain")...).exits(t, 0)
	for _, id := range s.jobs {
		if job := s.job(t, id); job.State != domain.Ended || job.Restarts > 0 {
			t.Errorf("job %s is %s after %d lost leases", id, job.State, job.Restarts)
		}
	}
}

// TestCase58_JobsThatEndDuringTheStop: each that ends before it is cut has its true outcome, the others are given back at
// once, and the exit code tells whether there were any.
func TestCase58_JobsThatEndDuringTheStop(t *testing.T) {
	t.Parallel()
	rounds := 1
	if text := os.Getenv(shutdownRoundsEnv); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	for round := range rounds {
		s := newShift(t, 50, uint64(round), forever)
		w := s.begin(t, "--stop-timeout", "2s")
		w.signal(t, syscall.SIGTERM)
		w.exits(t, exitCut)
		ended, released := s.agrees(t, w.stderr.String())
		t.Logf("seed %d: %d ended, %d given back", round, ended, released)
		if ended < 10 || released < 10 {
			t.Error("there should be at least ten of both")
		}
		s.rest(t)
	}
}

func TestCase58_WaysToStop(t *testing.T) {
	t.Parallel()
	t.Run("nothing_is_cut", func(t *testing.T) {
		t.Parallel()
		s := newShift(t, 10, 1, 5)
		w := s.begin(t, "--stop-timeout", "1h")
		w.signal(t, syscall.SIGTERM)
		w.exits(t, 0)
		if ended, _ := s.agrees(t, w.stderr.String()); ended != 10 {
			t.Errorf("%d have ended", ended)
		}
	})
	t.Run("second_signal", func(t *testing.T) {
		t.Parallel()
		s := newShift(t, 15, 2, forever)
		w := s.begin(t, "--stop-timeout", "1h")
		w.signal(t, syscall.SIGTERM)
		s.seen(t, ledger.Stopping)
		w.signal(t, syscall.SIGINT)
		w.exits(t, exitCut)
		if _, released := s.agrees(t, w.stderr.String()); released < 3 {
			t.Errorf("%d were given back", released)
		}
		s.rest(t)
	})
	t.Run("context_of_the_program_ends", func(t *testing.T) {
		t.Parallel()
		s := newShift(t, 15, 3, forever)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var stdout, stderr bytes.Buffer
		code := make(chan int, 1)
		s.begun(t, func() {
			go func() {
				code <- run(ctx, s.args("--stop-timeout", "1s", "--database-url", s.db.URL), strings.NewReader(""), &stdout, &stderr)
			}()
		})
		cancel()
		if got := <-code; got != exitCut {
			t.Errorf("exit code %d, want %d", got, exitCut)
		}
		s.agrees(t, stderr.String())
		s.rest(t)
	})
	t.Run("slow_database", func(t *testing.T) {
		t.Parallel()
		s := newShift(t, 15, 4, forever)
		proxy := pgtest.NewProxy(t, s.db.URL)
		w := s.begin(t, "--stop-timeout", "1s", "--database-url", proxy.URL)
		proxy.SetDelay(500 * time.Millisecond)
		w.signal(t, syscall.SIGTERM)
		w.exits(t, exitCut)
		s.agrees(t, w.stderr.String())
		s.rest(t)
	})
	t.Run("database_down_for_a_while", func(t *testing.T) {
		t.Parallel()
		s := newShift(t, 15, 5, forever)
		proxy := pgtest.NewProxy(t, s.db.URL)
		w := s.begin(t, "--stop-timeout", "1s", "--database-url", proxy.URL)
		proxy.Set(pgtest.Closed)
		w.signal(t, syscall.SIGTERM)
		<-proxy.Lost()
		s.pipe.gone(t) // all commands have ended, and none of it could be reported
		proxy.Set(pgtest.Open)
		w.exits(t, exitCut)
		s.agrees(t, w.stderr.String())
		s.rest(t)
	})
	t.Run("database_down_to_the_end", func(t *testing.T) {
		t.Parallel()
		s := newShift(t, 10, 6, forever)
		proxy := pgtest.NewProxy(t, s.db.URL)
		w := s.begin(t, "--stop-timeout", "1s", "--lease", "9s", "--grace", "3s", "--database-url", proxy.URL)
		proxy.Set(pgtest.Closed)
		w.signal(t, syscall.SIGTERM)
		w.exits(t, exitFailed)
		if !strings.Contains(w.stderr.String(), "taken over when their leases end") {
			t.Error("it doesn't say what becomes of its jobs")
		}
		s.start(t, s.args("--drain")...).exits(t, 0)
		for _, id := range s.jobs {
			job, truth := s.job(t, id), s.said(id, "truth")
			// What was reported before is true, and what was not has run again and succeeded.
			if again := job.Generation == 2 && job.Restarts == 1 && job.Outcome == domain.Success; !again &&
				!(job.Generation == 1 && truth == map[domain.Outcome]string{domain.Success: "0", domain.Failure: "1"}[job.Outcome]) {
				t.Errorf("job %s ended with %q, truth %q, generation %d", id, job.Outcome, truth, job.Generation)
			}
		}
		s.verified(t)
	})
}
