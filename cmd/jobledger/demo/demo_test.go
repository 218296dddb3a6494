package demo_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/cmd/jobledger/demo"
	"github.com/jobledger/jobledger/ledger"
)

// TestMain lets the test binary be a worker process of the demo.
func TestMain(m *testing.M) {
	if name := os.Getenv("DEMO_TEST_WORKER"); name != "" {
		if err := work(name); err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func work(name string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pool, err := postgres.OpenPool(ctx, postgres.PoolConfig{URL: os.Getenv("DATABASE_URL")})
	if err != nil {
		return err
	}
	defer pool.Close()
	l, err := ledger.New(pool, ledger.Config{})
	if err != nil {
		return err
	}
	return demo.Work(ctx, l, name, slog.New(slog.DiscardHandler), os.Stdout)
}

// TestDemo runs the whole demo, with real processes and signals, on a part of Go's own sources.
func TestDemo(t *testing.T) {
	t.Parallel()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	db := pgtest.New(t)
	l, err := ledger.New(db.Pool, ledger.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = demo.Run(t.Context(), demo.Config{
		Ledger: l, Pool: db.Pool, Schema: ledger.DefaultSchema, Out: &out,
		Dir: filepath.Join(strings.TrimSpace(string(root)), "src", "cmd"),
		Start: func(name string, stdout *os.File) (*os.Process, error) {
			cmd := exec.Command(os.Args[0])
			cmd.Stdout = stdout
			cmd.Env = append(os.Environ(), "DEMO_TEST_WORKER="+name, "DATABASE_URL="+db.URL)
			err := cmd.Start()
			return cmd.Process, err
		},
	})
	t.Log("\n" + out.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`taken over +[1-9]`, `late completions refused +[1-9]`, `failure \(dead letters\) +4 `, `canceled +28 `, `verify: ok`, ` reaped `} {
		if !regexp.MustCompile(want).Match(out.Bytes()) {
			t.Errorf("the demo did not print %q", want)
		}
	}
}
