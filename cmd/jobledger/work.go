package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger/worker"
)

// workFlags are the flags of work.
type workFlags struct {
	exec          []string
	tags          []string
	concurrency   int
	prefetch      int
	lease         time.Duration
	name          string
	drain         bool
	poll          time.Duration
	noListen      bool
	stopTimeout   time.Duration
	grace         time.Duration
	permanentExit []int
	memory        string
	cgroup        string
}

func workCommand(a *app) *cobra.Command {
	var f workFlags
	cmd := &cobra.Command{
		Use:   "work --exec KIND=COMMAND ...",
		Short: "Run jobs: a command for each kind",
		Long: `Claim jobs and run a command for each: COMMAND is run by "sh -c", below a process that keeps together what it starts.

A command reads the job's args on standard input and prints its result on standard output: JSON is kept as it is,
other text becomes a JSON string. Exit code 0 is success. Any other exit code, or a signal, fails the attempt, which
is retried as the job's policy says; how the command ended and what it printed on standard error are kept with the
job. With --permanent-exit some exit codes end the job at once: trying again would be pointless.

Its environment has JOBLEDGER_JOB_ID, JOBLEDGER_KIND, JOBLEDGER_TAG, JOBLEDGER_PRIORITY, JOBLEDGER_ATTEMPT,
JOBLEDGER_RESTARTS, JOBLEDGER_GENERATION (the fencing token, for what must refuse a late writer), JOBLEDGER_WORKER and,
where the job has them, JOBLEDGER_CORRELATION_ID and TRACEPARENT.

When the job is canceled, times out or loses its lease, every process of the command gets SIGTERM, and SIGKILL after
--grace. What a command leaves in the background is killed when the command has ended, and all of it is if the worker
itself is killed. On Linux that holds for daemons, too; elsewhere for the process group of the command. Output is kept
until the end, at most 1 MiB of standard output and 16 KiB of standard error; of more, the first and the last half.

The first SIGINT or SIGTERM stops gracefully: no new jobs, and commands have --stop-timeout to end; then they are
stopped and their jobs given back, so that others start them at once. The second one kills the commands at once and
gives their jobs back. The third one ends without a word to the database: the jobs are taken over when their leases end.

Exit codes: 0 all commands came to their own end; 6 the stop has cut some commands short, and their jobs were given back;
1 something else, such as jobs that could not be given back.`,
		Example: `  jobledger work --exec greet='jq -r "\"hello \" + .name"' --drain
  jobledger work --exec resize=./resize.sh --exec report='python3 report.py' --tag slow --concurrency 4
  jobledger work --exec import='./import --job "$JOBLEDGER_JOB_ID"' --permanent-exit 65`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			outlivePipes()
			second, third := a.signals.impatient()
			commands, err := parseExec(f.exec)
			if err != nil {
				return err
			}
			config, err := f.config(cmd)
			if err != nil {
				return err
			}
			x, err := f.runner(cmd)
			if err != nil {
				return err
			}
			x.log, x.kill, config.Logger = a.log, second, a.log
			if !a.private() {
				config.ListenURL = a.directURL
			}
			return a.with(cmd.Context(), func(s *session) error { return a.work(cmd.Context(), s, config, x, commands, third) })
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.exec, "exec", nil, "KIND=COMMAND; may be given for several kinds")
	flags.StringSliceVar(&f.tags, "tag", []string{domain.DefaultTag}, "the tags whose jobs it takes; may be given more than once")
	wholeVar(flags, &f.concurrency, "concurrency", 10, "1 to 4000", "how many commands run at once")
	wholeVar(flags, &f.prefetch, "prefetch", 0, "0 to 1000", "how many jobs it claims beyond that")
	flags.DurationVar(&f.lease, "lease", domain.DefaultLease, "how long a claim lasts without a ping: 1s to 24h")
	flags.StringVar(&f.name, "name", "", "who holds the leases (default: host, process and a random part)")
	flags.BoolVar(&f.drain, "drain", false, "end when no job of these kinds and tags waits or runs any more")
	flags.DurationVar(&f.poll, "poll", time.Second, "how long it sleeps when nothing is due, unless it is woken")
	flags.BoolVar(&f.noListen, "no-listen", false, "save the connection for wake-ups: find jobs by polling alone")
	flags.DurationVar(&f.stopTimeout, "stop-timeout", 20*time.Second, "how long a graceful stop waits for commands")
	flags.DurationVar(&f.grace, "grace", 5*time.Second, "the time between SIGTERM and SIGKILL, at most a third of --lease")
	flags.IntSliceVar(&f.permanentExit, "permanent-exit", nil, "exit codes that end a job at once, as invalid_input")
	flags.StringVar(&f.memory, "memory", "", "what a command may use, such as 512MiB (default: no limit)")
	flags.StringVar(&f.cgroup, "cgroup", "auto", "auto: each command in a cgroup where that can be; off: none")
	return cmd
}

