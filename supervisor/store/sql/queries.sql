-- Statements that are the same for every engine; those of the engine's own file come in their place. Parameters are named;
-- :now is Unix seconds. Lists are JSON texts.


-- Enqueueing ---------------------------------------------------------------------------------------

-- name: about_job
SELECT meta, batch FROM jobs WHERE id = :id;

-- name: job_status
SELECT status FROM jobs WHERE id = :id;


-- The registry -------------------------------------------------------------------------------------

-- name: gone
-- The hosts that supervisors have left.
SELECT key, value FROM job_meta WHERE key LIKE 'gone:%';

-- name: register_worker
INSERT INTO job_workers (incarnation, supervisor, pool, name, pid, slot, policy, started_at, pid_started)
VALUES (:incarnation, :supervisor, :pool, :name, :pid, :slot, :policy, :started_at, CAST(:pid_started AS bigint))
ON CONFLICT (incarnation) DO NOTHING;

-- name: workers_of
SELECT incarnation, supervisor, pool, name, pid, slot, policy, started_at, pid_started
FROM job_workers WHERE supervisor = :supervisor;

-- name: worker
SELECT incarnation, supervisor, pool, name, pid, slot, policy, started_at, pid_started
FROM job_workers WHERE incarnation = :incarnation;

-- name: forget_worker
DELETE FROM job_workers WHERE incarnation = :incarnation;


-- Schedules ----------------------------------------------------------------------------------------

-- name: plan
-- A schedule with a new timing starts again, and one whose next time is none; otherwise its next time stays. One that is
-- made at run time, with a definition, replaces only what it was when somebody looked.
INSERT INTO job_schedules (name, timing, next_at, type, payload, priority, expect_within, expected_from, definition)
VALUES (:name, :timing, :next_at, :type, :payload, :priority, :expect_within, :expected_from, :definition)
ON CONFLICT (name) DO UPDATE SET
  next_at = CASE WHEN job_schedules.timing = excluded.timing AND job_schedules.next_at > 0 AND job_schedules.next_at < 1e11
                 THEN job_schedules.next_at ELSE excluded.next_at END,
  timing = excluded.timing, type = excluded.type, payload = excluded.payload, priority = excluded.priority,
  expect_within = excluded.expect_within,
  expected_from = CASE WHEN excluded.expect_within IS NOT NULL
                       THEN coalesce(job_schedules.expected_from, excluded.expected_from) END,
  definition = excluded.definition
WHERE excluded.definition IS NULL OR coalesce(job_schedules.definition, '') = :before;

-- name: schedule
SELECT name, timing, next_at, last_at, last_job, type, payload, paused_at,
       priority, expect_within, expected_from, definition
FROM job_schedules WHERE name = :name;

-- name: schedules
SELECT name, timing, next_at, last_at, last_job, type, payload, paused_at,
       priority, expect_within, expected_from, definition
FROM job_schedules ORDER BY name;

-- name: remove_schedule
DELETE FROM job_schedules WHERE name = :name AND coalesce(definition, '') = :before;

-- name: note_fired
-- Of those that have not ended, the oldest are watched: they end first.
UPDATE job_schedules
SET last_at = :last_at, last_job = :last_job,
    watched = CASE WHEN expect_within IS NULL OR length(watched) >= :full THEN watched
                   ELSE watched || ' ' || CAST(:last_job AS text) END
WHERE name = :name;

-- name: watched
SELECT name, watched FROM job_schedules WHERE expect_within IS NOT NULL AND watched <> '';

-- name: note_success
UPDATE job_schedules
SET watched = :watched, expected_from = CASE WHEN expected_from > :at THEN expected_from ELSE :at END
WHERE name = :name AND watched = :before;

-- name: move_on
-- Unless it is paused, changed, or has been advanced already: of several supervisors one fires each time.
UPDATE job_schedules SET next_at = :next_at
WHERE name = :name AND timing = :timing AND next_at = :planned AND paused_at IS NULL
  AND coalesce(definition, '') = :definition;

