package worker

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jobledger/jobledger/domain"
)

// Why a handler's context ended: what context.Cause returns.
var (
	// ErrCanceled: somebody asked the job to stop. Whatever the handler returns but success ends the
	// job canceled.
	ErrCanceled = errors.New("job was canceled")
	// ErrLeaseLost: the lease is over, or will be before another ping can get through. Another worker
	// may start the job; what the handler does from now on may be done twice.
	ErrLeaseLost = errors.New("lease is lost")
	// ErrTimedOut: the attempt ran longer than its policy allows.
	ErrTimedOut = errors.New("attempt timed out")
	// ErrStopping: the worker stops. A handler that returns an error now has its job released unspent.
	ErrStopping = errors.New("worker is stopping")
	// ErrKilled: the worker was killed; nothing is reported any more.
	ErrKilled = errors.New("worker was killed")
)

// StopError says what a graceful stop could not bring to its end.
type StopError struct {
	// Abandoned handlers had not returned; their jobs were released while they still ran.
	Abandoned int
	// Unreported outcomes were not committed; their jobs are taken back when the leases end.
	Unreported int
}

func (e *StopError) Error() string {
	return fmt.Sprintf("stop worker: %d handlers did not return, %d outcomes were not committed", e.Abandoned, e.Unreported)
}

// verdict is an error with which a handler says what is to become of its job.
type verdict struct {
	err       error
	class     domain.Class
	permanent bool
	after     *time.Duration
	snooze    *time.Duration
	reason    string
}

func (v *verdict) Error() string { return v.err.Error() }
func (v *verdict) Unwrap() error { return v.err }

// Retry fails the attempt with err and makes the next one due after the given time in place of the
// one that the policy computes; at most ten years. If it was the last attempt, the job is a dead
// letter all the same.
func Retry(err error, after time.Duration) error {
	after = min(max(after, 0), domain.MaxDelay)
	return &verdict{err: orUnnamed(err), after: &after}
}

// Permanent fails the job with err: trying again is pointless.
func Permanent(err error) error {
	return &verdict{err: orUnnamed(err), permanent: true}
}

// Classed fails the attempt with err and says why: domain.ClassInvalidInput makes a dead letter at
// once, an unknown class counts as domain.ClassTransient.
func Classed(err error, class domain.Class) error {
	return &verdict{err: orUnnamed(err), class: class}
}

// Snooze puts the job off by d, at most ten years, without spending the attempt. The reason is one
// line of at most 1 KiB; what does not fit is left out.
func Snooze(d time.Duration, reason string) error {
	d = min(max(d, 0), domain.MaxDelay)
	reason = oneLine(reason, domain.MaxReasonBytes)
	return &verdict{err: fmt.Errorf("snoozed for %s: %s", d, reason), snooze: &d, reason: reason}
}

func orUnnamed(err error) error {
	if err == nil {
		return errors.New("the handler gave no reason")
	}
	return err
}

// oneLine makes s fit where one line is asked for.
func oneLine(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r <= 0x9f || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s)
	for len(s) > limit {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}

// panicError is a handler's panic with its stack.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v\n\n%s", e.value, e.stack) }