// parseExec reads KIND=COMMAND.
func parseExec(pairs []string) (map[string]string, error) {
	const hint = `write it as --exec KIND=COMMAND, such as --exec greet='jq .name'`
	if len(pairs) == 0 {
		return nil, wrongUse(hint, "work needs --exec: what to run for which kind")
	}
	commands := map[string]string{}
	for _, pair := range pairs {
		kind, command, ok := strings.Cut(pair, "=")
		if !ok || strings.TrimSpace(command) == "" {
			return nil, wrongUse(hint, "--exec: got %q", pair)
		}
		if err := domain.CheckName("--exec", kind); err != nil {
			return nil, wrongUse(hint, "%w", err)
		}
		if _, twice := commands[kind]; twice {
			return nil, wrongUse("give one command for each kind", "--exec: kind %q is there twice", kind)
		}
		commands[kind] = command
	}
	return commands, nil
}

// config fits the worker's times together. A command that has lost its lease must be gone before the lease ends, so the
// margin is longer than the grace by what a busy machine needs to kill it; and a worker that stops waits longer for its
// handlers than they for their commands.
func (f *workFlags) config(cmd *cobra.Command) (worker.Config, error) {
	if err := notEmpty(cmd, "name"); err != nil {
		return worker.Config{}, err
	}
	for _, n := range []struct {
		flag string
		d    time.Duration
	}{{"stop-timeout", f.stopTimeout}, {"poll", f.poll}, {"grace", f.grace}} {
		if n.d <= 0 && n.flag != "stop-timeout" || n.d < 0 {
			return worker.Config{}, wrongUse("give a duration such as 5s", "--%s: got %s", n.flag, n.d)
		}
	}
	for _, code := range f.permanentExit {
		if code < 1 || code > 255 {
			return worker.Config{}, wrongUse("exit codes other than success are 1 to 255", "--permanent-exit: got %d", code)
		}
	}
	if f.concurrency < 1 {
		return worker.Config{}, wrongUse("use 1 to 4000", "--concurrency: got %d", f.concurrency)
	}
	if len(f.tags) == 0 {
		return worker.Config{}, wrongUse("leave --tag out, or give it a value", "--tag is empty")
	}
	if err := domain.CheckLease(f.lease); err != nil {
		return worker.Config{}, asFlags(err)
	}
	switch {
	case !cmd.Flags().Changed("grace"):
		f.grace = min(f.grace, f.lease/8)
	case f.grace > f.lease/3:
		return worker.Config{}, wrongUse("give a longer --lease: a command must be dead before the lease of its job ends",
			"--grace: got %s, want at most a third of the lease, %s", f.grace, f.lease/3)
	}
	margin := max(f.lease/6, f.grace+min(f.lease/10, killTime))
	return worker.Config{
		Name: f.name, Tags: f.tags, Concurrency: f.concurrency, Prefetch: f.prefetch, Lease: f.lease, Drain: f.drain, Poll: f.poll, NoListen: f.noListen,
		Margin: margin, PingEvery: min(f.lease/3, (f.lease-margin)/2),
		StopTimeout: max(f.stopTimeout, time.Nanosecond), // zero would mean the default
		StopGrace:   f.grace + killTime,
	}, nil
}

// killTime is what a command may take to be gone after SIGKILL, and its end to be reported.
const killTime = 3 * time.Second

// work runs a worker until the first signal, or until nothing is left; the second signal, which is the runner's, cuts
// what runs, and the third one ends at once.
func (a *app) work(ctx context.Context, s *session, config worker.Config, x *commandRunner, commands map[string]string, third <-chan struct{}) error {
	w, err := worker.New(s.Ledger, config)
	if err != nil {
		return asFlags(err)
	}
	x.worker = w.Name()
	x.ready(ctx)
	for kind, command := range commands {
		worker.Handle(w, kind, x.handler(command))
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		second := x.kill
		for {
			select {
			case <-second:
				second = nil
				w.Hurry()
			case <-third:
				w.Kill()
				return
			case <-ended:
				return
			}
		}
	}()
	err = w.Run(ctx)
	x.running.Wait() // after a kill they still run, for a moment
	if printErr := a.printWorked(w); err == nil {
		err = printErr
	}
	overtaken := "taken over when their leases end, within " + span(config.Lease)
	if errors.Is(err, worker.ErrKilled) {
		return failed("the jobs that it held are "+overtaken, "killed by a third signal")
	}
	var left *worker.StopError
	if errors.As(err, &left) {
		return failed("the jobs that it could not report are "+overtaken, "%w", err)
	}
	if n := x.cut.Load(); n > 0 && err == nil {
		return &cliError{err: fmt.Errorf("stopped before the end of %s", plural(n, "command")), code: exitCut,
			hint: "their jobs were given back, unspent; a longer --stop-timeout lets commands end"}
	}
	return err
}

// printWorked says what it has done.
func (a *app) printWorked(w *worker.Worker) error {
	done := workedOf(w.Name(), w.Stats())
	if a.json {
		return a.printJSON(done)
	}
	text := fmt.Sprintf("%d succeeded, %d retried, %d failed, %d canceled", done.Succeeded, done.Retried, done.Failed, done.Canceled)
	for _, rare := range []struct {
		n    int64
		what string
	}{{done.Released, "given back"}, {done.Snoozed, "put off"}, {done.TimedOut, "timed out"}, {done.Lost, "lost"}, {done.Refused, "refused"}} {
		if rare.n > 0 {
			text += fmt.Sprintf(", %d %s", rare.n, rare.what)
		}
	}
	_, err := fmt.Fprintln(a.stdout, text)
	return err
}
