package main

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/jobledger/jobledger/ledger"
)

// hostile are texts that no flag should be trusted with.
var hostile = []string{
	"\x1b[2J\x1b]0;owned\x07\u202etxt\u200b\u0085\r\n$(reboot)'\"`%s%n", "\xff\xfe", strings.Repeat("\x1b", 1<<20),
}

// TestHostileFlags gives each flag of each command, and each argument, texts that no flag should be trusted with: the
// program ends with an exit code of the documentation, and what it prints is short, and leaves a terminal alone.
func TestHostileFlags(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.enqueue(t, ledger.EnqueueParams{Kind: "k"}).String()
	words := map[string][]string{ // what a command needs beside its flags
		"enqueue": {"k"}, "work": {"--exec", "other=true", "--drain"}, "job show": {id}, "job history": {id}, "job cancel": {id},
		"job redrive": {id}, "job wait": {id, "--timeout", "1ms"}, "jobs cancel": {"--dry-run"}, "jobs redrive": {"--dry-run"},
	}
	// What else they do is not for this test: they would use a private Postgres, or another server, or run on.
	skipped := map[string]bool{"data-dir": true, "pg-bin": true, "database-url": true, "help": true, "stop-timeout": true, "every": true}
	each((&app{}).rootCommand(), func(cmd *cobra.Command) {
		name := strings.TrimPrefix(strings.TrimPrefix(cmd.CommandPath(), "jobledger"), " ")
		if command, _, _ := strings.Cut(name, " "); cmd.HasSubCommands() || command == "up" || command == "demo" || command == "pg" || command == "migrate" {
			return
		}
		flag := func(flag *pflag.Flag) {
			if skipped[flag.Name] || flag.Value.Type() == "bool" {
				return
			}
			for _, text := range hostile {
				args := append(strings.Fields(name), words[name]...)
				harmless(t, b, append(args, "--"+flag.Name, text))
			}
		}
		cmd.LocalFlags().VisitAll(flag)
		if name == "jobs list" { // the global ones need no more than one command
			cmd.InheritedFlags().VisitAll(flag)
		}
		for _, text := range hostile {
			harmless(t, b, append(append(strings.Fields(name), words[name]...), text))
			harmless(t, b, append(strings.Fields(name), "--"+text))
			harmless(t, b, append(strings.Fields(name), "-"+text))
		}
	})
	for _, text := range hostile {
		harmless(t, b, []string{text})
		harmless(t, b, []string{"job", text})
		harmless(t, b, []string{"job", "show", text})
		harmless(t, b, []string{"enqueue", text})
		harmless(t, b, []string{"enqueue", "k", "--args", "@" + text})
	}
}

// harmless calls the program for a person and for a program.
func harmless(t *testing.T, b *bench, args []string) {
	t.Helper()
	shown := args
	if last := args[len(args)-1]; len(last) > 40 {
		shown = append(args[:len(args)-1:len(args)-1], last[:40])
	}
	got := b.run(t, "", args...)
	for _, text := range []string{got.stdout, got.stderr} {
		if strings.ContainsFunc(text, steers) || !utf8.ValidString(text) {
			t.Errorf("%q prints %.300q", shown, text)
		}
	}
	if len(got.stderr) > 4*maxTold || strings.Contains(got.stderr, "SQLSTATE") || strings.Contains(got.stderr, "panic") {
		t.Errorf("%q says, in %d bytes, %.300q", shown, len(got.stderr), got.stderr)
	}
	switch got.code {
	case 0, exitWrongUse, exitNotEnded:
	case exitFailed:
		if !strings.Contains(got.stderr, "there is no ledger in schema") && !strings.Contains(got.stderr, ": job has ") && !strings.Contains(got.stderr, "file name too long") {
			t.Errorf("%q fails: %s", shown, got.stderr)
		}
	default:
		t.Errorf("%q ends with %d: %s", shown, got.code, got.stderr)
	}
	if got.code == exitWrongUse && strings.Contains(args[len(args)-1], hostile[0]) { // one of them will do
		program := b.run(t, "", append([]string{"--json"}, args...)...)
		var told errorJSON
		if err := json.Unmarshal([]byte(program.stderr), &told); err != nil || told.Error == "" || told.Code == "" || program.code != exitWrongUse {
			t.Errorf("%q with --json ends with %d and says %.300q: %v", shown, program.code, program.stderr, err)
		}
	}
}
