-- How jobs pass the gates: temporary triggers of our connections, made when the first one is to pass. So no other program,
-- and no connection of ours that needs none of this, reads or compiles them.


-- name: job_key_starts
CREATE TEMP VIEW IF NOT EXISTS job_key_starts AS -- when the next job may start
SELECT k.type, k.key, k.next_at - coalesce((l.key_burst - 1) * l.key_interval, 0) AS at
FROM job_keys k LEFT JOIN job_limits l ON l.type = k.type;

-- name: job_key_moves
-- A key that counts until the start is free during the run. What was to run again, or has failed, while another job waits
-- with it, has been superseded by that.
CREATE TEMP VIEW IF NOT EXISTS job_key_moves AS SELECT id, type, waiting_key AS key, status AS before, status AS now FROM jobs;

-- name: jobs_key_moved
CREATE TEMP TRIGGER IF NOT EXISTS jobs_key_moved INSTEAD OF INSERT ON job_key_moves
WHEN NEW.now = 'running' OR NEW.before = 'running'
BEGIN
  UPDATE jobs SET unique_key = NULL WHERE id = NEW.id AND status = 'running';
  UPDATE jobs SET status = 'cancelled', completed_at = (SELECT now FROM job_clock), claim_token = claim_token + 1,
    last_error = 'superseded by job ' || (
      SELECT id FROM jobs INDEXED BY jobs_unique_key
      WHERE type = NEW.type AND unique_key = NEW.key AND unique_key IS NOT NULL AND status IN ('pending', 'running', 'held'))
  WHERE id = NEW.id AND status IN ('pending', 'held', 'failed') AND EXISTS (
    SELECT 1 FROM jobs INDEXED BY jobs_unique_key
    WHERE type = NEW.type AND unique_key = NEW.key AND unique_key IS NOT NULL AND status IN ('pending', 'running', 'held'));
  UPDATE jobs SET unique_key = waiting_key WHERE id = NEW.id AND status <> 'running';
END;

-- name: jobs_arrived
-- Of those that came together, the first is skipped for none, and the last cancels the others.
CREATE TEMP TRIGGER IF NOT EXISTS jobs_arrived AFTER DELETE ON job_moves
WHEN OLD.before IS NULL AND OLD.id IS NOT NULL
BEGIN
  UPDATE jobs SET status = 'cancelled', last_error = 'skipped: its concurrency_key had another job',
    completed_at = (SELECT now FROM job_clock), claim_token = claim_token + 1
  WHERE id = OLD.id AND status = 'held' AND (SELECT on_conflict FROM job_limits WHERE type = OLD.type) = 'skip' AND EXISTS (
    SELECT 1 FROM jobs INDEXED BY jobs_by_key WHERE type = OLD.type AND concurrency_key = OLD.concurrency_key
      AND hold IS NOT NULL AND status IN ('held', 'pending', 'running') AND id <> OLD.id
      AND (id < OLD.id OR hold <> 'due'));
  UPDATE jobs SET status = iif(status = 'running', status, 'cancelled'), cancel_requested_at = (SELECT now FROM job_clock),
    completed_at = iif(status = 'running', NULL, (SELECT now FROM job_clock)),
    hold = iif(status = 'running', hold, NULL), claim_token = claim_token + (status <> 'running'),
    last_error = 'cancelled: job ' || OLD.id || ' with its concurrency_key came later'
  WHERE id IN (
    -- The limit first: otherwise all jobs of the key would be read for nothing.
    SELECT j.id FROM job_limits l CROSS JOIN jobs j INDEXED BY jobs_by_key
    WHERE l.type = OLD.type AND l.on_conflict = 'cancel_running' AND j.type = OLD.type
      AND j.concurrency_key = OLD.concurrency_key AND j.hold IS NOT NULL AND j.status IN ('held', 'pending', 'running')
      AND j.id <> OLD.id AND (j.id < OLD.id OR j.hold <> 'due'));
  UPDATE jobs SET turn = turn WHERE id = OLD.id AND status = 'held';
END;

-- name: jobs_pass_due
-- The first two milliseconds: julianday has only whole ones.
CREATE TEMP TRIGGER IF NOT EXISTS jobs_pass_due AFTER UPDATE OF turn ON jobs
WHEN NEW.status = 'held' AND NEW.hold = 'due' AND NEW.scheduled_at <= (SELECT now + 0.002 FROM job_clock)
BEGIN
  UPDATE jobs SET hold = 'key', turn = scheduled_at - priority * 1e9 WHERE id = NEW.id;
END;

