package main

import (
	"bytes"
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// each calls f for every command that people see, groups too.
func each(cmd *cobra.Command, f func(*cobra.Command)) {
	if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" {
		return
	}
	f(cmd)
	for _, sub := range cmd.Commands() {
		each(sub, f)
	}
}

// TestHelp: every command says in one line what it does, and shows examples that can be typed as they are.
func TestHelp(t *testing.T) {
	t.Parallel()
	root := (&app{}).rootCommand()
	flag := regexp.MustCompile(` --([a-z][a-z-]*)`)
	each(root, func(cmd *cobra.Command) {
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: short help is %q, want a line without a full stop", cmd.CommandPath(), cmd.Short)
		}
		if !strings.Contains(cmd.Example, cmd.CommandPath()) {
			t.Errorf("%s: no example shows it", cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.Example) {
			_, ours, ok := strings.Cut(line, "jobledger ")
			if !ok {
				continue
			}
			ours, _, _ = strings.Cut(ours, " | ")
			ours, _, _ = strings.Cut(ours, " -- ")
			found, _, err := root.Find(strings.Fields(ours))
			if err != nil || found == root {
				t.Errorf("%s: an example is for no command: %s", cmd.CommandPath(), line)
				continue
			}
			for _, match := range flag.FindAllStringSubmatch(unquoted(ours), -1) {
				if found.Flags().Lookup(match[1]) == nil && found.InheritedFlags().Lookup(match[1]) == nil {
					t.Errorf("%s: an example has a flag --%s that there isn't: %s", cmd.CommandPath(), match[1], line)
				}
			}
		}
	})
}

// unquoted is a command line without what stands in quotation marks.
func unquoted(line string) string {
	return regexp.MustCompile(`'[^']*'|"[^"]*"`).ReplaceAllString(line, "")
}

// TestRun runs the program in this process: no help needs a database.
func TestRun(t *testing.T) {
	each((&app{}).rootCommand(), func(cmd *cobra.Command) {
		var stdout, stderr bytes.Buffer
		args := append(strings.Fields(cmd.CommandPath())[1:], "--help")
		if code := run(context.Background(), args, strings.NewReader(""), &stdout, &stderr); code != 0 || stderr.Len() > 0 {
			t.Errorf("%v ended with %d: %s", args, code, stderr.String())
		}
		if !strings.Contains(stdout.String(), "Examples:") || !strings.Contains(stdout.String(), "Usage:") {
			t.Errorf("%v prints %s", args, stdout.String())
		}
	})
}
