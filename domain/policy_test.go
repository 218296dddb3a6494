package domain_test

import (
	"encoding/binary"
	"errors"
	"math/big"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
)

// numbered is a job id that differs in its last bytes.
func numbered(n int) uuid.UUID {
	var id uuid.UUID
	binary.BigEndian.PutUint32(id[12:], uint32(n))
	id[6], id[8] = 0x70, 0x80
	return id
}

const most = 720 * time.Hour // the longest delay that a policy may have

// TestRetryDelay/bounds: for every accepted extreme and 200 attempts the delay is positive, at most the cap,
// at least what the jitter leaves of base * factor^(attempt-1), and never shorter than the one before it
// where there is no jitter.
func TestRetryDelay(t *testing.T) {
	t.Parallel()
	t.Run("bounds", func(t *testing.T) {
		for _, base := range []time.Duration{time.Millisecond, time.Second, 24 * time.Hour} {
			for _, limit := range []time.Duration{base, base + time.Microsecond, 10*time.Minute + base, most} {
				for _, factor := range []int{100, 101, 200, 333, 10000} {
					for _, jitter := range []int{0, 1, 20, 100} {
						p := domain.DefaultPolicy
						p.BackoffBase, p.BackoffCap, p.BackoffFactor, p.BackoffJitter = base, limit, factor, jitter
						if err := p.Validate(); err != nil {
							t.Fatal(err)
						}
						checkDelays(t, p)
					}
				}
			}
		}
	})
	t.Run("doubles_up_to_the_cap", func(t *testing.T) {
		p := domain.DefaultPolicy
		p.BackoffJitter = 0
		for attempt, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 10: 512 * time.Second, 11: 10 * time.Minute, 200: 10 * time.Minute} {
			if got := p.RetryDelay(numbered(1), attempt); got != want {
				t.Errorf("attempt %d: %s, want %s", attempt, got, want)
			}
		}
	})
	t.Run("jitter_is_even_and_fixed", func(t *testing.T) {
		p := domain.DefaultPolicy
		p.BackoffBase, p.BackoffCap, p.BackoffJitter = 100*time.Second, 100*time.Second, 40
		const jobs = 20000
		var tenths [10]int // of the span of 40 s below 100 s
		for n := range jobs {
			d := p.RetryDelay(numbered(n), 1)
			if d != p.RetryDelay(numbered(n), 1) {
				t.Fatalf("job %d has two delays", n)
			}
			tenths[min(int((d-60*time.Second)/(4*time.Second)), 9)]++
		}
		for i, n := range tenths {
			if n < jobs/10*9/10 || n > jobs/10*11/10 {
				t.Errorf("tenth %d of the span has %d of %d jobs", i, n, jobs)
			}
		}
	})
}

func checkDelays(t *testing.T, p domain.Policy) {
	t.Helper()
	before := time.Duration(0)
	for attempt := range 201 {
		full := fullDelay(p, attempt)
		for n := range 3 {
			d := p.RetryDelay(numbered(n), attempt)
			least := max(full-full*time.Duration(p.BackoffJitter)/100, time.Microsecond)
			if d < least || d > full || d > p.BackoffCap || d%time.Microsecond != 0 {
				t.Fatalf("attempt %d of %+v: %s, want %s to %s", attempt, p, d, least, full)
			}
			if p.BackoffJitter == 0 && d < before {
				t.Fatalf("attempt %d of %+v: %s after %s", attempt, p, d, before)
			}
			before = d
		}
	}
}

// fullDelay is base * factor^(attempt-1), at most the cap, in whole microseconds at each step: with
// integers that cannot overflow, and every step taken.
func fullDelay(p domain.Policy, attempt int) time.Duration {
	d, limit := big.NewInt(p.BackoffBase.Microseconds()), big.NewInt(p.BackoffCap.Microseconds())
	for range attempt - 1 {
		d.Mul(d, big.NewInt(int64(p.BackoffFactor)))
		d.Div(d, big.NewInt(100))
	}
	if d.Cmp(limit) > 0 {
		d = limit
	}
	return time.Duration(d.Int64()) * time.Microsecond
}

