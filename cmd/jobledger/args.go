package main

import (
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

// noArgs refuses words behind a command that takes none.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return wrongUse("see: "+cmd.CommandPath()+" --help", "%s takes no argument, got %q", cmd.CommandPath(), args[0])
	}
	return nil
}

// oneArg asks for exactly one word, called what in the error.
func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return wrongUse("see: "+cmd.CommandPath()+" --help", "%s needs %s", cmd.CommandPath(), what)
		case len(args) > 1:
			return wrongUse("see: "+cmd.CommandPath()+" --help", "%s takes %s alone, got %q too", cmd.CommandPath(), what, args[1])
		}
		return nil
	}
}

// parseID reads a job id in its usual form alone, since only that is what others print.
func parseID(s string) (uuid.UUID, error) {
	id, err := uuid.Parse(s)
	if err != nil || len(s) != 36 {
		return uuid.Nil, wrongUse("a job id looks like 01890a5d-ac96-774b-bcce-b302099a8057 (jobledger jobs list)", "%q is no job id", s)
	}
	return id, nil
}

// parseLabels reads name=value, each name once.
func parseLabels(pairs []string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	labels := map[string]string{}
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" || value == "" {
			return nil, wrongUse("write it as --label name=value", "--label: got %q", pair)
		}
		if _, twice := labels[name]; twice {
			return nil, wrongUse("give each name once", "--label: %q is there twice", name)
		}
		labels[name] = value
	}
	return labels, nil
}

// oneOf tests a flag that is one of some words; "" is not given.
func oneOf(flag, value string, words ...string) error {
	if value == "" {
		return nil
	}
	for _, word := range words {
		if value == word {
			return nil
		}
	}
	return wrongUse("use "+strings.Join(words, ", "), "--%s: got %q", flag, value)
}

// notEmpty refuses a text flag that was given as nothing: it is mostly a shell variable that isn't set.
func notEmpty(cmd *cobra.Command, flags ...string) error {
	for _, flag := range flags {
		if f := cmd.Flags().Lookup(flag); f.Changed && f.Value.String() == "" {
			return wrongUse(fmt.Sprintf("leave --%s out, or give it a value", flag), "--%s is empty", flag)
		}
	}
	return nil
}
