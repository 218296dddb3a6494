-- Wake-ups. They shorten the wait of a worker that has nothing to do and guarantee nothing: who
-- relies on them alone waits for ever when one is lost. Polling is the guarantee.
--
-- A transaction that notifies takes a lock of the whole database and holds it while it commits: 16
-- clients that enqueued one by one fell from 420 jobs/s to 100 when each of them notified. So a
-- worker that found nothing first watches: it looks again, soon, and says so, and nobody is notified
-- for its tags. Only when it has found nothing for a while does it say that it sleeps, claims once more,
-- and waits for a notification on wake_channel or for its next poll. What makes a job due calls wake,
-- which reads one small table.
--
-- The times here are those of the server and not the ledger's: they measure how long a process has
-- been silent.

-- wake_channel is what workers listen on. Its length does not depend on the schema's name.
CREATE OR REPLACE FUNCTION wake_channel() RETURNS text
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $$ SELECT 'jobledger_' || left(encode(sha256(convert_to(current_schema()::text, 'UTF8')), 'hex'), 32) $$;

-- sleep says that a worker has nothing to do and listens or, if it is watching, that it has room and
-- looks again in a moment. It returns the number by which the worker will be named. Said again it
-- replaces what was said; with '0 seconds' it takes it back.
CREATE OR REPLACE FUNCTION sleep(worker text, tags text[], lasting interval DEFAULT '60 seconds', watching boolean DEFAULT false)
RETURNS integer
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_now    timestamptz := clock_timestamp();
    v_number integer;
BEGIN
    PERFORM check_worker(sleep.worker, '1 second');
    PERFORM check_list('tags', sleep.tags, 1);
    PERFORM refuse_unless(elapsed(sleep.lasting) BETWEEN '0' AND '1 hour', 'lasting', sleep.lasting::text, '0 to 1h');

    INSERT INTO sleeper AS s (worker, number, tags, watching, until)
    VALUES (sleep.worker, hashtext(sleep.worker), sleep.tags, coalesce(sleep.watching, false), v_now + elapsed(sleep.lasting))
    ON CONFLICT (worker) DO UPDATE SET tags = excluded.tags, watching = excluded.watching, until = excluded.until
    RETURNING s.number INTO v_number;

    -- Whoever died asleep. Its own row is locked above, so that two who do this at once are not in
    -- each other's way.
    DELETE FROM sleeper s
    WHERE s.worker IN (
        SELECT o.worker
        FROM sleeper o
        WHERE o.until < v_now - interval '1 minute'
        FOR UPDATE SKIP LOCKED);
    RETURN v_number;
END
$$;

-- wake tells workers that sleep on these tags, one element for each job that is due now, to look, unless
-- somebody watches the tag: for each as many as it has jobs and one to spare, which may be dead or
-- deaf, in random order. A call notifies once at most, and its payload is short whatever the tags are:
-- the numbers of those who are meant or, when they or the tags are more than 32, nothing, which means
-- everybody. It waits for nothing and writes nothing. `SET jobledger.wake = off` turns it off where a
-- transaction must not notify, as one that is to be prepared for two-phase commit.
CREATE OR REPLACE FUNCTION wake(tags text[]) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    v_payload text;
BEGIN
    -- Nobody sleeps: the common case when there is much to do, and this is all that it costs.
    IF wake.tags IS NULL OR NOT EXISTS (SELECT FROM sleeper s WHERE s.until > clock_timestamp() AND NOT s.watching) THEN
        RETURN;
    END IF;

    WITH due AS MATERIALIZED (
        SELECT u.tag, count(*) AS jobs
        FROM unnest(wake.tags) AS u (tag)
        GROUP BY u.tag
        LIMIT 33
    ), named AS (
        SELECT DISTINCT c.number
        FROM due d
        CROSS JOIN LATERAL (
            SELECT s.number
            FROM sleeper s
            WHERE s.until > clock_timestamp() AND NOT s.watching AND d.tag = ANY (s.tags)
            ORDER BY random()
            LIMIT least(d.jobs + 1, 33)) c
        WHERE NOT EXISTS (SELECT FROM sleeper w WHERE w.until > clock_timestamp() AND w.watching AND d.tag = ANY (w.tags))
    )
    SELECT CASE WHEN count(*) > 32 OR (SELECT count(*) FROM due) > 32 THEN '' ELSE string_agg(n.number::text, ',') END
    INTO v_payload
    FROM named n;

    -- A queue of notifications that is full, because some session does not read its own, fails the
    -- commit of whoever adds to it.
    IF v_payload IS NULL OR pg_notification_queue_usage() > 0.5 OR current_setting('jobledger.wake', true) = 'off' THEN
        RETURN;
    END IF;
    PERFORM pg_notify(wake_channel(), v_payload);
END
$$;
