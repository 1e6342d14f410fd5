-- The statements of the SQLite engine that are not those of sql/queries.sql, by name. Parameters are named; :now is Unix seconds.


-- Enqueueing ---------------------------------------------------------------------------------------

-- name: insert_job
-- A duplicate of an unfinished (type, unique_key) inserts nothing. Further columns are added, from ?9 on.
INSERT INTO jobs (type, payload, priority, requires, scheduled_at, max_attempts, unique_key, created_at, updated_at
                  /*columns*/)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8 /*values*/)
ON CONFLICT DO NOTHING;

-- name: insert_alike
-- Many that differ in their payloads only. An element of the array is a payload, or a string with the payload's JSON
-- text: `value` is that text in both cases. The other parameters are those of insert_job.
INSERT INTO jobs (payload, type, priority, requires, scheduled_at, max_attempts, unique_key, created_at, updated_at
                  /*columns*/)
SELECT value, ?1, ?3, ?4, ?5, ?6, ?7, ?8, ?8 /*values*/ FROM json_each(?2);

-- name: payloads
SELECT value FROM json_each(?1);

-- name: inserted_at
SELECT count(*) FROM jobs WHERE id BETWEEN ?1 AND ?2 AND created_at = ?3;

-- name: find_unique
-- The existing job of a duplicate.
SELECT id, status FROM jobs INDEXED BY jobs_unique_key
WHERE type = :type AND unique_key = :unique_key AND unique_key IS NOT NULL
  AND status IN ('pending', 'running', 'held');

-- name: find_recent
-- The same, or else the latest one that is done, as long as its key counts.
SELECT id, status FROM jobs INDEXED BY jobs_unique_key
WHERE type = :type AND unique_key = :unique_key AND unique_key IS NOT NULL
  AND status IN ('pending', 'running', 'held')
UNION ALL
SELECT id, status FROM (
  SELECT id, status, completed_at + unique_for AS until FROM jobs INDEXED BY jobs_unique_after
  WHERE type = :type AND unique_key = :unique_key AND unique_for IS NOT NULL AND status = 'done'
  ORDER BY id DESC LIMIT 1)
WHERE until > :now
LIMIT 1;

-- name: replace_waiting
-- What a job that waits is to do. It keeps its place if it is due at once with the same priority; else it passes its gates
-- again.
UPDATE jobs SET
  payload = :payload, priority = :priority, updated_at = :now, attempts = 0, claim_token = claim_token + 1,
  scheduled_at = CASE WHEN coalesce(:due, :now + :due_after, :now) > :now THEN coalesce(:due, :now + :due_after)
                      WHEN hold IN ('', 'key', 'type') AND priority = :priority THEN scheduled_at
                      ELSE min(scheduled_at, :now) END,
  status = CASE WHEN coalesce(hold, 'after') = 'after'
                  OR (hold <> 'due' AND priority = :priority AND coalesce(:due, :now + :due_after, :now) <= :now)
                THEN status ELSE 'held' END,
  hold = CASE WHEN coalesce(hold, 'after') = 'after'
                OR (hold <> 'due' AND priority = :priority AND coalesce(:due, :now + :due_after, :now) <= :now)
              THEN hold ELSE 'due' END
WHERE id = :id AND status IN ('pending', 'held')
RETURNING id;

-- name: refill_gates
-- It is to pass its gates, and may have left room there.
INSERT INTO job_moves (id, type, concurrency_key, before, now)
SELECT id, type, concurrency_key, 'held', 'held' FROM jobs WHERE id = :id AND hold IS NOT NULL;

-- name: find_once
-- The job of an earlier request, in whatever state. The bounds are those of the index; without `likelihood`, SQLite would
-- walk from one to the other, over all requests of the type.
SELECT id FROM jobs INDEXED BY jobs_once
WHERE type = :type AND likelihood(unique_key = :unique_key, 0.000001)
  AND unique_key >= 'run:' AND unique_key < 'run;'
ORDER BY id DESC LIMIT 1;

-- name: spooled
-- Of files, [name, type, unique key] each, those that the payload of their job names, and when it succeeded. For the
-- bounds and `likelihood` see find_once.
SELECT json_extract(f.value, '$[0]'), CASE j.status WHEN 'done' THEN j.completed_at END
FROM json_each(:files) f CROSS JOIN jobs j INDEXED BY jobs_once
WHERE j.type = json_extract(f.value, '$[1]') AND likelihood(j.unique_key = json_extract(f.value, '$[2]'), 0.000001)
  AND j.unique_key >= 'run:' AND j.unique_key < 'run;'
  AND instr(j.payload, json_extract(f.value, '$[0]')) > 0;

-- name: count_waiting
-- Due jobs of a type with at least this priority, paused or not, counted up to a limit. One seek for each
-- (requires, priority), so that running and delayed ones cost nothing.
WITH RECURSIVE
kinds (requires) AS (
  SELECT (SELECT j.requires FROM jobs j INDEXED BY jobs_unfinished
          WHERE j.type = :type AND (j.status = 'pending' OR j.status = 'running')
          ORDER BY j.requires LIMIT 1)
  UNION ALL
  SELECT (SELECT j.requires FROM jobs j INDEXED BY jobs_unfinished
          WHERE j.type = :type AND j.requires > k.requires AND (j.status = 'pending' OR j.status = 'running')
          ORDER BY j.requires LIMIT 1)
  FROM kinds k WHERE k.requires IS NOT NULL
),
groups (requires, priority) AS (
  SELECT k.requires, (SELECT j.priority FROM jobs j INDEXED BY jobs_unfinished
                      WHERE j.type = :type AND j.requires = k.requires AND j.priority >= :priority
                        AND (j.status = 'pending' OR j.status = 'running')
                      ORDER BY j.priority DESC LIMIT 1)
  FROM kinds k WHERE k.requires IS NOT NULL
  UNION ALL
  SELECT g.requires, (SELECT j.priority FROM jobs j INDEXED BY jobs_unfinished
                      WHERE j.type = :type AND j.requires = g.requires AND j.priority < g.priority
                        AND j.priority >= :priority AND (j.status = 'pending' OR j.status = 'running')
                      ORDER BY j.priority DESC LIMIT 1)
  FROM groups g WHERE g.priority IS NOT NULL
)
SELECT count(*) FROM (
  SELECT 1 FROM groups g CROSS JOIN jobs j INDEXED BY jobs_unfinished
  WHERE g.priority IS NOT NULL AND j.type = :type AND j.requires = g.requires AND j.priority = g.priority
    AND j.status = 'pending' AND j.scheduled_at <= :now
  LIMIT :limit);

-- name: job
SELECT id, type, payload, status, priority, requires, scheduled_at, attempts, max_attempts, crashes,
       locked_by, locked_at, lock_expires_at, claim_token, cancel_requested_at, coalesce(unique_key, waiting_key) AS unique_key,
       progress,
       CASE WHEN length(CAST(result AS BLOB)) <= 4194304 THEN result ELSE substr(result, 1, 65536) END AS result,
       substr(last_error, 1, 65536) AS last_error, created_at, updated_at, started_at, completed_at, meta, progress_text,
       batch, concurrency_key, fair_key, hold
FROM jobs WHERE id = :id;

