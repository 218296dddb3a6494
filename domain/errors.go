package domain

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Refusal is why a verb did nothing to a job; "" means that it was done. The same words are
// used in SQL answers and in rejected events.
type Refusal string

// The refusals. docs/SQL.md and the table in package ledger say what a caller does next.
const (
	RefusedNotFound          Refusal = "not_found"          // no such job
	RefusedFenced            Refusal = "fenced"             // another worker or a newer generation holds, or held, the job
	RefusedLeaseOver         Refusal = "lease_over"         // the caller's lease has ended
	RefusedTimedOut          Refusal = "timed_out"          // the attempt ran longer than its policy allows
	RefusedEnded             Refusal = "ended"              // the job has its outcome
	RefusedUnknownGeneration Refusal = "unknown_generation" // a generation that the ledger never gave
	RefusedBusy              Refusal = "busy"               // ping only: the row was locked, the lease was not touched
	RefusedAlreadyRequested  Refusal = "already_requested"  // cancel: the mark is set already
	RefusedNotEnded          Refusal = "not_ended"          // redrive: the job is waiting or running
	RefusedSucceeded         Refusal = "succeeded"          // redrive: the job ended with success
	RefusedNotDue            Refusal = "not_due"            // claim: not waiting, or due later
	RefusedAlive             Refusal = "alive"              // reap: neither lease nor time-out is over
	RefusedKeyConflict       Refusal = "key_conflict"       // enqueue: the key was used for another kind or payload
	RefusedKeyBusy           Refusal = "key_busy"           // enqueue: an open transaction holds the key
	RefusedExists            Refusal = "exists"             // enqueue: the id belongs to a job already
	RefusedContended         Refusal = "contended"          // the job moved each time it was looked for: try again
)

// Errors that callers match with errors.Is. Each stands for one Refusal or situation.
var (
	ErrNotFound          = errors.New("job not found")
	ErrFenced            = errors.New("fenced: another worker or a newer generation holds the job")
	ErrLeaseOver         = errors.New("lease is over")
	ErrTimedOut          = errors.New("attempt timed out")
	ErrEnded             = errors.New("job has ended")
	ErrUnknownGeneration = errors.New("generation was never given")
	ErrBusy              = errors.New("job is locked by another transaction")
	ErrNotEnded          = errors.New("job has not ended")
	ErrSucceeded         = errors.New("job ended with success")
	ErrContended         = errors.New("job moved while it was looked for")
	ErrExists            = errors.New("job id is taken")
	ErrKeyConflict       = errors.New("idempotency key was used for another kind or payload")
	ErrKeyBusy           = errors.New("idempotency key is held by an open transaction")

	// ErrUnknownOutcome: the call may have been carried out; see UnknownOutcomeError.
	ErrUnknownOutcome = errors.New("outcome unknown")
	// ErrRunAgain: the caller's transaction cannot commit any more, through no fault of its own.
	ErrRunAgain = errors.New("run the whole transaction again")
)

// Err returns the sentinel error of r, nil for "" and for answers that are no errors
// (already_requested, not_due, alive).
func (r Refusal) Err() error {
	switch r {
	case RefusedNotFound:
		return ErrNotFound
	case RefusedFenced:
		return ErrFenced
	case RefusedLeaseOver:
		return ErrLeaseOver
	case RefusedTimedOut:
		return ErrTimedOut
	case RefusedEnded:
		return ErrEnded
	case RefusedUnknownGeneration:
		return ErrUnknownGeneration
	case RefusedBusy:
		return ErrBusy
	case RefusedNotEnded:
		return ErrNotEnded
	case RefusedSucceeded:
		return ErrSucceeded
	case RefusedContended:
		return ErrContended
	case RefusedExists:
		return ErrExists
	case RefusedKeyConflict:
		return ErrKeyConflict
	case RefusedKeyBusy:
		return ErrKeyBusy
	case "", RefusedAlreadyRequested, RefusedNotDue, RefusedAlive:
		return nil
	}
	return fmt.Errorf("refused: %s", string(r)) // a word of newer functions than this binary knows
}

