// Package ledgertest is for the tests of applications that use jobledger: a real ledger for each test, made in tens of
// milliseconds and gone at its end; questions about what was enqueued, also inside of a transaction that has not
// committed; jobs run while the test waits, by the application's own worker; and a clock that the test moves.
//
//	func TestSignUp(t *testing.T) {
//		l := ledgertest.New(t)
//		tx, err := l.Pool.Begin(t.Context())
//		err = SignUp(t.Context(), tx, l.Ledger, 17)
//
//		// What was enqueued in this transaction, before it commits?
//		l.In(tx).RequireEnqueued(t, ledgertest.Want{Kind: "welcome", Args: Welcome{User: 17}})
//		err = tx.Commit(t.Context())
//
//		// Run it as production would, an hour later.
//		w := NewWorker(l.Ledger) // the application's own: a *worker.Worker with its handlers
//		l.Advance(t, time.Hour)
//		run := l.RunOne(t, w) // run.Err is what the handler returned, run.Event what became of the job
//
//		// And the rest: retries, snoozes and scheduled jobs, each at its own time, in no time.
//		runs := l.RunAll(t, w)
//	}
//
// Each question has an In before it where a transaction is to answer: [Ledger.In] for pgx, [Ledger.InSQL] for
// database/sql. Without, it is about what is committed. The questions are the methods of [Scope].
//
// # The database
//
// [New] needs nothing but Postgres's programs on the machine, 15 or later (Debian: apt-get install postgresql; where
// there are none but npm is, they are fetched once). All tests of a user share one private server, which keeps its data
// in memory and stops after the last of them; each test gets a database of its own, so that tests may be parallel. The
// first test of a process pays for finding or starting the server and making the schema (a second or two where nothing
// is there yet), each later one for a copy: 30 to 150 ms, by how busy the machine is (BenchmarkNew).
//
// JOBLEDGER_TEST_DATABASE_URL or Config.DatabaseURL name another server to do the same on. [On] uses a database that
// the application's tests have already; [NewTemplate] brings the application's own tables into the databases of New.
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