-- name: job_events
-- What programs that wait for these jobs are told: the result and the error once a job has ended, and which run it is.
SELECT id, status, progress, progress_text,
       CASE WHEN status IN ('pending', 'running', 'held') THEN NULL
            WHEN length(CAST(result AS BLOB)) <= 4194304 THEN result ELSE substr(result, 1, 65536) END,
       CASE WHEN status NOT IN ('pending', 'running', 'held') THEN substr(last_error, 1, 65536) END,
       attempts, claim_token
FROM jobs WHERE id IN (SELECT value FROM json_each(:ids));

-- name: ends
SELECT id, status, completed_at FROM jobs WHERE id IN (SELECT value FROM json_each(:ids));


-- Claiming and settling ----------------------------------------------------------------------------

-- name: groups
-- Each (type, requires, priority) that has pending rows for these types and capabilities, from the least priority on,
-- with the time of its first row. Loose index scans: one seek per group, whatever the number of rows, so neither finished
-- rows nor delayed ones of a higher priority cost anything; and of requirements that these capabilities do not
-- meet, however many there are, most are skipped.
WITH RECURSIVE
wanted (type) AS (
  SELECT value FROM json_each(:types)
  WHERE NOT EXISTS (SELECT 1 FROM job_controls c WHERE c.kind = 'paused' AND c.name = json_each.value)
),
kinds (type, requires) AS (
  SELECT w.type, (SELECT j.requires FROM jobs j INDEXED BY jobs_unfinished
                  WHERE j.type = w.type AND (j.status = 'pending' OR j.status = 'running')
                  ORDER BY j.requires LIMIT 1)
  FROM wanted w
  UNION ALL
  SELECT k.type, (SELECT j.requires FROM jobs j INDEXED BY jobs_unfinished
                  WHERE j.type = k.type
                    AND j.requires >= CASE WHEN k.requires = '' THEN char(0)
                                           ELSE CAST(next_kind(:capabilities, CAST(k.requires AS BLOB)) AS TEXT) END
                    AND (j.status = 'pending' OR j.status = 'running')
                  ORDER BY j.requires LIMIT 1)
  FROM kinds k WHERE k.requires IS NOT NULL
),
groups (type, requires, priority) AS (
  SELECT k.type, k.requires, (SELECT j.priority FROM jobs j INDEXED BY jobs_unfinished
                              WHERE j.type = k.type AND j.requires = k.requires AND j.priority >= :least
                                AND (j.status = 'pending' OR j.status = 'running')
                              ORDER BY j.priority DESC LIMIT 1)
  FROM kinds k
  WHERE k.requires IS NOT NULL AND (k.requires = '' OR covers(:capabilities, CAST(k.requires AS BLOB)))
  UNION ALL
  SELECT g.type, g.requires, (SELECT j.priority FROM jobs j INDEXED BY jobs_unfinished
                              WHERE j.type = g.type AND j.requires = g.requires AND j.priority < g.priority
                                AND j.priority >= :least AND (j.status = 'pending' OR j.status = 'running')
                              ORDER BY j.priority DESC LIMIT 1)
  FROM groups g WHERE g.priority IS NOT NULL
)
SELECT g.type, g.requires, g.priority,
       (SELECT j.scheduled_at FROM jobs j INDEXED BY jobs_unfinished
        WHERE j.type = g.type AND j.requires = g.requires AND j.priority = g.priority
          AND j.status = 'pending'
        ORDER BY j.scheduled_at LIMIT 1) AS first_at
FROM groups g WHERE g.priority IS NOT NULL;

-- name: claim_first
-- The first due job of a type, in the simple case: nothing of the type requires a capability,
-- nothing has a higher priority than the one asked for, and the type is not paused. Costs three seeks,
-- where the groups cost a dozen. Token and attempts are what they will be once it is claimed.
SELECT id, claim_token + 1, type, payload, attempts + 1, max_attempts, crashes, scheduled_at
FROM jobs INDEXED BY jobs_unfinished
WHERE type = ?1 AND requires = '' AND priority = ?2 AND status = 'pending' AND scheduled_at <= ?3
  AND NOT EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_unfinished
                  WHERE type = ?1 AND requires > '' AND status = 'pending')
  AND NOT EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_unfinished
                  WHERE type = ?1 AND requires = '' AND priority > ?2 AND status = 'pending')
  AND NOT EXISTS (SELECT 1 FROM job_controls WHERE kind = 'paused' AND name = ?1)
ORDER BY scheduled_at, id LIMIT 1;

-- name: any_due
-- 1 if there is such a job, 0 if no job of the type waits or runs, which is one seek; NULL if only the groups can tell.
SELECT CASE
  WHEN NOT EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_unfinished
                   WHERE type = ?1 AND (status = 'pending' OR status = 'running')) THEN 0
  WHEN EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_unfinished
               WHERE type = ?1 AND requires = '' AND priority = ?2 AND status = 'pending' AND scheduled_at <= ?3)
    AND NOT EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_unfinished
                    WHERE type = ?1 AND requires > '' AND status = 'pending')
    AND NOT EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_unfinished
                    WHERE type = ?1 AND requires = '' AND priority > ?2 AND status = 'pending')
    AND NOT EXISTS (SELECT 1 FROM job_controls WHERE kind = 'paused' AND name = ?1) THEN 1 END;

-- name: claim_one
-- Mark the job that claim_first found, in the same transaction.
UPDATE jobs SET
  status = 'running', locked_by = ?1, locked_at = ?2, lock_expires_at = ?3,
  claim_token = claim_token + 1, attempts = attempts + 1, started_at = ?2, updated_at = ?2
WHERE id = ?4;

-- name: claim_group
-- Pick and mark the first due rows of one group.
UPDATE jobs SET
  status = 'running', locked_by = :owner, locked_at = :now, lock_expires_at = :expires_at,
  claim_token = claim_token + 1, attempts = attempts + 1, started_at = :now, updated_at = :now
WHERE id IN (SELECT j.id FROM jobs j INDEXED BY jobs_unfinished
             WHERE j.status = 'pending' AND j.type = :type AND j.requires = :requires
               AND j.priority = :priority AND j.scheduled_at <= :now
             ORDER BY j.scheduled_at, j.id LIMIT :want)
RETURNING id, claim_token, type, payload, attempts, max_attempts, crashes, scheduled_at;

-- name: peek_group
-- The first due rows of one group, to be merged with other groups of the same priority.
SELECT scheduled_at, id FROM jobs INDEXED BY jobs_unfinished
WHERE status = 'pending' AND type = :type AND requires = :requires AND priority = :priority
  AND scheduled_at <= :now
ORDER BY scheduled_at, id LIMIT :want;

-- name: claim_ids
-- Mark rows picked by peek_group, unless another worker has claimed them.
UPDATE jobs SET
  status = 'running', locked_by = :owner, locked_at = :now, lock_expires_at = :expires_at,
  claim_token = claim_token + 1, attempts = attempts + 1, started_at = :now, updated_at = :now
WHERE id IN (SELECT value FROM json_each(:ids)) AND status = 'pending' AND scheduled_at <= :now
RETURNING id, claim_token, type, payload, attempts, max_attempts, crashes, scheduled_at;

-- name: pending_token
-- What a row that is to be quarantined must still hold.
SELECT claim_token FROM jobs WHERE id = ?1 AND status = 'pending';

