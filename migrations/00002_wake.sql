-- +goose Up

-- Who has nothing to do, and how long that may be believed. What makes a job due reads this and
-- notifies only where a row says that somebody sleeps. Unlogged: after a crash nobody is connected who
-- could still be asleep. One row a worker, changed in place; the room in its page keeps that from
-- touching the index.
CREATE UNLOGGED TABLE sleeper (
    worker    text        PRIMARY KEY,
    -- What a notification names it by: short, whatever the worker is called. Two that share a number wake together.
    number    integer     NOT NULL,
    tags      text[]      NOT NULL,
    -- It does not sleep yet but looks again in a few milliseconds: nobody need be woken for its tags.
    watching  boolean     NOT NULL,
    until     timestamptz NOT NULL
) WITH (fillfactor = 50);

-- +goose Down
DROP TABLE sleeper;
