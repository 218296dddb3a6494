-- +goose Up

-- The sequence is cached by nobody: with CACHE above 1 a session would hold numbers back and
-- hand them out after later ones were sealed.
CREATE SEQUENCE job_event_seq AS bigint CACHE 1;

-- A policy is immutable: a job keeps the id it was enqueued with, so that a later change of a
-- default never reaches it. Row 1 is the default policy (domain.DefaultPolicy; a test compares).
CREATE TABLE policy (
    policy_id       integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest          bytea    NOT NULL UNIQUE,
    max_attempts    integer  NOT NULL CHECK (max_attempts BETWEEN 1 AND 1000),
    timeout         interval NOT NULL CHECK (timeout BETWEEN '1 second' AND '720 hours'),
    restart_limit   integer  NOT NULL CHECK (restart_limit BETWEEN 0 AND 1000),
    on_lost_lease   text     NOT NULL CHECK (on_lost_lease IN ('restart', 'fail', 'reconcile')),
    backoff_base    interval NOT NULL CHECK (backoff_base BETWEEN '1 millisecond' AND '24 hours'),
    backoff_factor  integer  NOT NULL CHECK (backoff_factor BETWEEN 100 AND 10000),
    backoff_cap     interval NOT NULL CHECK (backoff_cap >= backoff_base AND backoff_cap <= '720 hours'),
    backoff_jitter  integer  NOT NULL CHECK (backoff_jitter BETWEEN 0 AND 100),
    stall_after     interval CHECK (stall_after BETWEEN '1 second' AND '720 hours')
);

INSERT INTO policy (digest, max_attempts, timeout, restart_limit, on_lost_lease,
                    backoff_base, backoff_factor, backoff_cap, backoff_jitter)
VALUES (sha256('25|3600000000|3|restart|1000000|200|600000000|20|0'), 25, '1 hour', 3, 'restart',
        '1 second', 200, '10 minutes', 20);

-- The ledger itself: one row per fact, appended in the statement whose guard allowed it,
-- never changed. Columns are ordered by alignment; what a type does not use is null and
-- costs a bit. seq is an identity, not an order: it becomes visible out of order.
CREATE TABLE job_event (
    seq            bigint      NOT NULL DEFAULT nextval('job_event_seq'),
    job_id         uuid        NOT NULL,
    at             timestamptz NOT NULL,
    version        integer     NOT NULL,
    generation     integer     NOT NULL,
    attempt        integer     NOT NULL,
    policy_id      integer,
    scheduled_for  timestamptz,
    lease_until    timestamptz,
    parent_id      uuid,
    work_id        uuid,
    operation      uuid,
    pin_id         integer,
    priority       smallint,
    type           text        NOT NULL,
    actor          text        NOT NULL,
    db_user        text        NOT NULL DEFAULT session_user,
    kind           text,
    tag            text,
    class          text,
    reason         text,
    verb           text,
    digest         bytea,
    policy_digest  bytea,
    trigger_kind   text,
    trigger_ref    text,
    facts          text
) PARTITION BY RANGE (seq);

CREATE TABLE job_event_default PARTITION OF job_event DEFAULT;
CREATE UNIQUE INDEX job_event_default_version ON job_event_default (job_id, version);
CREATE INDEX job_event_default_seq ON job_event_default USING brin (seq);
CREATE INDEX job_event_default_rejected ON job_event_default (job_id, generation) WHERE type = 'rejected';

-- Bodies apart from the facts: args (version 1), result, error text and progress, each under
-- the version of the event that brought it and whose digest is sha256(salt || body). They can
-- be erased without touching the ledger.
CREATE TABLE job_payload (
    job_id   uuid    NOT NULL,
    version  integer NOT NULL,
    salt     uuid    NOT NULL,
    altered  boolean NOT NULL DEFAULT false,
    body     text    NOT NULL,
    PRIMARY KEY (job_id, version)
);

-- A job that exists has exactly one row in job_queue, job_runtime or job_completed: its home.

CREATE TABLE job_queue (
    job_id            uuid        PRIMARY KEY,
    scheduled_for     timestamptz NOT NULL,
    enqueued_at       timestamptz NOT NULL,
    changed_at        timestamptz NOT NULL,
    version           integer     NOT NULL,
    generation        integer     NOT NULL,
    attempt           integer     NOT NULL,
    restarts          integer     NOT NULL,
    policy_id         integer     NOT NULL,
    progress_version  integer     NOT NULL DEFAULT 0,
    error_version     integer     NOT NULL DEFAULT 0,
    priority          smallint    NOT NULL,
    -- A hint, not a state: true as soon as somebody has seen that the job is due. The claim's
    -- index holds ready jobs only, so that a million jobs due later cost it nothing.
    ready             boolean     NOT NULL,
    held              text        CHECK (held IN ('nodes', 'foreign')),
    kind              text        NOT NULL,
    tag               text        NOT NULL,
    facts             text
) WITH (fillfactor = 90);

CREATE INDEX job_queue_claim ON job_queue (tag, priority DESC, scheduled_for, job_id) WHERE ready AND held IS NULL;
CREATE INDEX job_queue_later ON job_queue (tag, scheduled_for) WHERE NOT ready AND held IS NULL;

