package domain_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/domain"
)

var noon = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// history numbers events of one job, a second apart.
func history(types ...domain.EventType) []domain.Event {
	out := make([]domain.Event, len(types))
	for i, t := range types {
		out[i] = domain.Event{JobID: numbered(1), Version: i + 1, Type: t, At: noon.Add(time.Duration(i) * time.Second), Policy: domain.DefaultPolicy}
		if t == domain.Claimed {
			out[i].Generation, out[i].Attempt, out[i].Actor, out[i].LeaseUntil = 1, 1, "w1", out[i].At.Add(time.Minute)
		}
	}
	return out
}

// waysTo are the shortest histories that leave a job in each state.
var waysTo = map[domain.State][]domain.EventType{
	domain.Gone:    {},
	domain.Waiting: {domain.Enqueued},
	domain.Running: {domain.Enqueued, domain.Claimed},
	domain.Ended:   {domain.Enqueued, domain.Claimed, domain.Failed},
}

// legal says in which states an event may happen, as written down by hand: w waiting, r running, e ended,
// - not there yet.
const legal = `
enqueued          -
claimed           w
pinged            r
completed         r
retried           r
failed            r
released          r
snoozed           r
cancel_requested  r
canceled          wr
reaped            r
redriven          e
rejected          wre
`

// TestFold/refuses: every event type in every state is folded or refused as the table says.
func TestFold(t *testing.T) {
	t.Parallel()
	letters := map[domain.State]string{domain.Gone: "-", domain.Waiting: "w", domain.Running: "r", domain.Ended: "e"}
	t.Run("refuses", func(t *testing.T) {
		lines := strings.Fields(legal)
		if len(lines)/2 != len(domain.Registry) {
			t.Errorf("the table has %d event types, the registry %d", len(lines)/2, len(domain.Registry))
		}
		for i := 0; i < len(lines); i += 2 {
			typ, allowed := domain.EventType(lines[i]), lines[i+1]
			for state, way := range waysTo {
				j, err := domain.Fold(history(append(slices.Clone(way), typ)...))
				if ok := strings.Contains(allowed, letters[state]); ok != (err == nil) {
					t.Errorf("%s of a job that is %q: %v, want allowed %t", typ, state, err, ok)
				}
				if err != nil && (j.State != state || j.Version != len(way)) {
					t.Errorf("%s of a job that is %q was refused, but changed it: %+v", typ, state, j)
				}
				wantFoldError(t, err, len(way)+1)
			}
		}
	})
	t.Run("wants_dense_versions", func(t *testing.T) {
		for _, version := range []int{0, 1, 2, 4, -1} {
			events := history(domain.Enqueued, domain.Claimed, domain.Pinged)
			events[2].Version = version
			_, err := domain.Fold(events)
			if err == nil {
				t.Errorf("version %d after 2 was folded", version)
			}
			wantFoldError(t, err, version)
		}
	})
	t.Run("wants_one_job", func(t *testing.T) {
		events := history(domain.Enqueued, domain.Claimed)
		events[1].JobID = numbered(2)
		if _, err := domain.Fold(events); err == nil {
			t.Error("an event of another job was folded")
		}
	})
	t.Run("passes_over_unknown_types", func(t *testing.T) {
		with, err := domain.Fold(history(domain.Enqueued, "annotated", domain.Claimed, "annotated"))
		if err != nil || with.State != domain.Running || with.Version != 4 {
			t.Errorf("got %+v, %v, want a running job at version 4", with, err)
		}
	})
	t.Run("nothing_is_gone", func(t *testing.T) {
		if j, err := domain.Fold(nil); err != nil || j != (domain.Job{}) {
			t.Errorf("no events give %+v, %v", j, err)
		}
	})
	t.Run("a_rejected_event_raises_the_version_only", func(t *testing.T) {
		for state, way := range waysTo {
			if state == domain.Gone {
				continue
			}
			want, err := domain.Fold(history(way...))
			if err != nil {
				t.Fatal(err)
			}
			got, err := domain.Fold(history(append(slices.Clone(way), domain.Rejected, domain.Rejected)...))
			if want.Version += 2; err != nil || got != want {
				t.Errorf("%s: got %+v, %v, want %+v", state, got, err, want)
			}
		}
	})
}

// wantFoldError wants err, if there is one, to name the event of that version.
func wantFoldError(t *testing.T, err error, version int) {
	t.Helper()
	if err == nil {
		return
	}
	if f, ok := errors.AsType[*domain.FoldError](err); !ok || f.Event.Version != version {
		t.Errorf("error %v, want a FoldError that names version %d", err, version)
	}
}