// TestPolicyValidate tries the bounds that the fields document; the field is named in the error.
func TestPolicyValidate(t *testing.T) {
	t.Parallel()
	if err := domain.DefaultPolicy.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		field string
		set   func(p *domain.Policy, v time.Duration) // the value, as a number where the field is one
		ok    []time.Duration
		bad   []time.Duration
	}{
		{"policy.max_attempts", func(p *domain.Policy, v time.Duration) { p.MaxAttempts = int(v) }, spans(1, 1000), spans(-1, 0, 1001)},
		{"policy.timeout", func(p *domain.Policy, v time.Duration) { p.Timeout = v }, spans(time.Second, most), spans(-1, 0, time.Second-1, most+1)},
		{"policy.restart_limit", func(p *domain.Policy, v time.Duration) { p.RestartLimit = int(v) }, spans(0, 1000), spans(-1, 1001)},
		{"policy.backoff_base", func(p *domain.Policy, v time.Duration) { p.BackoffBase, p.BackoffCap = v, most }, spans(time.Millisecond, 24*time.Hour), spans(-1, 0, time.Millisecond-1, 24*time.Hour+1)},
		{"policy.backoff_factor", func(p *domain.Policy, v time.Duration) { p.BackoffFactor = int(v) }, spans(100, 10000), spans(-200, 0, 99, 10001)},
		{"policy.backoff_cap", func(p *domain.Policy, v time.Duration) { p.BackoffCap = v }, spans(time.Second, most), spans(-1, 0, time.Second-1, most+1)},
		{"policy.backoff_jitter", func(p *domain.Policy, v time.Duration) { p.BackoffJitter = int(v) }, spans(0, 100), spans(-1, 101)},
		{"policy.stall_after", func(p *domain.Policy, v time.Duration) { p.StallAfter = v }, spans(0, time.Second, most), spans(-1, 1, time.Second-1, most+1)},
	} {
		for _, v := range c.ok {
			p := domain.DefaultPolicy
			if c.set(&p, v); p.Validate() != nil {
				t.Errorf("%s %d: %v", c.field, v, p.Validate())
			}
		}
		for _, v := range c.bad {
			p := domain.DefaultPolicy
			c.set(&p, v)
			if f, ok := errors.AsType[*domain.FieldError](p.Validate()); !ok || f.Field != c.field {
				t.Errorf("%s %d: %v, want a FieldError about it", c.field, v, p.Validate())
			}
		}
	}
	for _, o := range []domain.OnLostLease{"", "retry", "Restart"} {
		p := domain.DefaultPolicy
		p.OnLostLease = o
		if f, ok := errors.AsType[*domain.FieldError](p.Validate()); !ok || f.Field != "policy.on_lost_lease" {
			t.Errorf("on_lost_lease %q: %v", o, p.Validate())
		}
	}
}

func spans(v ...time.Duration) []time.Duration { return v }

// TestPolicyDefaults: zero fields get the default; None says zero where that is a value.
func TestPolicyDefaults(t *testing.T) {
	t.Parallel()
	if got := (domain.Policy{}).WithDefaults(); got != domain.DefaultPolicy {
		t.Errorf("the zero policy becomes %+v", got)
	}
	want := domain.DefaultPolicy
	want.MaxAttempts, want.RestartLimit, want.BackoffJitter = 7, 0, 0
	if got := (domain.Policy{MaxAttempts: 7, RestartLimit: domain.None, BackoffJitter: domain.None}).WithDefaults(); got != want {
		t.Errorf("a policy without restarts and jitter becomes %+v, want %+v", got, want)
	}
	want = domain.DefaultPolicy
	want.MaxAttempts = 7
	if got := (domain.Policy{MaxAttempts: 7}).WithDefaults(); got != want {
		t.Errorf("a policy with 7 attempts becomes %+v, want %+v", got, want)
	}
	// A base above the default cap raises the cap, so that every single field may be given alone.
	if p := (domain.Policy{BackoffBase: time.Hour}).WithDefaults(); p.Validate() != nil {
		t.Errorf("%+v: %v", p, p.Validate())
	}
}