-- No index has lease_until: pings stay heap-only updates, and the reaper reads the small table.
CREATE TABLE job_runtime (
    job_id            uuid        PRIMARY KEY,
    scheduled_for     timestamptz NOT NULL,
    enqueued_at       timestamptz NOT NULL,
    changed_at        timestamptz NOT NULL,
    started_at        timestamptz NOT NULL,
    lease_until       timestamptz,
    timeout_at        timestamptz,
    pinged_at         timestamptz,
    progress_at       timestamptz,
    version           integer     NOT NULL,
    generation        integer     NOT NULL,
    attempt           integer     NOT NULL,
    restarts          integer     NOT NULL,
    policy_id         integer     NOT NULL,
    progress_version  integer     NOT NULL,
    error_version     integer     NOT NULL,
    priority          smallint    NOT NULL,
    worker            text        NOT NULL,
    kind              text        NOT NULL,
    tag               text        NOT NULL,
    facts             text,
    canceled_by       text,
    cancel_reason     text
) WITH (fillfactor = 70);

-- No foreign key to the other homes: the end of a job deletes its other row in the same statement.
CREATE TABLE job_completed (
    job_id            uuid        PRIMARY KEY,
    scheduled_for     timestamptz NOT NULL,
    enqueued_at       timestamptz NOT NULL,
    changed_at        timestamptz NOT NULL,
    started_at        timestamptz,
    version           integer     NOT NULL,
    generation        integer     NOT NULL,
    attempt           integer     NOT NULL,
    restarts          integer     NOT NULL,
    policy_id         integer     NOT NULL,
    progress_version  integer     NOT NULL,
    error_version     integer     NOT NULL,
    result_version    integer     NOT NULL DEFAULT 0,
    priority          smallint    NOT NULL,
    outcome           text        NOT NULL CHECK (outcome IN ('success', 'failure', 'canceled')),
    kind              text        NOT NULL,
    tag               text        NOT NULL,
    worker            text,
    facts             text,
    class             text,
    reason            text,
    canceled_by       text,
    cancel_reason     text
);

-- Dead letters are few and looked at often.
CREATE INDEX job_completed_failure ON job_completed (changed_at) WHERE outcome = 'failure';

-- Every job with the state that its home means: what people and programs read.
CREATE VIEW job AS
SELECT q.job_id, 'waiting' AS state, q.version, q.generation, q.attempt, q.restarts, q.kind, q.tag, q.priority, q.scheduled_for,
       q.policy_id, q.facts, q.enqueued_at, q.changed_at, q.progress_version, q.error_version, 0 AS result_version,
       NULL::text AS worker, NULL::timestamptz AS started_at, NULL::timestamptz AS pinged_at, NULL::timestamptz AS progress_at,
       NULL::timestamptz AS lease_until, NULL::timestamptz AS timeout_at, NULL::text AS canceled_by, NULL::text AS cancel_reason,
       NULL::text AS outcome, NULL::text AS class, NULL::text AS reason, NULL::timestamptz AS ended_at
FROM job_queue q
UNION ALL
SELECT r.job_id, 'running', r.version, r.generation, r.attempt, r.restarts, r.kind, r.tag, r.priority, r.scheduled_for,
       r.policy_id, r.facts, r.enqueued_at, r.changed_at, r.progress_version, r.error_version, 0,
       r.worker, r.started_at, r.pinged_at, r.progress_at, r.lease_until, r.timeout_at, r.canceled_by, r.cancel_reason,
       NULL, NULL, NULL, NULL
FROM job_runtime r
UNION ALL
SELECT c.job_id, 'ended', c.version, c.generation, c.attempt, c.restarts, c.kind, c.tag, c.priority, c.scheduled_for,
       c.policy_id, c.facts, c.enqueued_at, c.changed_at, c.progress_version, c.error_version, c.result_version,
       c.worker, c.started_at, NULL, NULL, NULL, NULL, c.canceled_by, c.cancel_reason,
       c.outcome, c.class, c.reason, c.changed_at
FROM job_completed c;

-- A key lives as long as its job and then for its own time; it is compared by kind and by
-- the canonical form of the args, which is computed only when the raw digests differ.
CREATE TABLE idempotency_key (
    key      text     PRIMARY KEY,
    job_id   uuid     NOT NULL,
    kind     text     NOT NULL,
    digest   bytea    NOT NULL,
    ttl      interval NOT NULL,
    replays  integer  NOT NULL DEFAULT 0
);

-- What is known about a tag itself; a tag without a row is not paused.
CREATE TABLE tag_state (
    tag        text        PRIMARY KEY,
    paused_at  timestamptz,
    version    integer     NOT NULL DEFAULT 0
);

CREATE TABLE worker (
    worker      text        PRIMARY KEY,
    tags        text[]      NOT NULL,
    kinds       text[]      NOT NULL,
    host        text        NOT NULL,
    pid         integer     NOT NULL,
    slots       integer     NOT NULL,
    running     integer     NOT NULL,
    state       text        NOT NULL CHECK (state IN ('working', 'sleeping', 'stopping')),
    started_at  timestamptz NOT NULL,
    seen_at     timestamptz NOT NULL
) WITH (fillfactor = 70);

-- Which transition functions are in place; only a higher version replaces them.
CREATE TABLE function_version (
    singleton  boolean     PRIMARY KEY DEFAULT true CHECK (singleton),
    version    integer     NOT NULL,
    digest     text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What every verb answers, one row per job it was asked about. event is what was appended (or,
-- when repeated, had been appended by the first sending); refusal is why nothing was.
CREATE TYPE answer AS (
    ord               integer,
    job_id            uuid,
    event             text,
    refusal           text,
    repeated          boolean,
    version           integer,
    generation        integer,
    attempt           integer,
    at                timestamptz,
    lease_until       timestamptz,
    scheduled_for     timestamptz,
    cancel_requested  boolean,
    outcome           text
);

-- +goose Down
DROP TYPE answer;
DROP VIEW job;
DROP TABLE function_version, worker, tag_state, idempotency_key, job_completed, job_runtime, job_queue, job_payload, job_event, policy;
DROP SEQUENCE job_event_seq;