// TestFoldLives follows a job through two lives: what a redrive begins anew and what goes on.
func TestFoldLives(t *testing.T) {
	t.Parallel()
	at := func(n int) time.Time { return noon.Add(time.Duration(n) * time.Second) }
	id := numbered(7)
	events := []domain.Event{
		{JobID: id, Version: 1, Type: domain.Enqueued, At: at(0), Kind: "mail", Tag: "t", Priority: 4, ScheduledFor: at(0), Policy: domain.DefaultPolicy, Facts: `{}`},
		{JobID: id, Version: 2, Type: domain.Claimed, At: at(1), Generation: 1, Attempt: 1, Actor: "w1", LeaseUntil: at(61)},
		{JobID: id, Version: 3, Type: domain.Pinged, At: at(2), Generation: 1, Attempt: 1, Actor: "w1", LeaseUntil: at(62), Digest: []byte("p")},
		{JobID: id, Version: 4, Type: domain.Reaped, At: at(62), Generation: 1, Attempt: 0, Actor: "reaper"},
		{JobID: id, Version: 5, Type: domain.Claimed, At: at(63), Generation: 2, Attempt: 1, Actor: "w2", LeaseUntil: at(123)},
		{JobID: id, Version: 6, Type: domain.CancelRequested, At: at(64), Generation: 2, Attempt: 1, Actor: "boss", Reason: "why"},
		{JobID: id, Version: 7, Type: domain.CanceledEvent, At: at(65), Generation: 2, Attempt: 1, Actor: "w2", Reason: "why", Class: domain.ClassPanic, Digest: []byte("e")},
		{JobID: id, Version: 8, Type: domain.Redriven, At: at(70), Generation: 2, Attempt: 0, Actor: "boss", ScheduledFor: at(70)},
		{JobID: id, Version: 9, Type: domain.Claimed, At: at(71), Generation: 3, Attempt: 1, Actor: "w1", LeaseUntil: at(131)},
		{JobID: id, Version: 10, Type: domain.Completed, At: at(72), Generation: 3, Attempt: 1, Actor: "w1", Digest: []byte("r")},
	}
	base := domain.Job{ID: id, Kind: "mail", Tag: "t", Priority: 4, ScheduledFor: at(0), Policy: domain.DefaultPolicy, Facts: `{}`, EnqueuedAt: at(0)}
	for version, change := range map[int]func(*domain.Job){
		4: func(j *domain.Job) {
			j.State, j.Generation, j.Restarts, j.ChangedAt, j.ProgressVersion = domain.Waiting, 1, 1, at(62), 3
		},
		6: func(j *domain.Job) {
			j.State, j.Generation, j.Attempt, j.Restarts, j.ChangedAt, j.ProgressVersion = domain.Running, 2, 1, 1, at(64), 3
			j.Worker, j.StartedAt, j.LeaseUntil, j.TimeoutAt = "w2", at(63), at(123), at(63).Add(time.Hour)
			j.CanceledBy, j.CancelReason = "boss", "why"
		},
		7: func(j *domain.Job) {
			j.State, j.Generation, j.Attempt, j.Restarts, j.ChangedAt, j.ProgressVersion = domain.Ended, 2, 1, 1, at(65), 3
			j.Worker, j.StartedAt, j.Outcome, j.EndedAt, j.ErrorVersion = "w2", at(63), domain.Canceled, at(65), 7
			j.CanceledBy, j.CancelReason = "boss", "why"
		},
		8: func(j *domain.Job) {
			j.State, j.Generation, j.ChangedAt, j.ProgressVersion, j.ErrorVersion, j.ScheduledFor = domain.Waiting, 2, at(70), 3, 7, at(70)
		},
		10: func(j *domain.Job) {
			j.State, j.Generation, j.Attempt, j.ChangedAt, j.ProgressVersion, j.ErrorVersion, j.ScheduledFor = domain.Ended, 3, 1, at(72), 3, 7, at(70)
			j.Worker, j.StartedAt, j.Outcome, j.EndedAt, j.ResultVersion = "w1", at(71), domain.Success, at(72), 10
		},
	} {
		want := base
		want.Version = version
		change(&want)
		if got, err := domain.Fold(events[:version]); err != nil || got != want {
			t.Errorf("version %d:\n got %+v, %v\nwant %+v", version, got, err, want)
		}
	}
	if events[0].JobID == uuid.Nil {
		t.Error("a job needs an id")
	}
}