// RefusedError is a refusal with the job it is about; errors.Is sees the sentinel.
type RefusedError struct {
	Verb       Verb
	JobID      uuid.UUID // enqueue: who has the key or id; zero if an earlier element of the batch, or an open transaction
	Generation int       // what the caller showed; 0 for verbs without one
	Refusal    Refusal
	Outcome    Outcome // how the job ended, where Refusal is ended
	Index      int     // enqueue: which element of the batch, from 0
}

func (e *RefusedError) Error() string {
	s := string(e.Verb)
	if e.JobID != uuid.Nil {
		s += " job " + e.JobID.String()
	} else {
		s += fmt.Sprintf(": job %d", e.Index)
	}
	if e.Generation > 0 {
		s += fmt.Sprintf(" generation %d", e.Generation)
	}
	s += ": " + e.Unwrap().Error()
	if e.Outcome != "" {
		s += " with outcome " + string(e.Outcome)
	}
	if e.Refusal == RefusedKeyConflict && e.JobID == uuid.Nil {
		s += " earlier in the batch"
	}
	return s
}

// Unwrap returns the sentinel of the refusal.
func (e *RefusedError) Unwrap() error { return e.Refusal.Err() }

// UnknownOutcomeError says that the database's answer did not arrive, and could not be had within the bounds
// of package ledger. Err is the last error; errors.Is sees it and ErrUnknownOutcome.
//
// What to do about an enqueue without keys: make the call again with JobIDs as EnqueueParams.ID. Done now,
// it is answered as usual; ErrExists says that it had been carried out before. (Or look the ids up with
// Ledger.Job, once the first sending cannot run any more.) All other calls may be made again as they are.
type UnknownOutcomeError struct {
	Verb Verb
	// JobIDs are the jobs of the call in its order, for enqueue those that it was about to create; nil
	// for claim and reap.
	JobIDs []uuid.UUID
	// Repeatable: the same call may be made again as it is. Only an enqueue without keys is not: it
	// would create other jobs.
	Repeatable bool
	Err        error
}

func (e *UnknownOutcomeError) Error() string {
	s := string(e.Verb)
	if len(e.JobIDs) == 1 {
		s += " job " + e.JobIDs[0].String()
	} else if len(e.JobIDs) > 1 {
		s += fmt.Sprintf(" %d jobs", len(e.JobIDs))
	}
	return fmt.Sprintf("%s: %v: %v", s, ErrUnknownOutcome, e.Err)
}

// Unwrap returns ErrUnknownOutcome and the last error.
func (e *UnknownOutcomeError) Unwrap() []error { return []error{ErrUnknownOutcome, e.Err} }

// FieldError is input that was refused at the door; nothing was stored.
type FieldError struct {
	Index int    // which element of a batch, from 0
	Field string // as in JSON: "tag", "policy.timeout", "args.to[2]"
	Value any    // what was given; shortened when printed
	Want  string // what would be right
}

// maxShown is how many bytes of a refused value an error shows.
const maxShown = 80

// Described is the Value of a FieldError in words, or as JSON text: it is printed without quotation marks.
type Described string

func (e *FieldError) Error() string {
	v := fmt.Sprint(e.Value)
	text, cut := head(v, maxShown), ""
	if len(text) < len(v) {
		cut = fmt.Sprintf("... (%d bytes)", len(v))
	}
	if _, ok := e.Value.(string); ok {
		text = strconv.Quote(text)
	}
	return fmt.Sprintf("%s: got %s%s, want %s", e.Field, text, cut, e.Want)
}

// head is the beginning of s in at most n bytes, no character cut in two.
func head(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// FoldError names the event that cannot follow the ones before it.
type FoldError struct {
	Event   Event
	Problem string
}

func (e *FoldError) Error() string {
	return fmt.Sprintf("fold job %s at version %d: %s", e.Event.JobID, e.Event.Version, e.Problem)
}
