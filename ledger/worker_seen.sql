-- worker_seen tells the ledger that a worker is alive and what it does. It is not what keeps
-- leases: those live by ping alone.
CREATE OR REPLACE FUNCTION worker_seen(worker text, tags text[], kinds text[], host text, pid integer, slots integer, running integer, state text)
RETURNS void
LANGUAGE sql
SET search_path FROM CURRENT
AS $$
    INSERT INTO worker AS w (worker, tags, kinds, host, pid, slots, running, state, started_at, seen_at)
    VALUES (worker_seen.worker, worker_seen.tags, worker_seen.kinds, worker_seen.host, worker_seen.pid, worker_seen.slots,
            worker_seen.running, worker_seen.state, clock(), clock())
    ON CONFLICT (worker) DO UPDATE
    SET tags = excluded.tags, kinds = excluded.kinds, host = excluded.host, pid = excluded.pid, slots = excluded.slots,
        running = excluded.running, state = excluded.state, seen_at = excluded.seen_at,
        started_at = CASE WHEN w.pid = excluded.pid AND w.host = excluded.host THEN w.started_at ELSE excluded.started_at END
$$;

-- worker_gone removes a worker that has stopped in good order, and all that have not been seen
-- for a day.
CREATE OR REPLACE FUNCTION worker_gone(worker text) RETURNS void
LANGUAGE sql
SET search_path FROM CURRENT
AS $$
    DELETE FROM worker w WHERE w.worker = worker_gone.worker OR w.seen_at < clock() - interval '1 day'
$$;
