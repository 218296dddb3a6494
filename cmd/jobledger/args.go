package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/jobledger/jobledger/domain"
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

// wholeVar defines a flag that is a whole number within a range, such as "1 to 100". Only decimal digits are taken: to
// pflag's own, 010 is 8.
func wholeVar(flags *pflag.FlagSet, to *int, name string, byDefault int, within, usage string) {
	*to = byDefault
	flags.Var(&wholeValue{to, wanted("a whole number, " + within)}, name, usage+", "+within)
}

type wholeValue struct {
	to   *int
	want wanted
}

func (w *wholeValue) String() string { return strconv.Itoa(*w.to) }
func (w *wholeValue) Type() string   { return "int" }

func (w *wholeValue) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil {
		return w.want
	}
	*w.to = n
	return nil
}

// wanted is why a flag's value was refused: what it has to be.
type wanted string

func (w wanted) Error() string { return "want " + string(w) }

// flagTypes are what values of pflag's own types have to be.
var flagTypes = map[string]wanted{
	"int": "a whole number", "duration": "a duration such as 90s or 2h", "bool": "true or false",
	"intSlice": "whole numbers such as 65,66", "stringSlice": "words such as slow,fast",
}

// flagError tells of flags that cannot be read in words of our own: pflag's repeat the whole value, and Go's parser.
func flagError(cmd *cobra.Command, err error) error {
	help := "see: " + cmd.CommandPath() + " --help"
	switch e := err.(type) {
	case *pflag.InvalidValueError:
		want := flagTypes[e.GetFlag().Value.Type()]
		if errors.As(err, &want) || want != "" {
			err = &domain.FieldError{Field: "--" + e.GetFlag().Name, Value: e.GetValue(), Want: string(want)}
		}
	case *pflag.NotExistError:
		if short := e.GetSpecifiedShortnames(); short != "" {
			return wrongUse(help, "unknown flag: -%s", short)
		}
		return wrongUse(help, "unknown flag: --%s", e.GetSpecifiedName())
	case *pflag.ValueRequiredError:
		return wrongUse(help, "--%s needs a value", e.GetFlag().Name)
	case *pflag.InvalidSyntaxError:
		return wrongUse(help, "%q is no flag", e.GetSpecifiedFlag())
	}
	return wrongUse(help, "%w", err)
}

// byteUnits are those of a number of bytes.
var byteUnits = map[string]float64{"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}

// parseBytes reads a number of bytes such as 512MiB, 1.5 GiB or 500000.
func parseBytes(flag, s string) (int64, error) {
	number := strings.TrimRight(s, "BbKkMmGgTtIi ")
	n, err := strconv.ParseFloat(number, 64)
	unit, known := byteUnits[strings.ToUpper(strings.TrimSpace(s[len(number):]))]
	if err != nil || !known || !(n*unit >= 1) || n*unit > math.MaxInt64/2 {
		return 0, &domain.FieldError{Field: flag, Value: s, Want: "a number of bytes such as 512MiB"}
	}
	return int64(n * unit), nil
}