-- name: settle_done
-- The plain success. Matching the claim is what makes at most one outcome count. Positional, for the
-- fastest binding: result, progress, started_at, now, now, id, owner, token.
UPDATE jobs SET
  status = 'done', result = ?, progress = ?, progress_text = NULL, started_at = ?, completed_at = ?, updated_at = ?,
  locked_by = NULL, locked_at = NULL, lock_expires_at = NULL, last_error = NULL
WHERE id = ? AND status = 'running' AND locked_by = ? AND claim_token = ?;

-- name: settle_plain
-- The plainest success, without a result, of many jobs at once whose claims have the same token: half the
-- cost of one statement each. :started maps ids to the times at which their handlers began, in whole microseconds, which
-- are written faster than numbers with a point.
UPDATE jobs SET
  status = 'done', result = NULL, progress = NULL, progress_text = NULL,
  started_at = s.value / 1e6, completed_at = :now, updated_at = :now,
  locked_by = NULL, locked_at = NULL, lock_expires_at = NULL, last_error = NULL
FROM json_each(:started) s
WHERE jobs.id = CAST(s.key AS INTEGER) AND jobs.status = 'running' AND jobs.locked_by = :owner
  AND jobs.claim_token = :token;

-- name: show_progress
-- What a run has reported so far, as long as its claim holds.
UPDATE jobs SET progress = :fraction, progress_text = :text, updated_at = :now
WHERE id = :id AND status = 'running' AND locked_by = :owner AND claim_token = :token;

-- name: settle
-- Every other outcome of a claim, by the same match. A job that is to be cancelled never runs again,
-- whatever this run ended with.
UPDATE jobs SET
  status = CASE WHEN :status IN ('pending', 'failed') AND cancel_requested_at IS NOT NULL THEN 'cancelled'
                ELSE :status END,
  result = :result,
  progress = :progress,
  progress_text = NULL,
  attempts = max(attempts + :attempts, 0),
  crashes = min(crashes, 9007199254740990) + :crashes,
  scheduled_at = CASE WHEN :delay > 0 THEN :now + :delay ELSE scheduled_at END,
  started_at = coalesce(:started_at, started_at),
  completed_at = CASE WHEN :status = 'pending' AND cancel_requested_at IS NULL THEN NULL ELSE :now END,
  updated_at = :now,
  last_error = CASE WHEN :status = 'done' THEN NULL ELSE coalesce(:error, last_error) END,
  locked_by = NULL, locked_at = NULL, lock_expires_at = NULL,
  claim_token = CASE WHEN :status <> 'pending' THEN claim_token
                     WHEN claim_token < 9007199254740991 THEN claim_token + 1 ELSE 1 END
WHERE id = :id AND status = 'running' AND locked_by = :owner AND claim_token = :token;

-- name: insert_error
INSERT INTO job_errors (job_id, attempt, kind, message, traceback, exit_code, signal, stderr,
                        peak_memory, worker, duration, created_at)
SELECT id, attempts - :attempts, :kind, :message, :traceback, :exit_code, :signal, :stderr,
       :peak_memory, :worker, :duration, :now
FROM jobs WHERE id = :id;

-- name: set_aside
-- Quarantine a row whose change the database refuses: its counters are clamped.
UPDATE jobs SET
  status = 'quarantined', last_error = :error, completed_at = :now, updated_at = :now,
  locked_by = NULL, locked_at = NULL, lock_expires_at = NULL,
  claim_token = CASE WHEN claim_token BETWEEN 0 AND 9007199254740990 THEN claim_token + 1 ELSE 1 END,
  attempts = CASE WHEN attempts BETWEEN 0 AND 9007199254740990 THEN attempts WHEN attempts > 0 THEN 1000000 ELSE 0 END,
  crashes = CASE WHEN crashes BETWEEN 0 AND 9007199254740990 THEN crashes WHEN crashes > 0 THEN 1000000 ELSE 0 END
WHERE id = :id AND claim_token IS :token
  AND CASE WHEN status IN ('pending', 'held') THEN :owner = ''
           ELSE status = 'running' AND coalesce(locked_by, '') = :owner
                AND (:expires_at IS NULL OR CASE WHEN lock_expires_at < 1e300 THEN lock_expires_at ELSE 0 END = :expires_at) END;

-- name: note_set_aside
INSERT INTO job_errors (job_id, attempt, kind, message, created_at)
SELECT id, attempts, 'row', :error, :now FROM jobs WHERE id = :id;

-- name: limit_batch
-- Its batch failed or killed its worker: it may run only in smaller ones.
INSERT INTO job_batch_limits (job_id, most) VALUES (:id, :most)
ON CONFLICT (job_id) DO UPDATE SET most = min(most, :most);

-- name: batch_limits
SELECT job_id, most FROM job_batch_limits WHERE job_id IN (SELECT value FROM json_each(:jobs));

-- name: insert_run
-- OR REPLACE: a token names a run for ever, unless another program has lowered it; that must not stop a worker.
-- The start of a dead worker's run is known from its duration.
INSERT OR REPLACE INTO job_runs (job_id, token, attempt, outcome, worker, started_at, duration, cpu_time,
                                 peak_memory, log)
SELECT id, :token, attempts - :attempts, :outcome, :worker,
       coalesce(:started_at, :now - :duration, started_at, :now), :duration, :cpu_time, :peak_memory, :log
FROM jobs WHERE id = :id;

-- name: renew
-- Only locks that have used up a part of their time: quick jobs never cost a renewal.
UPDATE jobs SET lock_expires_at = :expires_at
WHERE id IN (SELECT id FROM jobs_held
             WHERE locked_by IN (SELECT value FROM json_each(:owners)) AND lock_expires_at < :renew_before);

-- name: to_renew
SELECT id FROM jobs_held
WHERE locked_by IN (SELECT value FROM json_each(:owners)) AND lock_expires_at < :renew_before;

-- name: renew_one
UPDATE jobs SET lock_expires_at = :expires_at
WHERE id = :id AND status = 'running' AND locked_by IN (SELECT value FROM json_each(:owners))
  AND lock_expires_at < :renew_before;

-- name: needs_renewal
SELECT 1 FROM jobs_held
WHERE locked_by IN (SELECT value FROM json_each(:owners)) AND lock_expires_at < :renew_before LIMIT 1;


-- Recovery and reclaim -----------------------------------------------------------------------------

-- name: held_by
-- What one worker holds, in the order in which it would run it.
SELECT id, claim_token, type, payload, attempts, max_attempts, crashes, scheduled_at
FROM jobs_held
WHERE locked_by = :owner
ORDER BY priority DESC, scheduled_at, id;

-- name: expired
-- Claims whose lock has expired, or that have none: a row marked running by hand. What is no time, such as NaN or
-- infinity, is none.
SELECT id, claim_token, coalesce(locked_by, ''), CASE WHEN lock_expires_at < 1e300 THEN lock_expires_at ELSE 0 END,
       CASE WHEN locked_at > -1e300 AND locked_at < 1e300 THEN locked_at ELSE 0 END
FROM jobs_held
WHERE lock_expires_at IS NULL OR lock_expires_at < :now OR lock_expires_at >= 1e300
LIMIT :limit;

