package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"io"
	"time"

	"github.com/google/uuid"

	"github.com/jobledger/jobledger/adapters/postgres"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/ledger/worker"
	"github.com/jobledger/jobledger/projections"
)

// The shapes of --json. They are a public interface: fields are added, never renamed. Times are RFC 3339 in UTC, spans
// are seconds, ids are strings, bodies are JSON as it was given, digits kept. What is empty is left out, but for what
// every object of a shape has.

// errorJSON is any error, on standard error. Code is a word for programs: one of the refusals, bad_input, wrong_use or
// interrupted. Field is what was refused, by the name of its flag, or its path in a line. Of enqueue --file, Line is the
// line it is about, or the first of the batch, and StoredLines the last line that is stored.
type errorJSON struct {
	Error       string `json:"error"`
	Hint        string `json:"hint,omitempty"`
	Code        string `json:"code,omitempty"`
	SQLState    string `json:"sqlstate,omitempty"`
	Field       string `json:"field,omitempty"`
	Line        int    `json:"line,omitempty"`
	StoredLines *int   `json:"stored_lines,omitempty"`
}

// enqueuedJSON is the answer to enqueue; with --file there is one for each line.
type enqueuedJSON struct {
	Line     int       `json:"line,omitempty"`
	JobID    uuid.UUID `json:"job_id"`
	Replayed bool      `json:"replayed"`
}

// jobJSON is a job as it is now. The bodies are in `job show` and `job wait` alone.
type jobJSON struct {
	JobID           uuid.UUID         `json:"job_id"`
	State           domain.State      `json:"state"`
	Outcome         domain.Outcome    `json:"outcome,omitempty"`
	Kind            string            `json:"kind"`
	Tag             string            `json:"tag"`
	Priority        int               `json:"priority"`
	Version         int               `json:"version"`
	Generation      int               `json:"generation"`
	Attempt         int               `json:"attempt"`
	Restarts        int               `json:"restarts"`
	Policy          policyJSON        `json:"policy"`
	Labels          map[string]string `json:"labels,omitempty"`
	CorrelationID   string            `json:"correlation_id,omitempty"`
	Traceparent     string            `json:"traceparent,omitempty"`
	EnqueuedAt      time.Time         `json:"enqueued_at,omitzero"`
	ScheduledFor    time.Time         `json:"scheduled_for,omitzero"`
	ChangedAt       time.Time         `json:"changed_at,omitzero"`
	Worker          string            `json:"worker,omitempty"`
	StartedAt       time.Time         `json:"started_at,omitzero"`
	PingedAt        time.Time         `json:"pinged_at,omitzero"`
	LeaseUntil      time.Time         `json:"lease_until,omitzero"`
	TimeoutAt       time.Time         `json:"timeout_at,omitzero"`
	ProgressAt      time.Time         `json:"progress_at,omitzero"`
	EndedAt         time.Time         `json:"ended_at,omitzero"`
	Class           domain.Class      `json:"class,omitempty"`
	Reason          string            `json:"reason,omitempty"`
	CancelRequested bool              `json:"cancel_requested,omitempty"`
	CanceledBy      string            `json:"canceled_by,omitempty"`
	CancelReason    string            `json:"cancel_reason,omitempty"`
	Args            json.RawMessage   `json:"args,omitempty"`
	Result          json.RawMessage   `json:"result,omitempty"`
	Error           string            `json:"error,omitempty"`
	Progress        json.RawMessage   `json:"progress,omitempty"`
	ResultAltered   bool              `json:"result_altered,omitempty"`
	ErrorAltered    bool              `json:"error_altered,omitempty"`
	ProgressAltered bool              `json:"progress_altered,omitempty"`
}

type policyJSON struct {
	MaxAttempts        int                `json:"max_attempts"`
	TimeoutSeconds     float64            `json:"timeout_seconds"`
	RestartLimit       int                `json:"restart_limit"`
	OnLostLease        domain.OnLostLease `json:"on_lost_lease"`
	BackoffBaseSeconds float64            `json:"backoff_base_seconds"`
	BackoffFactor      int                `json:"backoff_factor_percent"`
	BackoffCapSeconds  float64            `json:"backoff_cap_seconds"`
	BackoffJitter      int                `json:"backoff_jitter_percent"`
	StallAfterSeconds  float64            `json:"stall_after_seconds,omitempty"`
}

func policyOf(p domain.Policy) policyJSON {
	return policyJSON{
		MaxAttempts: p.MaxAttempts, TimeoutSeconds: p.Timeout.Seconds(), RestartLimit: p.RestartLimit, OnLostLease: p.OnLostLease,
		BackoffBaseSeconds: p.BackoffBase.Seconds(), BackoffFactor: p.BackoffFactor, BackoffCapSeconds: p.BackoffCap.Seconds(),
		BackoffJitter: p.BackoffJitter, StallAfterSeconds: p.StallAfter.Seconds(),
	}
}

