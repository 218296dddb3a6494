-- worker_seen tells the ledger that a worker is alive and what it does. It is not what keeps
-- leases: those live by ping alone.
CREATE OR REPLACE FUNCTION worker_seen(worker text, tags text[], kinds text[], host text, pid integer, slots integer, running integer, state text)
RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    PERFORM check_worker(worker_seen.worker, '1 second');
    PERFORM check_list('tags', worker_seen.tags, 0);
    PERFORM check_list('kinds', worker_seen.kinds, 0);
    PERFORM refuse_unless(worker_seen.host IS NOT NULL, 'host', NULL, '1 to 255 bytes of UTF-8 without control characters');
    PERFORM check_text('host', ARRAY[worker_seen.host], 255, true);
    PERFORM refuse_unless(worker_seen.pid >= 0, 'pid', worker_seen.pid::text, '0 or more');
    PERFORM refuse_unless(worker_seen.slots >= 0, 'slots', worker_seen.slots::text, '0 or more');
    PERFORM refuse_unless(worker_seen.running >= 0, 'running', worker_seen.running::text, '0 or more');
    PERFORM refuse_unless(worker_seen.state IN ('working', 'sleeping', 'stopping'), 'state', worker_seen.state, 'working, sleeping or stopping');
    INSERT INTO worker AS w (worker, tags, kinds, host, pid, slots, running, state, started_at, seen_at)
    VALUES (worker_seen.worker, worker_seen.tags, worker_seen.kinds, worker_seen.host, worker_seen.pid, worker_seen.slots,
            worker_seen.running, worker_seen.state, clock(), clock())
    ON CONFLICT (worker) DO UPDATE
    SET tags = excluded.tags, kinds = excluded.kinds, host = excluded.host, pid = excluded.pid, slots = excluded.slots,
        running = excluded.running, state = excluded.state, seen_at = excluded.seen_at,
        started_at = CASE WHEN w.pid = excluded.pid AND w.host = excluded.host THEN w.started_at ELSE excluded.started_at END;
END
$$;

-- worker_gone removes a worker that has stopped in good order, and all that have not been seen
-- for a day.
CREATE OR REPLACE FUNCTION worker_gone(worker text) RETURNS void
LANGUAGE sql
SET search_path FROM CURRENT
AS $$
    DELETE FROM sleeper s WHERE s.worker = worker_gone.worker;
    DELETE FROM worker w WHERE w.worker = worker_gone.worker OR w.seen_at < clock() - interval '1 day'
$$;
