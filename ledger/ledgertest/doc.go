// Package ledgertest is for the tests of applications that use jobledger: a real ledger for each test, made in
// well under a tenth of a second and gone at its end; questions about what was enqueued, also inside of a
// transaction that has not committed; jobs run while the test waits, by the application's own worker; and a clock
// that the test moves.
//
//	func TestSignUp(t *testing.T) {
//		l := ledgertest.New(t)
//		ctx := t.Context()
//
//		// What was enqueued in this transaction?
//		tx, err := l.Pool.Begin(ctx)
//		...
//		err = SignUp(ctx, tx, l.Ledger, User{ID: 17})
//		l.In(tx).RequireEnqueued(t, ledgertest.Want{Kind: "welcome", Args: Welcome{User: 17}})
//		err = tx.Commit(ctx)
//
//		// Run it, as production would.
//		w := NewWorker(l.Ledger) // the application's own: a *worker.Worker with its handlers
//		run := l.RunOne(t, w)
//		if run.Event != domain.Completed { ... run.Err is what the handler returned ... }
//
//		// A week later.
//		l.Advance(t, 7*24*time.Hour)
//		l.RunDue(t, w)
//		l.RequireEnqueued(t, ledgertest.Want{Kind: "reminder", State: domain.Ended})
//	}
//
// # The database
//
// [New] needs nothing but Postgres's programs on the machine, 15 or later (Debian: apt-get install postgresql; where
// there are none but npm is, they are fetched once). All tests of a user share one private server, which keeps its data
// in memory and stops after the last of them; each test gets a database of its own, so that tests may be parallel. The
// first test of a build pays for the start of the server and the schema (a second or two on a cold machine), each later
// one for a copy: 30 to 100 ms. JOBLEDGER_TEST_DATABASE_URL or Config.DatabaseURL name another server to do the same
// on. [On] uses a database that the application's tests have already; [NewTemplate] brings the application's own
// tables into the databases of New.
//
// # The clock
//
// The ledger takes every decision by its database's clock: what is due, when a lease ends, how long a retry waits.
// [Ledger.SetClock] and [Ledger.Advance] replace it by one that stands still, so that a test of next week takes no
// time and nothing expires while it is looked at. Go's own time goes on: time.Now, and the time-outs of a worker's
// handlers, which it measures itself.
//
// Functions that are given a test end it at once (Fatal) when they fail, so call them from its own goroutine.
package ledgertest
