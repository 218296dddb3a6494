package domain

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/google/uuid"
)

// OnLostLease says what becomes of a job whose owner stopped pinging.
type OnLostLease string

// The choices, fixed at enqueue.
const (
	Restart   OnLostLease = "restart"   // run it again, up to RestartLimit times
	FailIt    OnLostLease = "fail"      // repeating is not safe: end it as a dead letter
	Reconcile OnLostLease = "reconcile" // no lease at all: only a verdict decides
)

// Policy is how a job is retried, timed out and recovered. It is resolved at
// enqueue and never changes for a job afterwards. Wherever a Policy is a parameter, a zero field
// means its default.
type Policy struct {
	// MaxAttempts is how many attempts may fail before the job is a dead letter. 1 to 1000, default 25.
	MaxAttempts int
	// Timeout is how long one attempt may run, counted from its claim. 1 s to 30 days, default 1 h.
	Timeout time.Duration
	// RestartLimit is how many lost leases are forgiven; the next one ends the job. 1 to 1000 or
	// None, default 3.
	RestartLimit int
	// OnLostLease is what happens to the job when its lease is lost. Default Restart.
	OnLostLease OnLostLease
	// BackoffBase is the delay after the first failed attempt. 1 ms to 24 h, default 1 s.
	BackoffBase time.Duration
	// BackoffFactor multiplies the delay after each further attempt, in percent. 100 to 10000, default 200.
	BackoffFactor int
	// BackoffCap is the longest delay. At least BackoffBase, at most 30 days, default 10 min.
	BackoffCap time.Duration
	// BackoffJitter is the part of the delay, in percent, that is spread evenly: with 20
	// the delay lies between 80 % and 100 % of the computed one. 1 to 100 or None, default 20.
	BackoffJitter int
	// StallAfter is how long a handler may go without reporting progress. 0 (default) means
	// that progress is not watched, else 1 s to 30 days.
	StallAfter time.Duration
}

// DefaultPolicy is what a job gets when its enqueue names no policy.
var DefaultPolicy = Policy{
	MaxAttempts:   25,
	Timeout:       time.Hour,
	RestartLimit:  3,
	OnLostLease:   Restart,
	BackoffBase:   time.Second,
	BackoffFactor: 200,
	BackoffCap:    10 * time.Minute,
	BackoffJitter: 20,
}

// None as RestartLimit or BackoffJitter of a parameter means 0: no restart, no jitter. Zero itself
// means the default, as in every other field.
const None = -1

// WithDefaults resolves a Policy that was given as a parameter: zero fields get their default, None
// becomes 0. Apply it once: in a resolved policy 0 is a value.
func (p Policy) WithDefaults() Policy {
	p.MaxAttempts = cmp.Or(p.MaxAttempts, DefaultPolicy.MaxAttempts)
	p.Timeout = cmp.Or(p.Timeout, DefaultPolicy.Timeout)
	p.RestartLimit = orNone(p.RestartLimit, DefaultPolicy.RestartLimit)
	p.OnLostLease = cmp.Or(p.OnLostLease, DefaultPolicy.OnLostLease)
	p.BackoffBase = cmp.Or(p.BackoffBase, DefaultPolicy.BackoffBase)
	p.BackoffFactor = cmp.Or(p.BackoffFactor, DefaultPolicy.BackoffFactor)
	p.BackoffCap = cmp.Or(p.BackoffCap, max(DefaultPolicy.BackoffCap, p.BackoffBase))
	p.BackoffJitter = orNone(p.BackoffJitter, DefaultPolicy.BackoffJitter)
	return p
}

// orNone: 0 is the default, None is 0.
func orNone(n, byDefault int) int {
	switch n {
	case 0:
		return byDefault
	case None:
		return 0
	}
	return n
}

const maxDelay = 30 * 24 * time.Hour

// Validate returns a *FieldError for the first field outside its documented bounds.
func (p Policy) Validate() error {
	switch {
	case p.MaxAttempts < 1 || p.MaxAttempts > 1000:
		return &FieldError{Field: "policy.max_attempts", Value: p.MaxAttempts, Want: "1 to 1000"}
	case p.Timeout < time.Second || p.Timeout > maxDelay:
		return &FieldError{Field: "policy.timeout", Value: p.Timeout, Want: "1s to 720h"}
	case p.RestartLimit < 0 || p.RestartLimit > 1000:
		return &FieldError{Field: "policy.restart_limit", Value: p.RestartLimit, Want: "0 to 1000"}
	case p.OnLostLease != Restart && p.OnLostLease != FailIt && p.OnLostLease != Reconcile:
		return &FieldError{Field: "policy.on_lost_lease", Value: p.OnLostLease, Want: "restart, fail or reconcile"}
	case p.BackoffBase < time.Millisecond || p.BackoffBase > 24*time.Hour:
		return &FieldError{Field: "policy.backoff_base", Value: p.BackoffBase, Want: "1ms to 24h"}
	case p.BackoffFactor < 100 || p.BackoffFactor > 10000:
		return &FieldError{Field: "policy.backoff_factor", Value: p.BackoffFactor, Want: "100 to 10000 percent"}
	case p.BackoffCap < p.BackoffBase || p.BackoffCap > maxDelay:
		return &FieldError{Field: "policy.backoff_cap", Value: p.BackoffCap, Want: "at least backoff_base, at most 720h"}
	case p.BackoffJitter < 0 || p.BackoffJitter > 100:
		return &FieldError{Field: "policy.backoff_jitter", Value: p.BackoffJitter, Want: "0 to 100 percent"}
	case p.StallAfter != 0 && (p.StallAfter < time.Second || p.StallAfter > maxDelay):
		return &FieldError{Field: "policy.stall_after", Value: p.StallAfter, Want: "0 or 1s to 720h"}
	}
	return nil
}

// RetryDelay is how long after the failure of the given attempt (1, 2, ...) the next one is
// due: base * factor^(attempt-1), at most the cap, less a share of the jitter. Whole
// microseconds, integer arithmetic only, so that the SQL function retry_delay agrees to the
// last digit. The jitter is drawn from a hash of the job and the attempt: jobs that fail
// together spread evenly, and the same failure always has the same delay.
func (p Policy) RetryDelay(job uuid.UUID, attempt int) time.Duration {
	limit := p.BackoffCap.Microseconds()
	d := p.BackoffBase.Microseconds()
	for i := 1; i < attempt && d < limit && p.BackoffFactor > 100; i++ {
		d = d * int64(p.BackoffFactor) / 100
	}
	d = min(d, limit)
	span := d * int64(p.BackoffJitter) / 100
	d -= span * jitterDraw(job, attempt) >> 16
	return time.Duration(max(d, 1)) * time.Microsecond
}

// jitterDraw is an even draw from 0 to 65535, fixed for (job, attempt).
func jitterDraw(job uuid.UUID, attempt int) int64 {
	var buf [20]byte
	copy(buf[:16], job[:])
	binary.BigEndian.PutUint32(buf[16:], uint32(attempt))
	sum := sha256.Sum256(buf[:])
	return int64(binary.BigEndian.Uint16(sum[:2]))
}
