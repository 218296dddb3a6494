// Package migrations holds the numbered schema of the ledger. The files name no schema:
// they run with search_path set to the ledger's own. The transition functions are not here
// but beside their Go code in package ledger; `migrate up` applies them after these.
package migrations

import "embed"

// FS holds the migrations, NNNNN_name.sql in the form of goose.
//
//go:embed *.sql
var FS embed.FS