-- name: pause_schedule
UPDATE job_schedules SET paused_at = :now WHERE name = :name AND paused_at IS NULL;

-- name: resume_schedule
-- What it has not done while it was paused is not held against it.
UPDATE job_schedules
SET expected_from = CASE WHEN expect_within IS NOT NULL THEN :now ELSE expected_from END, paused_at = NULL
WHERE name = :name AND paused_at IS NOT NULL;


-- Alerts -------------------------------------------------------------------------------------------

-- name: insert_meta
INSERT INTO job_meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO NOTHING;

-- name: advance_alert
-- Unless another supervisor has been faster; then the jobs must not be inserted either.
UPDATE job_meta SET value = :after WHERE key = :key AND value = :before;

-- name: latest_error
SELECT max(id) FROM job_errors;


-- History ------------------------------------------------------------------------------------------

-- name: counted
-- The part of a supervisor's counters that is in the history.
SELECT counted FROM job_supervisors WHERE id = :id;

-- name: count_on
-- Unless it has been changed; then the minutes must not be written either.
UPDATE job_supervisors SET counted = :after WHERE id = :id AND counted = :before;

-- name: add_minute
-- Counts are those of one supervisor and add up; queue sizes are the same for all of them.
INSERT INTO job_history AS h (minute, type, done, failed, waiting, running, run_seconds, wait_seconds)
VALUES (:at, :type, :done, :failed, :waiting, :running, :run_seconds, :wait_seconds)
ON CONFLICT (minute, type) DO UPDATE SET
  done = h.done + excluded.done, failed = h.failed + excluded.failed, waiting = excluded.waiting,
  running = excluded.running, run_seconds = h.run_seconds + excluded.run_seconds,
  wait_seconds = h.wait_seconds + excluded.wait_seconds;

-- name: has_history_before
SELECT 1 FROM job_history WHERE minute < :before LIMIT 1;

-- name: forget_history
DELETE FROM job_history WHERE minute < :before;


-- Operating ----------------------------------------------------------------------------------------

-- name: stretch
-- The lowest of the next :rows ids, going down, and the lowest of all.
SELECT (SELECT min(id) FROM (SELECT id FROM jobs WHERE id <= :latest ORDER BY id DESC LIMIT :rows) AS next),
       (SELECT min(id) FROM jobs);

-- name: job_runs
SELECT job_id, token, attempt, outcome, worker, started_at, duration, cpu_time, peak_memory, log
FROM job_runs WHERE job_id = :id ORDER BY token;

-- name: prunable
-- Finished jobs past their retention, in a bounded range of ids, so that no index is needed.
SELECT id FROM jobs
WHERE id > :after AND id <= :until
  AND ((status IN ('done', 'cancelled') AND completed_at < :done_before)
    OR (status IN ('failed', 'quarantined') AND completed_at < :failed_before));

-- name: prune_batches
-- An open one whose program was killed stays for another week.
DELETE FROM job_batches WHERE id IN (
  SELECT b.id FROM job_batches b
  WHERE (b.ended_at < :before OR (b.closed = 0 AND b.created_at + 604800 < :before))
    AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.batch = b.id)
    AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.id = b.callback) LIMIT 1000);

-- name: prune_until
SELECT max(id) FROM (SELECT id FROM jobs WHERE id > :after ORDER BY id LIMIT :limit) AS next;

-- name: set_control
INSERT INTO job_controls (kind, name, value, updated_at) VALUES (:kind, :name, :value, :now)
ON CONFLICT (kind, name) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at;

-- name: clear_control
DELETE FROM job_controls WHERE kind = :kind AND name = :name;

-- name: bump_control
INSERT INTO job_controls (kind, name, value, updated_at) VALUES (:kind, '', 1, :now)
ON CONFLICT (kind, name) DO UPDATE SET value = job_controls.value + 1, updated_at = excluded.updated_at;

-- name: failures_by_type
SELECT j.type, count(*) FROM job_errors e JOIN jobs j ON j.id = e.job_id
WHERE e.created_at >= :since GROUP BY j.type ORDER BY 2 DESC;


