package ledger_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/ledgertest"
)

// A job that is enqueued in the application's own transaction exists if and only if that commits.
func ExampleLedger_EnqueueTx() {
	ctx := context.Background()
	l := ledgertest.MustOpen()
	defer l.Close()
	if _, err := l.Pool.Exec(ctx, "CREATE TABLE account (user_id bigint PRIMARY KEY)"); err != nil {
		panic(err)
	}

	signUp := func(user int, check func() error) error {
		return pgx.BeginFunc(ctx, l.Pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO account (user_id) VALUES ($1)", user); err != nil {
				return err
			}
			if _, err := l.EnqueueTx(ctx, tx, ledger.EnqueueParams{Kind: "welcome", Args: map[string]int{"user": user}}); err != nil {
				return err
			}
			return check()
		})
	}
	fmt.Println(signUp(17, func() error { return nil }))
	fmt.Println(signUp(18, func() error { return errors.New("card was declined") }))

	jobs, err := l.Read().Counts(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Println(jobs)
	// Output:
	// <nil>
	// card was declined
	// [{waiting  1}]
}

// The same with database/sql, through pgx's driver.
func ExampleLedger_EnqueueSQLTx() {
	ctx := context.Background()
	l := ledgertest.MustOpen()
	defer l.Close()
	db := stdlib.OpenDBFromPool(l.Pool) // or sql.Open("pgx", databaseURL)
	defer db.Close()

	tx, err := db.BeginTx(ctx, &sql.TxOptions{})
	if err != nil {
		panic(err)
	}
	defer tx.Rollback()
	if _, err := l.EnqueueSQLTx(ctx, tx, ledger.EnqueueParams{Kind: "welcome"}, ledger.EnqueueParams{Kind: "invoice"}); err != nil {
		panic(err)
	}
	if err := tx.Commit(); err != nil {
		panic(err)
	}

	jobs, err := l.Read().Counts(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Println(jobs)
	// Output: [{waiting  2}]
}