-- name: claim_of
-- One expired claim, with what settling needs; it must be as it was when it was first read.
SELECT id, claim_token, type, payload, attempts, max_attempts, crashes, scheduled_at, locked_by
FROM jobs
WHERE id = :id AND status = 'running' AND claim_token = :token
  AND CASE WHEN lock_expires_at < 1e300 THEN lock_expires_at ELSE 0 END = :expires_at;

-- name: adopt_unowned
-- A row that was marked running without a claim, or with an owner that is not a text, gets one, so that it can be
-- settled like any other.
UPDATE jobs SET locked_by = 'foreign', claim_token = CASE WHEN claim_token < 9007199254740991 THEN claim_token + 1 ELSE 1 END, lock_expires_at = :now
WHERE id = :id AND status = 'running' AND claim_token = :token;

-- name: cancels
-- Running jobs of a supervisor's workers that are to be cancelled.
SELECT j.id, j.claim_token, j.locked_by FROM jobs_held j CROSS JOIN job_workers w ON w.incarnation = j.locked_by
WHERE j.cancel_requested_at IS NOT NULL AND w.supervisor = :supervisor
ORDER BY j.id LIMIT :limit;


-- The registry -------------------------------------------------------------------------------------

-- name: register_supervisor
INSERT INTO job_supervisors (id, pid, host, machine_id, boot_id, owner_lock, scoreboard, config, version,
                             started_at)
VALUES (:id, :pid, :host, :machine_id, :boot_id, :owner_lock, :scoreboard, :config, :version, :started_at)
ON CONFLICT (id) DO NOTHING;

-- name: supervisors
SELECT id, pid, host, machine_id, boot_id, owner_lock, scoreboard, config, version, started_at
FROM job_supervisors ORDER BY started_at;

-- name: forget_supervisor
DELETE FROM job_supervisors WHERE id = :id RETURNING host, pid;


-- Alerts -------------------------------------------------------------------------------------------

-- name: failed_jobs
-- The jobs of each type that failed in a range of failed attempts and have this status now, without those that alerts
-- have enqueued. The job and its error are those of the latest attempt: max() chooses the row of the other columns.
SELECT j.type, count(DISTINCT j.id), j.id, substr(e.message, 1, 1000), max(e.id)
FROM job_errors e CROSS JOIN jobs j ON j.id = e.job_id
WHERE e.id > :after AND e.id <= :until AND j.status = :status AND (:type IS NULL OR j.type = :type)
  AND NOT (CASE WHEN json_valid(j.meta) THEN json_type(j.meta, '$.alert') IS NOT NULL ELSE 0 END)
GROUP BY j.type;


-- Measuring ----------------------------------------------------------------------------------------

-- name: count_before
-- Due rows of one group that are claimed before a position, counted up to a limit.
SELECT count(*) FROM (
  SELECT 1 FROM jobs INDEXED BY jobs_unfinished
  WHERE status = 'pending' AND type = :type AND requires = :requires AND priority = :priority
    AND (scheduled_at, id) < (:at, :id)
  LIMIT :limit);

-- name: backlog
-- Each (type, requires, priority) that has unfinished rows, paused or not, with the time of its first pending
-- one. One seek per group, as for a claim.
SELECT g.type, g.requires, g.priority,
       (SELECT j.scheduled_at FROM jobs j INDEXED BY jobs_unfinished
        WHERE j.type = g.type AND j.requires = g.requires AND j.priority = g.priority
          AND j.status = 'pending'
        ORDER BY j.scheduled_at LIMIT 1) AS first_at
FROM job_groups g;

-- name: crowded
-- Whether a scan of the whole index costs less than a few seeks per group.
SELECT yes FROM jobs_crowded;

-- name: whole_backlog
-- The backlog of each type, by one scan of the index: how many are due, since when, and when the next will be.
SELECT type, sum(scheduled_at <= :now), min(CASE WHEN scheduled_at <= :now THEN scheduled_at END),
       min(CASE WHEN scheduled_at > :now THEN scheduled_at END)
FROM jobs INDEXED BY jobs_unfinished
WHERE (status = 'pending' OR status = 'running') AND status = 'pending' AND typeof(scheduled_at) IN ('real', 'integer')
GROUP BY type;

-- name: awaiting_retry
-- Whether a pending job for these types and capabilities has been tried before, or has passed its gates, and is due again
-- soon: what a burst waits for. Also for one whose time has come and that has not passed its gates yet.
SELECT 1 FROM (
  SELECT requires, priority FROM jobs INDEXED BY jobs_unfinished
  WHERE status = 'pending' AND type IN (SELECT value FROM json_each(:types)) AND scheduled_at <= :latest
    AND (attempts > 0 OR crashes > 0 OR hold = '')
  UNION ALL
  SELECT requires, priority FROM jobs INDEXED BY jobs_due_later
  WHERE hold = 'due' AND status = 'held' AND type IN (SELECT value FROM json_each(:types)) AND scheduled_at <= :latest
    AND (attempts > 0 OR crashes > 0 OR scheduled_at <= :now)
  UNION ALL
  SELECT j.requires, j.priority FROM job_keys k CROSS JOIN jobs j INDEXED BY jobs_by_key
    ON j.type = k.type AND j.concurrency_key = k.key AND j.hold = 'key' AND j.status = 'held'
  WHERE k.opens_at <= :latest AND k.type IN (SELECT value FROM json_each(:types)))
WHERE priority >= :least AND (requires = '' OR covers(:capabilities, CAST(requires AS BLOB))) LIMIT 1;

-- name: left_behind
-- Jobs that wait for more than their own time, when nothing else is left to do.
SELECT id FROM jobs INDEXED BY jobs_at_gate
WHERE hold IN ('', 'after', 'key', 'type') AND status IN ('held', 'pending')
  AND type IN (SELECT value FROM json_each(:types)) LIMIT :limit;

-- name: written_later
-- Pending rows that will be due and that were written after a time to come, as far as that is known: the clock was set
-- back since. An application may write anything into updated_at; the start of the last run is ours.
SELECT id FROM jobs INDEXED BY jobs_unfinished
WHERE (status = 'pending' OR status = 'running') AND status = 'pending' AND scheduled_at > :now AND scheduled_at < 1e11
  AND CASE WHEN typeof(updated_at) IN ('real', 'integer') AND updated_at < 1e11 THEN updated_at ELSE started_at END
      > :written_after
  AND (claim_token > 0 OR scheduled_at <= updated_at)
UNION ALL
SELECT id FROM jobs INDEXED BY jobs_due_later
WHERE hold = 'due' AND status = 'held' AND scheduled_at > :now AND scheduled_at < 1e11
  AND CASE WHEN typeof(updated_at) IN ('real', 'integer') AND updated_at < 1e11 THEN updated_at ELSE started_at END
      > :written_after
  AND (attempts > 0 OR scheduled_at <= updated_at)
LIMIT :limit;

-- name: bring_forward
UPDATE jobs SET
  scheduled_at = :now + max(scheduled_at
    - CASE WHEN typeof(updated_at) IN ('real', 'integer') AND updated_at < 1e11 THEN updated_at ELSE started_at END, 0),
  started_at = min(started_at, :now), updated_at = :now
WHERE id IN (SELECT value FROM json_each(:ids)) AND status IN ('pending', 'held') AND scheduled_at > :now
  AND CASE WHEN typeof(updated_at) IN ('real', 'integer') AND updated_at < 1e11 THEN updated_at ELSE started_at END
      > :written_after;

