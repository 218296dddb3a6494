package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/jobledger/jobledger/ledger"
)

func versionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this binary and of its transition functions",
		Example: `  jobledger version
  jobledger version --json`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			v := binaryVersion()
			if a.json {
				return a.printJSON(v)
			}
			_, err := fmt.Fprintf(a.stdout, "jobledger %s (%s), functions %d\n", v.Version, v.Go, v.Functions)
			return err
		},
	}
}

// binaryVersion reads what the Go toolchain has written into the binary: a tag for `go install ...@v1.2.3`, the commit
// for a build in a checkout.
func binaryVersion() versionJSON {
	v := versionJSON{Version: "unknown", Go: runtime.Version(), Functions: ledger.FunctionsVersion}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Commit = s.Value
		}
	}
	return v
}
