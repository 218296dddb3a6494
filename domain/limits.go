package domain

import (
	"math"
	"strconv"
	"time"
	"unicode/utf8"
)

// The limits at the door. SQL has the same ones, and a test compares both.
const (
	MaxNameBytes     = 255                       // tag, kind
	MaxKeyBytes      = 255                       // idempotency key
	MaxActorBytes    = 255                       // actor, worker
	MaxReasonBytes   = 1024                      // reason of a cancel, snooze or redrive
	MaxRefBytes      = 1 << 10                   // what in the trigger's own world created the job
	MaxArgsBytes     = 1 << 20                   // args, result
	MaxErrorBytes    = 64 << 10                  // error text
	MaxProgressBytes = 4 << 10                   // progress details
	MaxFactsBytes    = 4 << 10                   // labels, correlation id and traceparent together, as JSON
	MaxLabels        = 16                        // labels of one job
	MinPriority      = -32768                    // lowest
	MaxPriority      = 32767                     // highest
	MinLease         = time.Second               // shortest lease
	MaxLease         = 24 * time.Hour            // longest lease
	DefaultLease     = time.Minute               // of a claim or ping that names none
	MaxBatch         = 10000                     // jobs in one call
	MaxNames         = 1000                      // tags that a worker serves, kinds that it has handlers for
	DefaultTag       = "default"                 // where a job goes that names no tag
	MaxDelay         = 10 * 365 * 24 * time.Hour // delays and life times of keys
	DefaultKeyTTL    = 7 * 24 * time.Hour        // how long a key outlives its job
)

// The span of due times.
var (
	MinTime = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	MaxTime = time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)
)

// CheckName tests a tag or kind: 1 to 255 bytes of ASCII letters, digits and . _ : / -
func CheckName(field, s string) error {
	ok := len(s) >= 1 && len(s) <= MaxNameBytes
	for i := 0; ok && i < len(s); i++ {
		c := s[i]
		ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			c == '.' || c == '_' || c == ':' || c == '/' || c == '-'
	}
	if !ok {
		return &FieldError{Field: field, Value: s, Want: "1 to 255 bytes of ASCII letters, digits and ._:/-"}
	}
	return nil
}

// CheckNames tests a list of tags or kinds: at least so many, at most MaxNames.
func CheckNames(field string, names []string, atLeast int) error {
	if len(names) < atLeast || len(names) > MaxNames {
		return &FieldError{Field: field, Value: strconv.Itoa(len(names)) + " names", Want: strconv.Itoa(atLeast) + " to 1000 names"}
	}
	for _, name := range names {
		if err := CheckName(field, name); err != nil {
			return err
		}
	}
	return nil
}

// CheckText tests free text of 1 to limit bytes: valid UTF-8 without control characters.
func CheckText(field, s string, limit int) error {
	ok := len(s) >= 1 && len(s) <= limit && utf8.ValidString(s)
	for _, r := range s {
		ok = ok && r >= 0x20 && r != 0x7f && (r < 0x80 || r > 0x9f)
	}
	if !ok {
		return &FieldError{Field: field, Value: s, Want: "1 to " + strconv.Itoa(limit) + " bytes of UTF-8 without control characters"}
	}
	return nil
}

// CheckPriority tests the range of a priority.
func CheckPriority(p int) error {
	if p < MinPriority || p > MaxPriority {
		return &FieldError{Field: "priority", Value: p, Want: "-32768 to 32767"}
	}
	return nil
}

// CheckTime tests that a due time lies in the years 1970 to 9999.
func CheckTime(field string, t time.Time) error {
	if t.Before(MinTime) || t.After(MaxTime) {
		return &FieldError{Field: field, Value: t, Want: "a time within the years 1970 to 9999"}
	}
	return nil
}

// CheckLease tests the length of a lease.
func CheckLease(d time.Duration) error {
	if d < MinLease || d > MaxLease {
		return &FieldError{Field: "lease", Value: d, Want: "1s to 24h"}
	}
	return nil
}

// CheckBatch tests how many jobs one call names.
func CheckBatch(n int) error {
	if n > MaxBatch {
		return &FieldError{Field: "jobs", Value: n, Want: "at most 10000 jobs in one call"}
	}
	return nil
}

// CheckMaxJobs tests how many jobs a claim or reap takes at most.
func CheckMaxJobs(n int) error {
	if n < 1 || n > MaxBatch {
		return &FieldError{Field: "max_jobs", Value: n, Want: "1 to 10000"}
	}
	return nil
}

// CheckCount tests a number that counts something: 0 or more, as Postgres has room for.
func CheckCount(field string, n int) error {
	if n < 0 || n > math.MaxInt32 {
		return &FieldError{Field: field, Value: n, Want: "0 or more"}
	}
	return nil
}

// CheckDelay tests a delay or life time: 0 to ten years.
func CheckDelay(field string, d time.Duration) error {
	if d < 0 || d > MaxDelay {
		return &FieldError{Field: field, Value: d, Want: "0 to 87600h"}
	}
	return nil
}