-- name: pages
-- How many pages are free, how many there are, and whether free ones can be given back.
SELECT freelist_count, page_count, auto_vacuum FROM pragma_freelist_count, pragma_page_count, pragma_auto_vacuum;

-- name: inserted
-- How many jobs were ever inserted.
SELECT seq FROM sqlite_sequence WHERE name = 'jobs';

-- name: has_claims
-- Whether any worker of a supervisor holds a claim.
SELECT 1 FROM jobs_held j CROSS JOIN job_workers w ON w.incarnation = j.locked_by
WHERE w.supervisor = :supervisor LIMIT 1;

-- name: count_pending
SELECT count(*) FROM jobs INDEXED BY jobs_unfinished
WHERE status = 'pending' AND type IN (SELECT value FROM json_each(:types));

-- name: unsuccessful_since
SELECT count(*) FROM jobs INDEXED BY jobs_unsuccessful
WHERE status IN ('failed', 'quarantined') AND completed_at >= :since
  AND type IN (SELECT value FROM json_each(:types));

-- name: unhandled
-- Types with pending jobs that no pool of ours handles. Two seeks per type.
SELECT type FROM job_types t
WHERE type NOT IN (SELECT value FROM json_each(:types))
  AND EXISTS (SELECT 1 FROM jobs j INDEXED BY jobs_unfinished WHERE j.type = t.type AND j.status = 'pending')
LIMIT 20;

-- name: running_by_type
SELECT type, count(*) FROM jobs_held GROUP BY type;

-- name: controls
SELECT kind, name, value FROM job_controls
UNION ALL
SELECT 'drained', substr(key, 9), 1 FROM job_meta WHERE substr(key, 1, 8) = 'drained:'
UNION ALL
SELECT 'host', substr(key, 6), CAST(value AS INTEGER) FROM job_meta WHERE substr(key, 1, 5) = 'host:';


-- History ------------------------------------------------------------------------------------------

-- name: history
SELECT minute, type, done, failed, waiting, running, run_seconds, wait_seconds
FROM job_history WHERE minute >= :since AND minute < :until ORDER BY minute, type LIMIT :limit;

-- name: history_in_steps
-- Sums of floats, which cannot overflow: other programs may have stored any number.
SELECT :since + CAST((minute - :since) / :step AS INTEGER) * :step, type,
  CAST(min(max(total(done), 0.0), 9e15) AS INTEGER), CAST(min(max(total(failed), 0.0), 9e15) AS INTEGER),
  max(waiting), max(running), coalesce(total(run_seconds), 0.0), coalesce(total(wait_seconds), 0.0)
FROM job_history WHERE minute >= :since AND minute < :until GROUP BY 1, 2 ORDER BY 1, 2 LIMIT :limit;

-- name: first_minute
-- A row that begins with an hour is that hour's, or its first minute's, to which the others are added.
SELECT minute FROM job_history
WHERE minute < :before AND minute <> CAST(minute / 3600.0 AS INTEGER) * 3600.0 ORDER BY minute LIMIT 1;

-- name: add_hour
-- The minutes of an hour are added to its first one, which then stands for the hour. The busiest types keep their names.
INSERT INTO job_history (minute, type, done, failed, waiting, running, run_seconds, wait_seconds)
SELECT :hour, iif(type IN (SELECT type FROM job_history WHERE minute > :hour AND minute < :hour + 3600.0 AND type <> ''
                           GROUP BY type ORDER BY total(done) + total(failed) DESC, max(waiting) DESC, type
                           LIMIT :types), type, '') AS named,
  CAST(min(max(total(done), 0.0), 9e15) AS INTEGER), CAST(min(max(total(failed), 0.0), 9e15) AS INTEGER),
  max(waiting), max(running), coalesce(total(run_seconds), 0.0), coalesce(total(wait_seconds), 0.0)
FROM job_history WHERE minute > :hour AND minute < :hour + 3600.0 GROUP BY named
ON CONFLICT (minute, type) DO UPDATE SET
  done = min(done + excluded.done, 9000000000000000), failed = min(failed + excluded.failed, 9000000000000000),
  waiting = max(waiting, excluded.waiting), running = max(running, excluded.running),
  run_seconds = coalesce(run_seconds + excluded.run_seconds, 0.0),
  wait_seconds = coalesce(wait_seconds + excluded.wait_seconds, 0.0);

-- name: forget_minutes
DELETE FROM job_history WHERE minute > :hour AND minute < :hour + 3600.0;


-- Operating ----------------------------------------------------------------------------------------

-- name: match_among
-- Which of these jobs match a filter. A condition that is empty or NULL matches all.
SELECT id FROM jobs
WHERE id IN (SELECT value FROM json_each(:ids))
  AND (:statuses = '[]' OR status IN (SELECT value FROM json_each(:statuses)))
  AND (:types = '[]' OR type IN (SELECT value FROM json_each(:types)))
  AND (:error = '' OR instr(lower(last_error), lower(:error)) > 0)
  AND (:text = '' OR instr(lower(substr(payload, 1, 65536)), lower(:text)) > 0
       OR instr(lower(substr(result, 1, 65536)), lower(:text)) > 0 OR instr(lower(last_error), lower(:text)) > 0)
  AND (:unique_key IS NULL OR coalesce(unique_key, waiting_key) = :unique_key)
  AND (:requires IS NULL OR requires = :requires
       OR (:requires <> '' AND instr(' ' || requires || ' ', ' ' || :requires || ' ') > 0))
  AND (:batch IS NULL OR batch = :batch)
  AND (:priority IS NULL OR priority = :priority)
  AND (:finished_after IS NULL OR completed_at >= :finished_after)
  AND (:finished_before IS NULL OR completed_at < :finished_before)
  AND (:tags = '[]' OR (CASE WHEN json_valid(meta) THEN NOT EXISTS (
         SELECT 1 FROM json_each(:tags) t
         WHERE t.value NOT IN (SELECT m.value FROM json_each(meta, '$.tags') m)) END))
ORDER BY id DESC;

-- name: match_stretch
-- The same for a range of ids.
SELECT id FROM jobs
WHERE id >= :floor AND id <= :latest
  AND (:statuses = '[]' OR status IN (SELECT value FROM json_each(:statuses)))
  AND (:types = '[]' OR type IN (SELECT value FROM json_each(:types)))
  AND (:error = '' OR instr(lower(last_error), lower(:error)) > 0)
  AND (:text = '' OR instr(lower(substr(payload, 1, 65536)), lower(:text)) > 0
       OR instr(lower(substr(result, 1, 65536)), lower(:text)) > 0 OR instr(lower(last_error), lower(:text)) > 0)
  AND (:unique_key IS NULL OR coalesce(unique_key, waiting_key) = :unique_key)
  AND (:requires IS NULL OR requires = :requires
       OR (:requires <> '' AND instr(' ' || requires || ' ', ' ' || :requires || ' ') > 0))
  AND (:batch IS NULL OR batch = :batch)
  AND (:priority IS NULL OR priority = :priority)
  AND (:finished_after IS NULL OR completed_at >= :finished_after)
  AND (:finished_before IS NULL OR completed_at < :finished_before)
  AND (:tags = '[]' OR (CASE WHEN json_valid(meta) THEN NOT EXISTS (
         SELECT 1 FROM json_each(:tags) t
         WHERE t.value NOT IN (SELECT m.value FROM json_each(meta, '$.tags') m)) END))
