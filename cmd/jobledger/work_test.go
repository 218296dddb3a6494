package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
)

// once lets a failure be final.
var once = domain.Policy{MaxAttempts: 1}

// workCase is a command, and how its job is to end.
type workCase struct {
	kind, command string
	args          string
	outcome       domain.Outcome
	class         domain.Class
	reason        string
	result        string // of a success
	says          string // in the error of a failure
}

// workCases runs the commands, all in one worker that drains, and looks how their jobs have ended.
func (b *bench) workCases(t *testing.T, cases []workCase, flags ...string) *process {
	t.Helper()
	ids := map[string]uuid.UUID{}
	args := []string{"work", "--drain", "--json", "--poll", "20ms"}
	for _, tc := range cases {
		p := ledger.EnqueueParams{Kind: tc.kind, Policy: once}
		if tc.args != "" {
			p.Args = json.RawMessage(tc.args)
		}
		ids[tc.kind] = b.enqueue(t, p)
		args = append(args, "--exec", tc.kind+"="+tc.command)
	}
	worker := b.start(t, append(args, flags...)...)
	worker.exits(t, 0)
	for _, tc := range cases {
		t.Run(tc.kind, func(t *testing.T) {
			job := b.job(t, ids[tc.kind])
			if job.Outcome != tc.outcome || job.Class != tc.class || job.Reason != tc.reason {
				t.Errorf("ended with %s, class %q, reason %q (%s)", job.Outcome, job.Class, job.Reason, job.Error)
			}
			if string(job.Result) != tc.result {
				t.Errorf("result is %s, want %s", job.Result, tc.result)
			}
			if altered := strings.Contains(tc.result, "\uFFFD") || strings.Contains(tc.result, `\ufffd`); job.ResultAltered != altered {
				t.Errorf("result %s is marked as altered: %t, want %t", job.Result, job.ResultAltered, altered)
			}
			if !strings.Contains(job.Error, tc.says) || len(job.Error) > 20<<10 {
				t.Errorf("error has %d bytes and is %.200q, want %q", len(job.Error), job.Error, tc.says)
			}
		})
	}
	return worker
}

// TestWorkOutcome runs one command of each kind of end, all in one worker that drains.
func TestWorkOutcome(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cases := []workCase{
		{kind: "json", command: "cat", args: `{"n": 9007199254740993, "x": [1e400, 1.10, -0]}`, outcome: domain.Success, result: `{"n": 9007199254740993, "x": [1e400, 1.10, -0]}`},
		{kind: "json_line", command: "echo '[1]'", outcome: domain.Success, result: `[1]`},
		{kind: "text", command: "echo hello; echo world", outcome: domain.Success, result: `"hello\nworld"`},
		{kind: "two_values", command: "echo 1; echo 2", outcome: domain.Success, result: `"1\n2"`},
		{kind: "no_output", command: "true", outcome: domain.Success},
		{kind: "no_args", command: "wc -c | tr -d ' '", outcome: domain.Success, result: `0`},
		{kind: "nul", command: `printf 'a\000b'`, outcome: domain.Success, result: `"a` + "\uFFFD" + `b"`},
		{kind: "nul_escape", command: `printf '"a\\u0000b"'`, outcome: domain.Success, result: `"a\ufffdb"`},
		{kind: "not_utf8", command: `printf 'a\377b<&>'`, outcome: domain.Success, result: `"a` + "\uFFFD" + `b<&>"`},
		{kind: "stderr_is_no_result", command: "echo warn >&2; echo '{}'", outcome: domain.Success, result: `{}`},
		{kind: "args_not_read", command: "exit 0", args: `"` + strings.Repeat("x", 1<<20-2) + `"`, outcome: domain.Success},
		{kind: "exit_3", command: "echo thinking; echo broken >&2; exit 3", outcome: domain.Failure, class: domain.ClassTransient, reason: domain.ReasonAttemptsExhausted, says: "exit code 3\nstderr:\nbroken"},
		{kind: "exit_4_silent", command: "echo only this; exit 4", outcome: domain.Failure, class: domain.ClassTransient, reason: domain.ReasonAttemptsExhausted, says: "exit code 4\nstdout:\nonly this"},
		{kind: "exit_65", command: "exit 65", outcome: domain.Failure, class: domain.ClassInvalidInput, reason: domain.ReasonInvalidInput, says: "exit code 65"},
		{kind: "not_found", command: "no-such-command-here", outcome: domain.Failure, class: domain.ClassTransient, reason: domain.ReasonAttemptsExhausted, says: "exit code 127 (as a shell says of a command that was not found)\nstderr:\n"},
		{kind: "segv", command: "ulimit -c 0; kill -SEGV $$", outcome: domain.Failure, class: domain.ClassCrash, reason: domain.ReasonAttemptsExhausted, says: "killed by SIGSEGV"},
		{kind: "kill", command: "kill -KILL $$", outcome: domain.Failure, class: domain.ClassCrash, reason: domain.ReasonAttemptsExhausted, says: "killed by SIGKILL"},
		{kind: "flood", command: "head -c 3000000 /dev/zero | tr '\\0' x >&2; echo the last line >&2; exit 1", outcome: domain.Failure, class: domain.ClassTransient, reason: domain.ReasonAttemptsExhausted, says: "the last line"},
	}
	longResult := b.enqueue(t, ledger.EnqueueParams{Kind: "long", Policy: once})
	worker := b.workCases(t, cases, "--permanent-exit", "65,66", "--exec", `long=echo first; head -c 3000000 /dev/zero | tr '\0' '\033'; echo; echo last`)
	if !b.job(t, longResult).ResultAltered {
		t.Error("a result with a part left out carries no flag")
	}
	checkLongResult(t, b.job(t, longResult).Result, len("first\n")+3_000_000+len("\nlast\n"))
	var done workedJSON
	if err := json.Unmarshal(worker.stdout.Bytes(), &done); err != nil || done.Succeeded != 12 || done.Failed != 7 {
		t.Errorf("the worker says %s (%v), want 12 succeeded and 7 failed", worker.stdout.String(), err)
	}
	b.verified(t)
}