-- The database itself ------------------------------------------------------------------------------

-- name: meta
SELECT value FROM job_meta WHERE key = :key;

-- name: delete_meta
DELETE FROM job_meta WHERE key = :key;

-- name: set_meta
INSERT INTO job_meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: flags
-- The schema's version, and who may use the tables: see store/migrate.py.
SELECT key, value FROM job_meta
WHERE key IN ('schema', 'oldest_writer', 'epoch', 'closed_for', 'moved_to', 'moved_from');


-- Gates --------------------------------------------------------------------------------------------

-- name: limits
SELECT type, max_running, per_key, on_conflict, interval, burst, key_interval, key_burst, fair, age_boost, max_failures,
       breaker_pause, next_at, failures, chosen
FROM job_limits ORDER BY type;

-- name: set_limit
INSERT INTO job_limits (type, max_running, per_key, on_conflict, interval, burst, key_interval, key_burst, fair, age_boost,
                        max_failures, breaker_pause, chosen)
VALUES (:type, CAST(:max_running AS bigint), CAST(:per_key AS bigint), :on_conflict, CAST(:interval AS double precision), :burst,
        CAST(:key_interval AS double precision), :key_burst, :fair, :age_boost, CAST(:max_failures AS bigint), :breaker_pause,
        :chosen)
ON CONFLICT (type) DO UPDATE SET
  max_running = excluded.max_running, per_key = excluded.per_key, on_conflict = excluded.on_conflict,
  interval = excluded.interval, burst = excluded.burst, key_interval = excluded.key_interval,
  key_burst = excluded.key_burst, fair = excluded.fair, age_boost = excluded.age_boost,
  max_failures = excluded.max_failures, breaker_pause = excluded.breaker_pause, chosen = excluded.chosen,
  next_at = CASE WHEN job_limits.failures >= excluded.max_failures THEN job_limits.next_at
                 WHEN excluded.interval IS NULL THEN 0
                 WHEN job_limits.next_at > CAST(:now AS double precision) + excluded.burst * excluded.interval
                 THEN CAST(:now AS double precision) + excluded.burst * excluded.interval ELSE job_limits.next_at END,
  failures = CASE WHEN excluded.max_failures IS NULL THEN 0 ELSE job_limits.failures END, applied = 0;

-- name: give_turns
-- To those that are held already when their type begins to let keys take turns.
UPDATE jobs SET turn = t.turn FROM (
  SELECT j.id, l.turn + row_number() OVER (PARTITION BY coalesce(j.fair_key, '') ORDER BY j.turn, j.id)
               - j.priority * l.age_boost AS turn
  FROM job_limits l JOIN jobs j ON j.type = l.type AND j.hold = 'type' AND j.status = 'held' WHERE l.type = :type) AS t
WHERE jobs.id = t.id;

-- name: last_turns
INSERT INTO job_keys (type, key, turn)
SELECT j.type, coalesce(j.fair_key, ''), max(j.turn + j.priority * l.age_boost)
FROM job_limits l JOIN jobs j ON j.type = l.type AND j.hold = 'type' AND j.status = 'held' WHERE l.type = :type
GROUP BY j.type, coalesce(j.fair_key, '')
ON CONFLICT (type, key) DO UPDATE SET turn = CASE WHEN job_keys.turn > excluded.turn THEN job_keys.turn ELSE excluded.turn END;

-- name: any_gates
-- Whether there is anything that a sweep looks at: most databases have no jobs with gates.
SELECT 1 FROM job_limits UNION ALL SELECT 1 FROM job_keys UNION ALL SELECT 1 FROM job_after
UNION ALL SELECT 1 FROM job_batches WHERE ended_at IS NULL
UNION ALL SELECT 1 FROM jobs WHERE hold IS NOT NULL AND status IN ('held', 'pending', 'running') LIMIT 1;

-- name: unapplied
SELECT type FROM job_limits WHERE applied = 0;

-- name: limit_applied
UPDATE job_limits SET applied = 1 WHERE type = :type;

