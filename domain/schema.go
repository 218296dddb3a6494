package domain

import (
	"errors"
	"fmt"
)

// What a *SchemaError wraps.
var (
	ErrNoLedger      = errors.New("no ledger there")
	ErrLedgerOlder   = errors.New("older than this binary")
	ErrLedgerNewer   = errors.New("newer than this binary")
	ErrLedgerDamaged = errors.New("not whole")
	ErrLedgerMisfit  = errors.New("not as this binary expects it")
)

// SchemaError says that the ledger in a database is not one that this binary can work with. Nothing was done; the same call
// gives the same error until somebody migrates the ledger (jobledger migrate up) or takes another binary.
type SchemaError struct {
	Schema string // "" where Detail names it
	Err    error  // one of the errors above
	Detail string // what was found; "" where there is nothing
}

func (e *SchemaError) Error() string {
	of, where := "the ledger", "in this database"
	if e.Schema != "" {
		of, where = "the ledger in schema "+e.Schema, "in schema "+e.Schema+" of this database"
	}
	text := fmt.Sprintf("%s is %v", of, e.Err)
	if errors.Is(e.Err, ErrNoLedger) {
		text = "there is no ledger " + where
	}
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

func (e *SchemaError) Unwrap() error { return e.Err }
