package ledger

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
)

//go:embed *.sql
var sqlFiles embed.FS

// FunctionsVersion numbers the transition functions as a set. Raise it with every change of a
// .sql file in this package: `migrate up` replaces the functions in a database only by a higher
// version, so that an old binary never puts old ones back. TestFunctionsVersion holds the pair
// (version, digest).
const FunctionsVersion = 2

// functionFiles in the order in which they are applied.
var functionFiles = []string{
	"common", "bodies", "facts", "policy", "partitions", "refuse", "keys", "enqueue", "claim", "ping", "complete",
	"fail", "release", "snooze", "cancel", "reap", "redrive", "sleep", "worker_seen",
}

// Functions returns the SQL text that creates all transition functions. It names no schema: run
// it in one transaction with search_path set to the ledger's schema and pg_temp.
func Functions() string {
	text := "SET LOCAL check_function_bodies = off;\n"
	for _, name := range functionFiles {
		b, err := sqlFiles.ReadFile(name + ".sql")
		if err != nil {
			panic(fmt.Sprintf("ledger: %v", err)) // the list above and the embedded files are one build
		}
		text += "\n" + string(b)
	}
	return text
}

// FunctionsDigest is the SHA-256 of Functions in hex.
func FunctionsDigest() string {
	sum := sha256.Sum256([]byte(Functions()))
	return hex.EncodeToString(sum[:])
}