-- name: drop_limit
DELETE FROM job_limits WHERE type = :type;

-- name: forget_keys
-- What is known of keys that nothing depends on any more.
DELETE FROM job_keys WHERE next_at < :now AND NOT EXISTS (
  SELECT 1 FROM job_limits l WHERE l.type = job_keys.type AND l.fair = 1 AND job_keys.turn > l.turn);

-- name: limits_from_now
UPDATE job_limits SET next_at = :now WHERE next_at > :now;

-- name: keys_from_now
UPDATE job_keys SET next_at = :now WHERE next_at > :now AND type = coalesce(CAST(:type AS text), type);

-- name: run_now
-- A job that waits passes all its gates at once, by hand. Those that are let through later count it.
UPDATE jobs SET
  status = 'pending', hold = CASE WHEN hold IS NOT NULL THEN '' END,
  scheduled_at = CASE WHEN scheduled_at > :now THEN CAST(:now AS double precision) ELSE scheduled_at END,
  claim_token = CASE WHEN claim_token BETWEEN 0 AND 9007199254740990 THEN claim_token + 1 ELSE 1 END, updated_at = :now
WHERE id = :id AND status IN ('pending', 'held');

-- name: hold
-- Where an unfinished job stands.
SELECT hold, concurrency_key, turn, expires_at FROM jobs WHERE id = :id;

-- name: limit_of
-- The limits of a type, and when the next job of the type, and of the key, may start.
SELECT l.max_running, l.per_key, l.interval, l.key_interval, CASE WHEN l.failures >= l.max_failures THEN l.failures END,
       l.next_at - (l.burst - 1) * coalesce(l.interval, 0), k.next_at - coalesce((l.key_burst - 1) * l.key_interval, 0)
FROM (SELECT 1 AS one) AS o LEFT JOIN job_limits l ON l.type = :type
     LEFT JOIN job_keys k ON k.type = :type AND k.key = CAST(:key AS text);

-- name: predecessors
SELECT after_id FROM job_after WHERE job_id = :id ORDER BY after_id LIMIT :limit;

-- name: admitted_of_key
SELECT id, CASE WHEN status = 'running' THEN started_at END FROM jobs
WHERE type = :type AND concurrency_key = :key AND status IN ('held', 'pending', 'running') AND hold IN ('', 'type')
LIMIT :limit;

-- name: admitted_of_type
SELECT id, CASE WHEN status = 'running' THEN started_at END FROM jobs
WHERE type = :type AND (status = 'pending' OR status = 'running') LIMIT :limit;

-- name: ahead_of_key
SELECT count(*) FROM (
  SELECT 1 FROM jobs
  WHERE type = :type AND concurrency_key = :key AND status IN ('held', 'pending', 'running') AND hold = 'key'
    AND (turn < :turn OR (turn = :turn AND id < :id)) LIMIT :limit) AS before;

-- name: ahead_of_type
SELECT count(*) FROM (
  SELECT 1 FROM jobs
  WHERE type = :type AND status = 'held' AND hold = 'type' AND (turn < :turn OR (turn = :turn AND id < :id))
  LIMIT :limit) AS before;

-- name: open_batch
INSERT INTO job_batches (id, type, payload) VALUES (:id, :type, :payload) ON CONFLICT DO NOTHING RETURNING id;

-- name: close_batch
UPDATE job_batches SET closed = 1 WHERE id = :id RETURNING id;

-- name: batch
SELECT id, type, closed, callback, created_at, ended_at FROM job_batches WHERE id = :id;

-- name: batches
SELECT id, type, closed, callback, created_at, ended_at FROM job_batches
WHERE id < :before AND (ended_at IS NULL OR :ended = 1) ORDER BY id DESC LIMIT :limit;

-- name: batch_counts
SELECT status, count(*) FROM jobs WHERE batch = :id GROUP BY status;

-- name: batch_ids
SELECT id FROM jobs WHERE batch = :batch ORDER BY id DESC LIMIT :limit;