-- name: jobs_pass_key
CREATE TEMP TRIGGER IF NOT EXISTS jobs_pass_key AFTER UPDATE OF turn ON jobs
WHEN NEW.status = 'held' AND NEW.hold = 'key' AND (NEW.concurrency_key IS NULL OR (
  NEW.id = (SELECT id FROM jobs INDEXED BY jobs_by_key WHERE type = NEW.type AND concurrency_key = NEW.concurrency_key
              AND hold = 'key' AND status = 'held' ORDER BY turn, id LIMIT 1) AND
  (SELECT count(*) FROM (
     SELECT 1 FROM jobs INDEXED BY jobs_by_key WHERE type = NEW.type AND concurrency_key = NEW.concurrency_key
       AND status IN ('held', 'pending', 'running') AND hold IN ('', 'type')
     LIMIT coalesce((SELECT per_key FROM job_limits WHERE type = NEW.type), 1)))
  < coalesce((SELECT per_key FROM job_limits WHERE type = NEW.type), 1)
  -- It would keep others from their places at the next gate. What passes now starts on time, also if it is a bit late.
  AND NOT EXISTS (SELECT 1 FROM job_key_starts, job_clock
                  WHERE type = NEW.type AND key = NEW.concurrency_key AND at > now + 0.01)
  -- With a rate, only one of the key stands before its start.
  AND NOT ((SELECT key_interval FROM job_limits WHERE type = NEW.type) IS NOT NULL AND EXISTS (
     SELECT 1 FROM jobs INDEXED BY jobs_by_key WHERE type = NEW.type AND concurrency_key = NEW.concurrency_key
       AND status IN ('held', 'pending') AND hold IN ('', 'type')))))
BEGIN
  INSERT INTO job_keys (type, key, turn)
    SELECT NEW.type, coalesce(NEW.fair_key, ''), 1 + turn FROM job_limits WHERE type = NEW.type AND fair
    ON CONFLICT (type, key) DO UPDATE SET turn = max(job_keys.turn + 1, excluded.turn);
  UPDATE jobs SET hold = 'type',
    turn = coalesce((SELECT k.turn FROM job_limits l JOIN job_keys k ON k.type = l.type AND k.key = coalesce(NEW.fair_key, '')
                     WHERE l.type = NEW.type AND l.fair), scheduled_at)
           - priority * coalesce((SELECT age_boost FROM job_limits WHERE type = NEW.type), 1e9)
  WHERE id = NEW.id;
END;

-- name: jobs_wait_key
CREATE TEMP TRIGGER IF NOT EXISTS jobs_wait_key AFTER UPDATE OF turn ON jobs
WHEN NEW.status = 'held' AND NEW.hold = 'key' AND EXISTS (SELECT 1 FROM job_key_starts, job_clock
  WHERE type = NEW.type AND key = NEW.concurrency_key AND at > now + 0.01)
BEGIN
  UPDATE job_keys SET opens_at = (SELECT at - 0.01 FROM job_key_starts WHERE type = NEW.type AND key = NEW.concurrency_key)
  WHERE type = NEW.type AND key = NEW.concurrency_key AND opens_at IS NULL;
END;
-- name: job_keys_open
CREATE TEMP TRIGGER IF NOT EXISTS job_keys_open AFTER UPDATE OF opens_at ON job_keys WHEN NEW.opens_at IS NULL
BEGIN
  UPDATE jobs SET turn = turn WHERE id = (
    SELECT id FROM jobs INDEXED BY jobs_by_key WHERE type = NEW.type AND concurrency_key = NEW.key
      AND status = 'held' AND hold = 'key' ORDER BY turn, id LIMIT 1);
END;

-- name: jobs_pass_type
-- With a rate, one of each `requires` stands before its start, so that one that no worker takes is in nobody's way, and is
-- due when it may start; above 100 starts a second, those of 10 ms, at most 100. Those that take turns in one millisecond
-- are due in the order of their turns. While the breaker is open or has just closed, one runs at a time.
CREATE TEMP TRIGGER IF NOT EXISTS jobs_pass_type AFTER UPDATE OF turn ON jobs
WHEN NEW.status = 'held' AND NEW.hold = 'type'
AND NOT EXISTS (
  SELECT 1 FROM job_limits l WHERE l.type = NEW.type AND l.interval IS NOT NULL
    AND CAST(min(100, max(1, 0.01 / l.interval)) AS INTEGER) <= (SELECT count(*) FROM (
      SELECT 1 FROM jobs INDEXED BY jobs_unfinished
      WHERE type = NEW.type AND requires = NEW.requires AND status = 'pending' AND (status = 'pending' OR status = 'running')
      LIMIT 100)))