func jobOf(j projections.Job) jobJSON {
	facts := factsOf(j.Facts)
	return jobJSON{
		JobID: j.ID, State: j.State, Outcome: j.Outcome, Kind: j.Kind, Tag: j.Tag, Priority: j.Priority,
		Version: j.Version, Generation: j.Generation, Attempt: j.Attempt, Restarts: j.Restarts, Policy: policyOf(j.Policy),
		Labels: facts.Labels, CorrelationID: facts.CorrelationID, Traceparent: facts.Traceparent,
		EnqueuedAt: j.EnqueuedAt, ScheduledFor: j.ScheduledFor, ChangedAt: j.ChangedAt,
		Worker: j.Worker, StartedAt: j.StartedAt, PingedAt: j.PingedAt, LeaseUntil: j.LeaseUntil, TimeoutAt: j.TimeoutAt,
		ProgressAt: j.ProgressAt, EndedAt: j.EndedAt, Class: j.Class, Reason: j.Reason,
		CancelRequested: j.State == domain.Running && j.CanceledBy != "", CanceledBy: j.CanceledBy, CancelReason: j.CancelReason,
		Args: j.Args, Result: j.Result, Error: j.Error, Progress: j.Progress,
		ResultAltered: j.ResultAltered, ErrorAltered: j.ErrorAltered, ProgressAltered: j.ProgressAltered,
	}
}

// factsOf reads labels and their kin; what is no JSON of ours has none.
func factsOf(text string) (facts ledger.Facts) {
	if text != "" && json.Unmarshal([]byte(text), &facts) != nil {
		return ledger.Facts{}
	}
	return facts
}

// eventJSON is one event of a job's history.
type eventJSON struct {
	JobID        uuid.UUID        `json:"job_id"`
	Version      int              `json:"version"`
	Type         domain.EventType `json:"type"`
	At           time.Time        `json:"at"`
	Generation   int              `json:"generation"`
	Attempt      int              `json:"attempt"`
	Actor        string           `json:"actor"`
	DBUser       string           `json:"db_user"`
	Kind         string           `json:"kind,omitempty"`
	Tag          string           `json:"tag,omitempty"`
	Priority     *int             `json:"priority,omitempty"`
	ScheduledFor time.Time        `json:"scheduled_for,omitzero"`
	LeaseUntil   time.Time        `json:"lease_until,omitzero"`
	Class        domain.Class     `json:"class,omitempty"`
	Reason       string           `json:"reason,omitempty"`
	Verb         domain.Verb      `json:"verb,omitempty"`
	Operation    *uuid.UUID       `json:"operation,omitempty"`
	Digest       string           `json:"digest,omitempty"`
	Altered      bool             `json:"altered,omitempty"`
	Facts        json.RawMessage  `json:"facts,omitempty"`
	Policy       *policyJSON      `json:"policy,omitempty"`
	Origin       *originJSON      `json:"origin,omitempty"`
}

type originJSON struct {
	TriggerKind string     `json:"trigger_kind"`
	TriggerRef  string     `json:"trigger_ref,omitempty"`
	ParentID    *uuid.UUID `json:"parent_id,omitempty"`
	WorkID      *uuid.UUID `json:"work_id,omitempty"`
	PinID       int        `json:"pin_id,omitempty"`
}

func eventOf(e domain.Event) eventJSON {
	out := eventJSON{
		JobID: e.JobID, Version: e.Version, Type: e.Type, At: e.At, Generation: e.Generation, Attempt: e.Attempt, Actor: e.Actor,
		DBUser: e.DBUser, Kind: e.Kind, Tag: e.Tag, ScheduledFor: e.ScheduledFor, LeaseUntil: e.LeaseUntil, Class: e.Class,
		Reason: e.Reason, Verb: e.Verb, Operation: idOrNil(e.Operation), Digest: hex.EncodeToString(e.Digest), Altered: e.Altered,
	}
	if json.Valid([]byte(e.Facts)) {
		out.Facts = json.RawMessage(e.Facts)
	}
	if e.Type == domain.Enqueued {
		policy := policyOf(e.Policy)
		out.Priority, out.Policy = &e.Priority, &policy
		out.Origin = &originJSON{TriggerKind: e.Origin.TriggerKind, TriggerRef: e.Origin.TriggerRef,
			ParentID: idOrNil(e.Origin.ParentID), WorkID: idOrNil(e.Origin.WorkID), PinID: e.Origin.PinID}
	}
	return out
}

func idOrNil(id uuid.UUID) *uuid.UUID {
	if id == uuid.Nil {
		return nil
	}
	return &id
}

// answerJSON is what a verb did to a job: event is what was appended, or error and code say why nothing was.
type answerJSON struct {
	JobID           uuid.UUID        `json:"job_id"`
	Event           domain.EventType `json:"event,omitempty"`
	CancelRequested bool             `json:"cancel_requested,omitempty"`
	Outcome         domain.Outcome   `json:"outcome,omitempty"`
	Version         int              `json:"version,omitempty"`
	Error           string           `json:"error,omitempty"`
	Code            string           `json:"code,omitempty"`
}