ORDER BY id DESC;

-- name: arrange
-- These jobs in another order; texts where numbers belong come last.
SELECT id FROM jobs WHERE id IN (SELECT value FROM json_each(:ids))
ORDER BY CASE :by WHEN 'type' THEN type WHEN 'status' THEN status WHEN 'priority' THEN priority
                  WHEN 'attempts' THEN attempts WHEN 'due' THEN scheduled_at
                  WHEN 'changed' THEN coalesce(completed_at, started_at, created_at) END, id;

-- name: unsuccessful_types
-- Types of failed or of quarantined jobs, by one seek per type.
WITH RECURSIVE types (type) AS (
  SELECT (SELECT type FROM jobs INDEXED BY jobs_unsuccessful_type
          WHERE status = :status AND status IN ('failed', 'quarantined') ORDER BY type LIMIT 1)
  UNION ALL
  SELECT (SELECT j.type FROM jobs j INDEXED BY jobs_unsuccessful_type
          WHERE j.status = :status AND j.status IN ('failed', 'quarantined') AND j.type > t.type
          ORDER BY j.type LIMIT 1)
  FROM types t WHERE t.type IS NOT NULL
)
SELECT type FROM types WHERE type IS NOT NULL;

-- name: unsuccessful_ids
-- Those of one type, the latest first, in the order of the index.
SELECT id FROM jobs INDEXED BY jobs_unsuccessful_type
WHERE status = :status AND status IN ('failed', 'quarantined') AND type = :type AND id <= :latest
ORDER BY id DESC LIMIT :limit;

-- name: unfinished_ids
SELECT id FROM jobs INDEXED BY jobs_unfinished WHERE status = 'pending' OR status = 'running'
UNION ALL SELECT id FROM jobs INDEXED BY jobs_at_gate WHERE hold IS NOT NULL AND status = 'held' LIMIT :limit;

-- name: running_ids
SELECT id FROM jobs_held LIMIT :limit;

-- name: jobs_among
-- For lists: only the beginnings of long texts, so that a page of large rows does not take hundreds of megabytes.
SELECT id, type, CASE WHEN length(CAST(payload AS BLOB)) <= 4096 THEN payload ELSE substr(payload, 1, 4096) END,
       status, priority, requires, scheduled_at, attempts, max_attempts, crashes,
       locked_by, locked_at, lock_expires_at, claim_token, cancel_requested_at, coalesce(unique_key, waiting_key) AS unique_key,
       progress,
       CASE WHEN length(CAST(result AS BLOB)) <= 4096 THEN result ELSE substr(result, 1, 4096) END,
       substr(last_error, 1, 4096), created_at, updated_at, started_at, completed_at,
       CASE WHEN length(CAST(meta AS BLOB)) <= 16384 THEN meta ELSE substr(meta, 1, 4096) END, progress_text,
       batch, concurrency_key, fair_key, hold
FROM jobs WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY id DESC;

-- name: durations
-- Of the latest run of each of these jobs, if it was recorded.
SELECT j.id, r.duration FROM jobs j JOIN job_runs r ON r.job_id = j.id AND r.token = j.claim_token
WHERE j.id IN (SELECT value FROM json_each(:ids)) AND r.duration IS NOT NULL;

-- name: recent_errors
-- The latest failed attempts, to be grouped, and whether their jobs are failed now.
SELECT j.type, e.kind, substr(e.message, 1, 1000), e.created_at, e.job_id, j.status IN ('failed', 'quarantined')
FROM job_errors e INDEXED BY job_errors_time CROSS JOIN jobs j ON j.id = e.job_id
WHERE e.created_at >= :since ORDER BY e.created_at DESC LIMIT :rows;

-- name: job_errors
SELECT job_id, attempt, kind, substr(message, 1, 65536), substr(traceback, 1, 131072), exit_code, signal, stderr, peak_memory, worker,
       duration, created_at
FROM job_errors WHERE job_id = :id ORDER BY id;

-- name: latest_runs
-- Rows are numbered as they are written.
SELECT r.rowid, r.job_id, r.token, r.attempt, r.outcome, r.worker, r.started_at, r.duration, r.cpu_time, r.peak_memory, r.log,
       j.type, j.last_error
FROM job_runs r JOIN jobs j ON j.id = r.job_id
WHERE r.rowid > :after ORDER BY r.rowid DESC LIMIT :limit;

-- name: latest_run
SELECT max(rowid) FROM job_runs;

-- name: retry
-- Back to pending with their counters reset. OR IGNORE: a unique key may be taken by now.
UPDATE OR IGNORE jobs SET
  status = 'pending', attempts = 0, crashes = 0, scheduled_at = :now,
  claim_token = CASE WHEN claim_token BETWEEN 0 AND 9007199254740990 THEN claim_token + 1 ELSE 1 END,
  completed_at = NULL, cancel_requested_at = NULL, progress = NULL, progress_text = NULL, result = NULL,
  updated_at = :now
WHERE id IN (SELECT value FROM json_each(:ids)) AND status IN ('failed', 'quarantined', 'cancelled')
RETURNING id;

-- name: rerun
-- A retry of one job by hand: with another payload, or although it has succeeded.
UPDATE OR IGNORE jobs SET
  status = 'pending', attempts = 0, crashes = 0, scheduled_at = :now, payload = coalesce(:payload, payload),
  claim_token = CASE WHEN claim_token BETWEEN 0 AND 9007199254740990 THEN claim_token + 1 ELSE 1 END,
  completed_at = NULL, cancel_requested_at = NULL, progress = NULL, progress_text = NULL, result = NULL,
  updated_at = :now
WHERE id IN (SELECT value FROM json_each(:ids))
  AND (status IN ('failed', 'quarantined', 'cancelled') OR (:done AND status = 'done'))
RETURNING id;

-- name: duplicates
-- Those of some finished jobs whose unique key an unfinished one has, and its id.
SELECT j.id, twin.id
FROM jobs j JOIN jobs twin INDEXED BY jobs_unique_key ON twin.type = j.type AND twin.unique_key = j.unique_key
WHERE j.id IN (SELECT value FROM json_each(:ids))
  AND j.status NOT IN ('pending', 'running', 'held')
  AND twin.unique_key IS NOT NULL AND twin.status IN ('pending', 'running', 'held');

-- name: cancel_pending
UPDATE jobs SET status = 'cancelled', completed_at = :now, updated_at = :now,
  cancel_requested_at = :now,
  claim_token = CASE WHEN claim_token BETWEEN 0 AND 9007199254740990 THEN claim_token + 1 ELSE 1 END
WHERE id IN (SELECT value FROM json_each(:ids)) AND status IN ('pending', 'held')
RETURNING id;

-- name: request_cancel
-- A running job keeps its status until it has really stopped.
UPDATE jobs SET cancel_requested_at = coalesce(cancel_requested_at, :now)
WHERE id IN (SELECT value FROM json_each(:ids)) AND status = 'running'
RETURNING id;