AND NEW.id = (
  SELECT id FROM jobs INDEXED BY jobs_at_gate WHERE type = NEW.type AND hold = 'type' AND status = 'held'
    AND (requires = NEW.requires OR (SELECT interval FROM job_limits WHERE type = NEW.type) IS NULL)
  ORDER BY turn, id LIMIT 1)
AND NOT EXISTS (
  SELECT 1 FROM job_limits l WHERE l.type = NEW.type AND (
    (l.max_running IS NOT NULL AND l.max_running <= (SELECT count(*) FROM (
       SELECT 1 FROM jobs INDEXED BY jobs_unfinished WHERE type = NEW.type AND (status = 'pending' OR status = 'running')
       LIMIT (SELECT max_running FROM job_limits WHERE type = NEW.type))))
    OR (l.failures >= l.max_failures AND EXISTS (
       SELECT 1 FROM jobs INDEXED BY jobs_unfinished WHERE type = NEW.type AND (status = 'pending' OR status = 'running')))))
BEGIN
  UPDATE job_limits SET turn = max(turn, NEW.turn + NEW.priority * age_boost) WHERE type = NEW.type AND fair;
  UPDATE jobs SET status = 'pending', hold = '', claim_token = claim_token + 1,
    scheduled_at = max(
      iif(coalesce((SELECT fair FROM job_limits WHERE type = NEW.type), 0), (SELECT now - 0.001 FROM job_clock), scheduled_at),
      coalesce((SELECT next_at - (burst - 1) * coalesce(interval, 0) FROM job_limits WHERE type = NEW.type), 0),
      coalesce((SELECT at FROM job_key_starts WHERE type = NEW.type AND key = NEW.concurrency_key), 0))
      + coalesce((SELECT NEW.turn % 1000 * 1e-6 FROM job_limits WHERE type = NEW.type AND fair), 0)
  WHERE id = NEW.id;
END;