func answerOf(r ledger.Answer) answerJSON {
	out := answerJSON{JobID: r.JobID, Event: r.Event, CancelRequested: r.CancelRequested, Outcome: r.Outcome, Version: r.Version}
	if r.Err != nil {
		out.Error, out.Code = r.Err.Error(), code(r.Err)
	}
	return out
}

// bulkJSON is what `jobs cancel` and `jobs redrive` end with.
type bulkJSON struct {
	Operation uuid.UUID      `json:"operation"`
	Matched   int            `json:"matched"`
	Done      int            `json:"done"`
	Refused   map[string]int `json:"refused,omitempty"` // by code
	DryRun    bool           `json:"dry_run,omitempty"`
}

// reapedJSON counts what a pass of the reaper made of the jobs that it took back, by event.
type reapedJSON struct {
	Jobs   int                      `json:"jobs"`
	Events map[domain.EventType]int `json:"events"`
}

// workerJSON is a worker as it was last seen.
type workerJSON struct {
	Worker         string    `json:"worker"`
	State          string    `json:"state"`
	Tags           []string  `json:"tags"`
	Kinds          []string  `json:"kinds"`
	Host           string    `json:"host"`
	PID            int       `json:"pid"`
	Slots          int       `json:"slots"`
	Running        int       `json:"running"`
	Leases         int64     `json:"leases"`
	StartedAt      time.Time `json:"started_at"`
	SeenAt         time.Time `json:"seen_at"`
	SeenAgoSeconds float64   `json:"seen_ago_seconds"`
}

func workerOf(w projections.Worker) workerJSON {
	return workerJSON{Worker: w.Worker, State: w.State, Tags: w.Tags, Kinds: w.Kinds, Host: w.Host, PID: w.PID, Slots: w.Slots,
		Running: w.Running, Leases: w.Leases, StartedAt: w.StartedAt.UTC(), SeenAt: w.SeenAt.UTC(), SeenAgoSeconds: w.SeenAgo.Seconds()}
}

// verifiedJSON is the outcome of verify.
type verifiedJSON struct {
	OK       bool          `json:"ok"`
	Jobs     int64         `json:"jobs"`
	Events   int64         `json:"events"`
	Bodies   int64         `json:"bodies"`
	Findings []findingJSON `json:"findings"`
	More     bool          `json:"more,omitempty"`
}

type findingJSON struct {
	JobID   uuid.UUID `json:"job_id"`
	Version int       `json:"version,omitempty"`
	Problem string    `json:"problem"`
}

// migrationJSON is how far a schema is.
type migrationJSON struct {
	postgres.Status
	UpToDate bool   `json:"up_to_date"`
	Misfit   string `json:"misfit,omitempty"` // why this binary cannot work with it, as a code of errors
}

// pgStatusJSON is the private Postgres. Clients is left out where the system doesn't tell.
type pgStatusJSON struct {
	Running   bool      `json:"running"`
	DataDir   string    `json:"data_dir"`
	Major     int       `json:"major,omitempty"`
	URL       string    `json:"url,omitempty"`
	PID       int       `json:"pid,omitempty"`
	StartedAt time.Time `json:"started_at,omitzero"`
	Clients   *int      `json:"clients,omitempty"`
	TCPPort   int       `json:"tcp_port,omitempty"`
	ServerLog string    `json:"server_log,omitempty"`
}

// upJSON is what `up` prints once it is ready. URL is left out where it was given.
type upJSON struct {
	URL    string `json:"url,omitempty"`
	Schema string `json:"schema"`
}

// workedJSON is what a worker has done by its end.
type workedJSON struct {
	Worker    string `json:"worker"`
	Claimed   int64  `json:"claimed"`
	Succeeded int64  `json:"succeeded"`
	Retried   int64  `json:"retried"`
	Failed    int64  `json:"failed"`
	Canceled  int64  `json:"canceled"`
	Released  int64  `json:"released"`
	Snoozed   int64  `json:"snoozed"`
	TimedOut  int64  `json:"timed_out"`
	Lost      int64  `json:"lost"`
	Refused   int64  `json:"refused"`
}

func workedOf(name string, s worker.Stats) workedJSON {
	return workedJSON{Worker: name, Claimed: s.Claimed, Succeeded: s.Succeeded, Retried: s.Retried, Failed: s.Failed, Canceled: s.Canceled,
		Released: s.Released, Snoozed: s.Snoozed, TimedOut: s.TimedOut, Lost: s.Lost, Refused: s.Refused}
}

// versionJSON is the binary.
type versionJSON struct {
	Version   string `json:"version"`
	Commit    string `json:"commit,omitempty"`
	Go        string `json:"go"`
	Functions int    `json:"functions"`
}

// printJSON writes a result in JSON; what a person's terminal would obey in it is escaped.
func (a *app) printJSON(v any) error {
	if !isTerminal(a.stdout) {
		return printJSON(a.stdout, v)
	}
	var b bytes.Buffer
	if err := printJSON(&b, v); err != nil {
		return err
	}
	_, err := a.stdout.Write(inertJSON(b.Bytes()))
	return err
}

// printJSON writes v on a line of its own. Bodies lose their white space and keep everything else.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