-- name: delete_finished
DELETE FROM jobs WHERE id IN (SELECT value FROM json_each(:ids)) AND status NOT IN ('pending', 'running', 'held')
RETURNING id;

-- name: prune
DELETE FROM jobs
WHERE id IN (SELECT value FROM json_each(:ids))
  AND ((status IN ('done', 'cancelled') AND completed_at < :done_before)
    OR (status IN ('failed', 'quarantined') AND completed_at < :failed_before))
  AND (unique_for IS NULL OR completed_at + unique_for < (SELECT now FROM job_clock));

-- name: prune_errors
-- Errors of jobs that another program deleted with foreign keys off.
DELETE FROM job_errors WHERE id IN (
  SELECT e.id FROM job_errors e LEFT JOIN jobs j ON j.id = e.job_id
  WHERE j.id IS NULL AND e.created_at < :before LIMIT 1000);

-- name: prune_runs
-- Runs of such jobs, in the same range of ids: there may be one for every job that is kept.
DELETE FROM job_runs
WHERE job_id > :after AND job_id <= :until AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = job_runs.job_id);

-- name: prune_batch_limits
DELETE FROM job_batch_limits
WHERE job_id > :after AND job_id <= :until
  AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = job_batch_limits.job_id);

-- name: prune_second_chances
DELETE FROM job_second_chances
WHERE job_id > :after AND job_id <= :until
  AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = job_second_chances.job_id);

-- name: failed_after
-- Failed jobs in the order of their failures, and whether each is to be redriven.
SELECT j.completed_at, j.id,
       j.type IN (SELECT value FROM json_each(:types)) AND j.priority >= :least
       AND (j.requires = '' OR covers(:capabilities, CAST(j.requires AS BLOB)))
       AND coalesce((SELECT c.used FROM job_second_chances c WHERE c.job_id = j.id), 0) < :times
FROM jobs j INDEXED BY jobs_unsuccessful
WHERE j.status = 'failed' AND j.status IN ('failed', 'quarantined') AND (j.completed_at, j.id) > (:failed_at, :id) AND j.completed_at <= :until
ORDER BY j.completed_at, j.id LIMIT :limit;

-- name: note_second_chance
INSERT INTO job_second_chances (job_id, used) SELECT value, 1 FROM json_each(:ids) WHERE true
ON CONFLICT (job_id) DO UPDATE SET used = used + 1;

-- name: forget_second_chances
-- Jobs that are retried by hand start again.
DELETE FROM job_second_chances WHERE job_id IN (SELECT value FROM json_each(:ids));

-- name: count_open
-- Jobs that are unfinished or failed, by the two indexes that hold no others; each in the index's own
-- order, so that nothing is sorted.
SELECT type, status, count(*) FROM jobs INDEXED BY jobs_unfinished
WHERE status = 'pending' OR status = 'running' GROUP BY type, requires, priority, status
UNION ALL
SELECT type, 'held', count(*) FROM jobs INDEXED BY jobs_at_gate WHERE hold IN ('after', 'due', 'key', 'type') GROUP BY type
UNION ALL
SELECT type, status, count(*) FROM jobs INDEXED BY jobs_unsuccessful_type
WHERE status IN ('failed', 'quarantined') GROUP BY status, type;

-- name: count_held
SELECT type, hold, count(*) FROM jobs INDEXED BY jobs_at_gate WHERE hold IN ('after', 'due', 'key', 'type')
GROUP BY type, hold;

-- name: count_closed
-- The others, which are in no index: this reads the whole table.
SELECT type, status, count(*) FROM jobs WHERE status = 'done' OR status = 'cancelled' GROUP BY type, status;

-- name: held_by_supervisor
-- Running jobs by the supervisor of their worker; without those of foreign programs.
SELECT coalesce(w.supervisor, ''), count(*)
FROM jobs_held j LEFT JOIN job_workers w ON w.incarnation = j.locked_by
WHERE coalesce(j.locked_by, '') <> 'foreign'
GROUP BY 1;

-- name: count_expired
SELECT count(*) FROM (
  SELECT 1 FROM jobs_held WHERE lock_expires_at IS NULL OR lock_expires_at < :past LIMIT :limit);


-- name: slowest_types
-- Mean seconds per job of each type among the latest done ones.
SELECT type, count(*), avg(completed_at - started_at), max(completed_at - started_at)
FROM (SELECT type, started_at, completed_at FROM jobs WHERE status = 'done' AND started_at IS NOT NULL
      ORDER BY id DESC LIMIT 5000)
GROUP BY type ORDER BY 3 DESC LIMIT 200;


-- The database itself ------------------------------------------------------------------------------

-- name: tables
SELECT name FROM sqlite_schema WHERE type = 'table';

-- name: named_parts
SELECT name FROM sqlite_schema WHERE type IN ('index', 'view', 'trigger');

-- name: has_column
SELECT 1 FROM pragma_table_xinfo(:table) WHERE lower(name) = :column;

-- name: count_jobs
SELECT count(*) FROM jobs;

-- name: make_epoch
-- A new one, different from all before.
INSERT INTO job_meta (key, value) VALUES ('epoch', lower(hex(randomblob(8))))
ON CONFLICT (key) DO UPDATE SET value = lower(hex(randomblob(8)));


-- Gates --------------------------------------------------------------------------------------------

-- name: mark_pending
-- Pending jobs are to pass the gates, once more if they have been admitted; those that run have passed. They are held by a statement of its own, which
-- does not change `hold`: so no trigger lets the last of them pass before the first.
UPDATE jobs SET
  turn = CASE WHEN concurrency_key IS NOT NULL THEN scheduled_at - priority * 1e9
              WHEN hold = '' THEN turn
              ELSE scheduled_at - priority * coalesce((SELECT age_boost FROM job_limits WHERE type = :type), 1e9) END,
  hold = CASE WHEN status = 'running' THEN ''
              WHEN scheduled_at > (SELECT now + 0.002 FROM job_clock) THEN 'due'
              WHEN concurrency_key IS NOT NULL THEN 'key'
              WHEN EXISTS (SELECT 1 FROM job_limits WHERE type = :type AND fair) THEN 'due' -- where it gets its turn
              ELSE 'type' END
WHERE id IN (SELECT id FROM jobs INDEXED BY jobs_unfinished
             WHERE type = :type AND status = 'pending' AND (status = 'pending' OR status = 'running')
               AND coalesce(hold, '') = '' LIMIT :limit)
   OR id IN (SELECT id FROM jobs INDEXED BY jobs_unfinished
             WHERE type = :type AND status = 'running' AND (status = 'pending' OR status = 'running') AND hold IS NULL);

-- name: hold_marked
UPDATE jobs SET status = 'held', claim_token = claim_token + 1
WHERE id IN (SELECT id FROM jobs INDEXED BY jobs_unfinished
             WHERE type = :type AND status = 'pending' AND (status = 'pending' OR status = 'running')
               AND hold <> '');

-- name: admit_due
-- A trigger decides by the clock, which may have been set back since.
UPDATE jobs SET turn = turn WHERE id IN (
  SELECT id FROM jobs INDEXED BY jobs_due_later
  WHERE hold = 'due' AND status = 'held' AND scheduled_at <= min(:now, (SELECT now FROM job_clock)) + 0.001 ORDER BY scheduled_at LIMIT :limit);