-- name: jobs_moved
-- A job with gates, or with others that wait for it, has started or ended, was deleted, or is to run again.
CREATE TEMP TRIGGER IF NOT EXISTS jobs_moved AFTER DELETE ON job_moves WHEN OLD.before IS NOT NULL
BEGIN
  INSERT INTO job_key_moves SELECT id, type, waiting_key, OLD.before, OLD.now FROM jobs
    WHERE id = OLD.id AND waiting_key IS NOT NULL;
  -- A start counts for the rates.
  UPDATE job_limits SET next_at = max(next_at, (SELECT now - 0.012 FROM job_clock)) + interval
  WHERE type = OLD.type AND interval IS NOT NULL AND OLD.now = 'running';
  UPDATE jobs SET scheduled_at = (SELECT next_at - (burst - 1) * interval FROM job_limits WHERE type = OLD.type)
  WHERE OLD.now = 'running' AND id IN (
    SELECT j.id FROM job_limits l CROSS JOIN jobs j INDEXED BY jobs_unfinished
    WHERE l.type = OLD.type AND l.interval IS NOT NULL AND j.type = OLD.type AND j.hold = ''
      AND j.status = 'pending' AND (j.status = 'pending' OR j.status = 'running')
      AND j.scheduled_at < l.next_at - (l.burst - 1) * l.interval
      AND j.requires <> (SELECT requires FROM jobs WHERE id = OLD.id));
  INSERT INTO job_keys (type, key, next_at)
    SELECT OLD.type, OLD.concurrency_key, c.now - 0.012 + l.key_interval FROM job_limits l, job_clock c
    WHERE l.type = OLD.type AND l.key_interval IS NOT NULL AND OLD.now = 'running' AND OLD.concurrency_key IS NOT NULL
    ON CONFLICT (type, key) DO UPDATE SET next_at = max(
      excluded.next_at, job_keys.next_at + (SELECT key_interval FROM job_limits WHERE type = excluded.type));
  -- A failed attempt counts for the breaker.
  UPDATE job_limits SET failures = CASE WHEN OLD.now = 'done' THEN 0 ELSE failures + 1 END
  WHERE type = OLD.type AND max_failures IS NOT NULL AND OLD.before = 'running' AND OLD.now NOT IN ('running', 'cancelled')
    AND OLD.charged;
  UPDATE job_limits SET next_at = max(next_at, (SELECT now FROM job_clock) + breaker_pause + (burst - 1) * coalesce(interval, 0))
  WHERE type = OLD.type AND failures >= max_failures AND OLD.before = 'running' AND OLD.charged;
  -- What is to run again passes the gates again; the first one, too, if it has ended and jobs before it have not.
  UPDATE jobs SET hold = 'after'
  WHERE id = OLD.id AND OLD.now = 'pending' AND OLD.before <> 'running' AND status = 'held' AND EXISTS (
    SELECT 1 FROM job_after a JOIN jobs j ON j.id = a.after_id
    WHERE a.job_id = OLD.id AND j.status IN ('held', 'pending', 'running'));
  UPDATE jobs SET turn = turn WHERE id = OLD.id AND status = 'held' AND OLD.now IN ('held', 'pending');
  UPDATE jobs SET turn = turn WHERE id = (
    SELECT id FROM jobs INDEXED BY jobs_by_key WHERE type = OLD.type AND concurrency_key = OLD.concurrency_key
      AND status = 'held' AND hold = 'key' ORDER BY turn, id LIMIT 1);
  -- A breaker that has closed leaves room for many: two for each end.
  UPDATE jobs SET turn = turn WHERE id IN (
    SELECT id FROM jobs INDEXED BY jobs_at_gate WHERE type = OLD.type AND status = 'held' AND hold = 'type'
    ORDER BY turn, id
    LIMIT 1 + EXISTS (SELECT 1 FROM job_limits WHERE type = OLD.type AND max_failures IS NOT NULL AND failures = 0))
  OR id = (SELECT j.id FROM job_limits l CROSS JOIN jobs j INDEXED BY jobs_at_gate
           WHERE l.type = OLD.type AND l.interval IS NOT NULL AND j.type = OLD.type AND j.status = 'held' AND j.hold = 'type'
             AND j.requires = (SELECT requires FROM jobs WHERE id = OLD.id) ORDER BY j.turn, j.id LIMIT 1);
  INSERT INTO job_ends SELECT OLD.id, OLD.now WHERE OLD.followed IS NOT NULL
    AND NOT (OLD.before IN ('pending', 'running') AND OLD.now IN ('pending', 'running'));
  -- Another one before it has failed: it goes on as that says.
  INSERT INTO job_ends SELECT j.id, j.status FROM job_after a JOIN jobs j ON j.id = a.after_id
    WHERE a.job_id = OLD.id AND OLD.now = 'pending' AND j.status IN ('failed', 'cancelled', 'quarantined')
      AND EXISTS (SELECT 1 FROM jobs WHERE id = OLD.id AND status = 'held' AND hold = 'after');
  INSERT INTO job_batch_ends SELECT OLD.batch WHERE OLD.batch IS NOT NULL AND OLD.now NOT IN ('pending', 'running');
END;

-- name: jobs_pass_after
CREATE TEMP TRIGGER IF NOT EXISTS jobs_pass_after AFTER UPDATE OF turn ON jobs
WHEN NEW.status = 'held' AND NEW.hold = 'after' AND NOT EXISTS (SELECT 1 FROM job_after WHERE job_id = NEW.id)
BEGIN
  UPDATE jobs SET hold = 'due', turn = turn WHERE id = NEW.id;
END;