// checkLongResult: head and tail are there, and the mark tells the truth about the middle.
func checkLongResult(t *testing.T, result json.RawMessage, total int) {
	t.Helper()
	var text string
	if err := json.Unmarshal(result, &text); err != nil || len(result) > domain.MaxArgsBytes {
		t.Fatalf("a result of %d bytes: %v", len(result), err)
	}
	head, rest, _ := strings.Cut(text, "\n[... ")
	count, tail, ok := strings.Cut(rest, " bytes left out ...]\n")
	cut, err := strconv.Atoi(count)
	if !ok || err != nil || !strings.HasPrefix(head, "first\n") || !strings.HasSuffix(tail, "\nlast") {
		t.Fatalf("head, mark or tail is missing: %.40q ... %.40q", head, rest)
	}
	if got := len(head) + cut + len(tail) + len("\n"); got != total {
		t.Errorf("%d bytes are kept or said to be left out, want %d", got, total)
	}
}

func TestWorkEnvironment(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.enqueue(t, ledger.EnqueueParams{Kind: "run", Tag: "slow", Priority: -3, CorrelationID: "c 1", Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"})
	b.work(t, `env | grep -E "^(JOBLEDGER_[A-Z_]*|TRACEPARENT)=" | grep -Ev "DATA_DIR|TREE|ROUNDS|NEED|TEST|ALL" | sort`, "--tag", "other,slow", "--name", "w 1", "--drain").exits(t, 0)
	var got string
	if err := json.Unmarshal(b.job(t, id).Result, &got); err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{"JOBLEDGER_ATTEMPT=1", "JOBLEDGER_CORRELATION_ID=c 1", "JOBLEDGER_GENERATION=1", "JOBLEDGER_JOB_ID=" + id.String(),
		"JOBLEDGER_KIND=run", "JOBLEDGER_PRIORITY=-3", "JOBLEDGER_RESTARTS=0", "JOBLEDGER_TAG=slow", "JOBLEDGER_WORKER=w 1",
		"TRACEPARENT=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}, "\n")
	if got != want {
		t.Errorf("the environment is\n%s\nwant\n%s", got, want)
	}
}

func TestWorkStop(t *testing.T) {
	t.Parallel()
	t.Run("waits_for_commands_that_end", func(t *testing.T) {
		t.Parallel()
		b, pipe := newBench(t), newPipe(t)
		goOn := filepath.Join(t.TempDir(), "go")
		if err := syscall.Mkfifo(goOn, 0o600); err != nil {
			t.Fatal(err)
		}
		id := b.enqueue(t, ledger.EnqueueParams{Kind: "run"})
		next := b.enqueue(t, ledger.EnqueueParams{Kind: "run"})
		w := b.work(t, pipe.held("echo started >&9; read x < "+goOn+"; echo '\"done\"'"), "--concurrency", "1")
		pipe.says(t, "started")
		b.seen(t, ledger.Working)
		w.signal(t, syscall.SIGTERM)
		b.seen(t, ledger.Stopping)
		if err := os.WriteFile(goOn, []byte("x\n"), 0); err != nil {
			t.Fatal(err)
		}
		w.exits(t, 0)
		if job := b.job(t, id); job.Outcome != domain.Success || string(job.Result) != `"done"` {
			t.Errorf("the job that ran ended with %q and result %s", job.Outcome, job.Result)
		}
		if job := b.job(t, next); job.State != domain.Waiting || job.Version != 1 {
			t.Errorf("the job that waited is %s at version %d, want untouched", job.State, job.Version)
		}
	})
	t.Run("gives_back_what_does_not_end", func(t *testing.T) {
		t.Parallel()
		b, pipe := newBench(t), newPipe(t)
		id := b.enqueue(t, ledger.EnqueueParams{Kind: "run"})
		w := b.work(t, pipe.held("echo started >&9; sleep 600 & wait"), "--stop-timeout", "1ms")
		pipe.says(t, "started")
		w.signal(t, syscall.SIGTERM)
		pipe.gone(t)
		w.exits(t, exitCut)
		if job := b.job(t, id); job.State != domain.Waiting || job.Attempt != 0 || job.Restarts != 0 {
			t.Errorf("the job is %s with attempt %d and %d restarts, want waiting and unspent", job.State, job.Attempt, job.Restarts)
		}
		if types := b.types(t, id); types != "enqueued claimed released" {
			t.Errorf("events are %s", types)
		}
		b.verified(t)
	})
	t.Run("exit_code_0_after_SIGTERM_is_no_success", func(t *testing.T) {
		t.Parallel()
		b, pipe := newBench(t), newPipe(t)
		id := b.enqueue(t, ledger.EnqueueParams{Kind: "run"})
		w := b.work(t, pipe.held("trap 'exit 0' TERM; echo started >&9; while :; do sleep 0.02; done"), "--stop-timeout", "1ms")
		pipe.says(t, "started")
		w.signal(t, syscall.SIGINT)
		w.exits(t, exitCut)
		if types := b.types(t, id); types != "enqueued claimed released" {
			t.Errorf("events are %s", types)
		}
	})
	t.Run("second_signal_kills_and_gives_back", func(t *testing.T) {
		t.Parallel()
		b, pipe := newBench(t), newPipe(t)
		id := b.enqueue(t, ledger.EnqueueParams{Kind: "run"})
		w := b.work(t, pipe.held("trap '' TERM INT; echo started >&9; sleep 600 & wait"), "--lease", "1h", "--grace", "10m")
		pipe.says(t, "started")
		b.seen(t, ledger.Working)
		w.signal(t, syscall.SIGTERM)
		b.seen(t, ledger.Stopping)
		w.signal(t, syscall.SIGTERM)
		w.exits(t, exitCut)
		pipe.gone(t)
		if !strings.Contains(w.stderr.String(), "error: stopped before the end of 1 command") {
			t.Error("it doesn't say why it ended")
		}
		if types := b.types(t, id); types != "enqueued claimed released" {
			t.Errorf("events are %s", types)
		}
	})
	t.Run("second_signal_kills_in_the_grace", func(t *testing.T) {
		t.Parallel()
		b, pipe := newBench(t), newPipe(t)
		id := b.enqueue(t, ledger.EnqueueParams{Kind: "run"})
		w := b.work(t, pipe.held("trap 'echo asked >&9' TERM; echo started >&9; while :; do sleep 0.02; done"), "--stop-timeout", "1ms", "--lease", "1h", "--grace", "10m")
		pipe.says(t, "started")
		w.signal(t, syscall.SIGTERM)
		pipe.says(t, "asked")
		w.signal(t, syscall.SIGTERM)
		w.exits(t, exitCut)
		pipe.gone(t)
		if types := b.types(t, id); types != "enqueued claimed released" {
			t.Errorf("events are %s", types)
		}
	})
	t.Run("third_signal_does_not_wait_for_the_database", func(t *testing.T) {
		t.Parallel()
		b, pipe := newBench(t), newPipe(t)
		id := b.enqueue(t, ledger.EnqueueParams{Kind: "run"})
		w := b.work(t, pipe.held("trap '' TERM INT; echo started >&9; sleep 600 & wait"), "--lease", "1h")
		pipe.says(t, "started")
		conn := b.db.Connect(t)
		if _, err := conn.Exec(t.Context(), `BEGIN; SELECT FROM jobledger.job_runtime FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		w.signal(t, syscall.SIGTERM)
		b.seen(t, ledger.Stopping)
		w.signal(t, syscall.SIGTERM)
		pipe.gone(t)
		w.signal(t, syscall.SIGTERM)
		w.exits(t, exitFailed)
		if !strings.Contains(w.stderr.String(), "error: killed by a third signal") {
			t.Error("it doesn't say why it ended")
		}
		if job := b.job(t, id); job.State != domain.Running {
			t.Errorf("the job is %s, want running until its lease ends", job.State)
		}
	})
	t.Run("killed_worker_takes_its_command_along", func(t *testing.T) {
		t.Parallel()
		b, pipe := newBench(t), newPipe(t)
		b.enqueue(t, ledger.EnqueueParams{Kind: "run"})
		w := b.work(t, pipe.held("(trap '' TERM HUP; echo started >&9; sleep 600) & wait"))
		pipe.says(t, "started")
		w.signal(t, syscall.SIGKILL)
		w.exits(t, -1)
		pipe.gone(t)
	})
}