-- name: next_due
-- When a held job is due or a key opens, 0 while there are moves; and when the next job expires.
SELECT CASE WHEN EXISTS (SELECT 1 FROM job_moves) THEN 0.0 ELSE nullif(min(
    coalesce((SELECT scheduled_at FROM jobs INDEXED BY jobs_due_later WHERE hold = 'due' AND status = 'held'
              ORDER BY scheduled_at LIMIT 1), 9e999),
    coalesce((SELECT min(opens_at) FROM job_keys WHERE opens_at IS NOT NULL), 9e999)), 9e999) END,
  (SELECT expires_at FROM jobs INDEXED BY jobs_expiring
   WHERE expires_at IS NOT NULL AND hold IS NOT NULL AND status IN ('pending', 'held') ORDER BY expires_at LIMIT 1);

-- name: open_keys
UPDATE job_keys SET opens_at = NULL WHERE (type, key) IN (
  SELECT type, key FROM job_keys WHERE opens_at <= min(:now, (SELECT now FROM job_clock)) ORDER BY opens_at LIMIT :limit);

-- name: keys_from_now
UPDATE job_keys SET next_at = :now, opens_at = NULL WHERE next_at > :now AND type = coalesce(:type, type);

-- name: gate_heads
-- The first jobs that are held at each type, of each `requires`, and as many at each key as it has room for, in their order.
SELECT id FROM (
  SELECT id, type, concurrency_key AS key, row_number() OVER (PARTITION BY type, requires ORDER BY turn, id) AS place, :limit AS most
  FROM jobs INDEXED BY jobs_at_gate WHERE hold = 'type' AND status = 'held'
  UNION ALL
  SELECT id, type, concurrency_key, row_number() OVER (PARTITION BY type, concurrency_key ORDER BY turn, id),
    coalesce((SELECT per_key FROM job_limits l WHERE l.type = jobs.type), 1) - (
      SELECT count(*) FROM jobs j INDEXED BY jobs_by_key
      WHERE j.type = jobs.type AND j.concurrency_key = jobs.concurrency_key AND j.hold IN ('', 'type')
        AND j.status IN ('held', 'pending', 'running'))
  FROM jobs INDEXED BY jobs_by_key WHERE concurrency_key IS NOT NULL AND hold = 'key' AND status = 'held')
WHERE place <= min(most, :limit) ORDER BY place;

-- name: try_gate
UPDATE jobs SET turn = turn WHERE id = :id AND status = 'held';

-- name: count_heads
SELECT count(*) FROM jobs WHERE id IN (SELECT value FROM json_each(:ids)) AND status = 'held' AND hold IN ('key', 'type');

-- name: pause_key
-- No other job with the concurrency_key of this one starts before :until.
INSERT INTO job_keys (type, key, next_at)
SELECT j.type, j.concurrency_key, :until + coalesce((l.key_burst - 1) * l.key_interval, 0)
FROM jobs j LEFT JOIN job_limits l ON l.type = j.type WHERE j.id = :id AND j.concurrency_key IS NOT NULL
ON CONFLICT (type, key) DO UPDATE SET next_at = max(next_at, excluded.next_at);

-- name: pause_type
UPDATE job_limits SET next_at = max(next_at, :until + (burst - 1) * coalesce(interval, 0))
WHERE type = (SELECT type FROM jobs WHERE id = :id AND concurrency_key IS NULL);

-- name: delay_admitted
UPDATE jobs SET scheduled_at = :until
WHERE id IN (SELECT o.id FROM jobs j JOIN job_limits l ON l.type = j.type JOIN jobs o INDEXED BY jobs_unfinished
               ON o.type = j.type AND o.status = 'pending' AND (o.status = 'pending' OR o.status = 'running')
             WHERE j.id = :id AND j.concurrency_key IS NULL AND o.hold = '' AND o.scheduled_at < :until);

-- name: hold_key
-- Those of a key that is closed take no place at the gate of the type.
UPDATE jobs SET status = 'held', hold = 'key', turn = scheduled_at - priority * 1e9, claim_token = claim_token + 1
WHERE id IN (SELECT o.id FROM jobs j JOIN jobs o INDEXED BY jobs_by_key
               ON o.type = j.type AND o.concurrency_key = j.concurrency_key AND o.hold IN ('', 'type')
             WHERE j.id = :id AND o.status IN ('held', 'pending'));

-- name: admitted_from_now
-- What has passed the gates is due, or will be by a rate.
UPDATE jobs SET scheduled_at = :now WHERE id IN (
  SELECT id FROM jobs INDEXED BY jobs_at_gate
  WHERE type IN (SELECT type FROM job_limits UNION SELECT type FROM job_keys) AND hold = '' AND status = 'pending'
    AND scheduled_at > :now AND type = coalesce(:type, type));

-- name: too_late
SELECT id, claim_token FROM jobs INDEXED BY jobs_expiring
WHERE expires_at <= :now AND hold IS NOT NULL AND status IN ('pending', 'held') LIMIT :limit;

-- name: cancel_expired
UPDATE jobs SET status = 'cancelled', last_error = 'expired', completed_at = :now, updated_at = :now,
  claim_token = claim_token + 1
WHERE id IN (SELECT value FROM json_each(:ids)) AND expires_at <= :now AND status IN ('pending', 'held');

-- name: existing
SELECT id FROM jobs WHERE id IN (SELECT value FROM json_each(:ids));

-- name: follow
-- A job that is held waits for these. What becomes of it if they have ended, triggers say.
INSERT INTO job_after (after_id, job_id, on_failed) SELECT value, :job, :on_failed FROM json_each(:ids);

-- name: pass_gates
-- What has happened to jobs makes room for others, or ends what they wait for: triggers see to that.
-- Starts first, which count for rates, then ends; what is new comes last, however many there are.
DELETE FROM job_moves WHERE place IN (
  SELECT place FROM job_moves WHERE stage = (SELECT min(stage) FROM job_moves) ORDER BY place LIMIT :limit);

-- name: drop_move
-- A rule of the application refuses what the first one leads to, such as the job after a batch.
UPDATE job_moves SET id = NULL, type = NULL, before = '', now = 'held', followed = NULL, batch = NULL
WHERE place = (SELECT place FROM job_moves ORDER BY stage, place LIMIT 1);

-- name: any_moves
SELECT 1 FROM job_moves LIMIT 1;

-- name: sweep_edges
-- Somebody has named jobs that there are not, or ended them where no trigger saw it.
INSERT INTO job_moves (id, before, now, followed)
SELECT DISTINCT a.after_id, '', coalesce(j.status, 'deleted'), 1
FROM job_after a LEFT JOIN jobs j ON j.id = a.after_id LEFT JOIN jobs f ON f.id = a.job_id
WHERE j.id IS NULL
   OR (j.status NOT IN ('held', 'pending', 'running') AND f.status = 'held' AND f.hold = 'after');

-- name: sweep_batches
-- Somebody has deleted the last jobs of these.
UPDATE job_batches SET closed = 1 WHERE closed = 1 AND ended_at IS NULL AND NOT EXISTS (
  SELECT 1 FROM jobs INDEXED BY jobs_in_batch
  WHERE batch = job_batches.id AND hold IN ('', 'after', 'due', 'key', 'type') AND status IN ('held', 'pending', 'running'));