-- name: job_ends
-- A job that others follow has ended, was deleted, or is to run again. If it has not succeeded, whatever follows only from
-- its success is cancelled, and what follows that; the edges stay, so that it waits again once the job is retried. Its
-- status is asked where each walk begins: SQLite would walk before it tested a condition beside that.
CREATE TEMP VIEW IF NOT EXISTS job_ends AS SELECT id, status FROM jobs;
-- name: jobs_ended
CREATE TEMP TRIGGER IF NOT EXISTS jobs_ended INSTEAD OF INSERT ON job_ends
BEGIN
  -- Also what a retry has let go on before; but nothing whose unique key another job has by now.
  UPDATE jobs SET status = 'held', hold = 'after', completed_at = NULL, last_error = NULL, claim_token = claim_token + 1
  WHERE id IN (WITH RECURSIVE later (id) AS (
      SELECT NEW.id WHERE NEW.status IN ('held', 'pending', 'running')
      UNION SELECT a.job_id FROM later JOIN job_after a ON a.after_id = later.id JOIN jobs j ON j.id = a.job_id
        WHERE (j.status IN ('held', 'pending') AND j.hold IS NOT 'after') OR (j.status = 'cancelled' AND j.hold = 'failed')
    ) SELECT max(j.id) FROM later JOIN jobs j ON j.id = later.id
      WHERE j.id <> NEW.id AND NOT EXISTS (
        SELECT 1 FROM jobs t INDEXED BY jobs_unique_key WHERE t.type = j.type AND t.unique_key = j.unique_key
          AND t.unique_key IS NOT NULL AND t.status IN ('pending', 'running', 'held') AND t.id <> j.id)
      GROUP BY j.type, coalesce(j.unique_key, j.id));
  UPDATE jobs SET last_error = coalesce('cancelled: job ' || (
      SELECT j.id FROM jobs j INDEXED BY jobs_unique_key WHERE j.type = jobs.type AND j.unique_key = jobs.unique_key
        AND j.unique_key IS NOT NULL AND j.status IN ('pending', 'running', 'held')) || ' has its unique key', last_error)
  WHERE status = 'cancelled' AND hold = 'failed'
    AND id IN (SELECT job_id FROM job_after WHERE after_id = NEW.id AND NEW.status IN ('held', 'pending', 'running'));
  -- Also what is armed again, as long as another job before it has failed.
  UPDATE jobs SET status = 'cancelled', hold = 'failed', completed_at = (SELECT now FROM job_clock),
    claim_token = claim_token + 1, last_error = 'cancelled: ' || CASE
      WHEN NEW.status = 'deleted' THEN 'job ' || NEW.id || ', before it, was deleted'
      WHEN NEW.status IN ('failed', 'cancelled', 'quarantined') THEN 'job ' || NEW.id || ', before it, ended ' || NEW.status
      ELSE 'another job before it has not succeeded' END
  WHERE status = 'held' AND hold = 'after'
    AND id IN (WITH RECURSIVE reached (id) AS (
      SELECT NEW.id WHERE NEW.status <> 'done'
      UNION SELECT a.job_id FROM reached JOIN job_after a ON a.after_id = reached.id
    ), later (id) AS (
      SELECT a.job_id FROM reached JOIN job_after a ON a.job_id = reached.id LEFT JOIN jobs j ON j.id = a.after_id
        WHERE reached.id <> NEW.id AND a.on_failed = 'cancel'
          AND (j.id IS NULL OR j.status IN ('failed', 'cancelled', 'quarantined'))
      UNION SELECT a.job_id FROM later JOIN job_after a ON a.after_id = later.id WHERE a.on_failed = 'cancel'
    ) SELECT id FROM later);
  -- The trigger of a change of status leaves these alone.
  INSERT INTO job_batch_ends
    SELECT DISTINCT batch FROM jobs WHERE batch IS NOT NULL AND status = 'cancelled' AND hold = 'failed'
      AND id IN (WITH RECURSIVE later (id) AS (
        SELECT NEW.id WHERE NEW.status IN ('failed', 'cancelled', 'quarantined', 'deleted')
        UNION SELECT a.job_id FROM later JOIN job_after a ON a.after_id = later.id WHERE a.on_failed = 'cancel'
      ) SELECT id FROM later);
  DELETE FROM job_after WHERE on_failed = 'run'
    AND after_id IN (WITH RECURSIVE later (id) AS (
      SELECT NEW.id WHERE NEW.status IN ('failed', 'cancelled', 'quarantined', 'deleted')
      UNION SELECT a.job_id FROM later JOIN job_after a ON a.after_id = later.id
                            JOIN jobs j ON j.id = a.job_id WHERE j.status = 'cancelled' AND j.hold = 'failed'
    ) SELECT id FROM later);
  DELETE FROM job_after WHERE NEW.status IN ('done', 'deleted') AND after_id = NEW.id;
END;

-- name: job_batch_ends
CREATE TEMP VIEW IF NOT EXISTS job_batch_ends AS SELECT id FROM job_batches;
-- name: job_batch_ended
CREATE TEMP TRIGGER IF NOT EXISTS job_batch_ended INSTEAD OF INSERT ON job_batch_ends
WHEN EXISTS (SELECT 1 FROM job_batches WHERE id = NEW.id AND closed AND ended_at IS NULL) AND NOT EXISTS (
  SELECT 1 FROM jobs INDEXED BY jobs_in_batch WHERE batch = NEW.id AND hold IN ('', 'after', 'due', 'key', 'type')
    AND status IN ('held', 'pending', 'running'))
BEGIN
  UPDATE job_batches SET ended_at = (SELECT now FROM job_clock) WHERE id = NEW.id;
  INSERT INTO jobs (type, payload, meta)
    SELECT type, payload, json_object('batch', id) FROM job_batches WHERE id = NEW.id AND type IS NOT NULL;
  UPDATE job_batches SET callback = last_insert_rowid() WHERE id = NEW.id AND type IS NOT NULL;
END;
