-- The statements of the PostgreSQL engine that are not those of sql/queries.sql, by name. Parameters are named; :now is
-- Unix seconds. Lists are JSON texts. Names and results are those of the SQLite engine, since the concerns use both.


-- Enqueueing ---------------------------------------------------------------------------------------

-- name: insert_job
-- A duplicate of an unfinished (type, unique_key) inserts nothing. The transaction's number and the job's time
-- tell what became of it if the answer to its commit is lost. A delay counts from this statement: a caller's
-- transaction may have begun long ago. Further columns are added.
INSERT INTO jobs (type, payload, priority, requires, scheduled_at, max_attempts, unique_key, created_at, updated_at
                  /*columns*/)
SELECT :type, :payload, :priority::integer, :requires,
       coalesce(:due::double precision, c.called + :due_after::double precision, c.now),
       :max_attempts::bigint, :unique_key::text, c.now, c.now /*values*/
FROM (SELECT coalesce(:now::double precision, extract(epoch FROM now())),
             coalesce(:now::double precision, extract(epoch FROM clock_timestamp()))) AS c (now, called)
ON CONFLICT DO NOTHING
RETURNING id, pg_current_xact_id()::text, created_at;

-- name: skip_ids
-- Pass over this many ids. Returns how many of them are taken: rows came with ids of their own, as from a restored copy.
SELECT count(*) FROM jobs
WHERE id = ANY (ARRAY(SELECT nextval((SELECT pg_get_serial_sequence('jobs', 'id'))::regclass)
                      FROM generate_series(1, :count)));

-- name: insert_many
-- Jobs without keys, in the order given: ids are taken after the sort.
INSERT INTO jobs (type, payload, priority, requires, scheduled_at, max_attempts, created_at, updated_at /*columns*/)
SELECT u.type, u.payload, u.priority, u.requires, coalesce(u.due, c.called + u.due_after, c.now), u.max_attempts,
       c.now, c.now /*values*/
FROM (SELECT coalesce(:now::double precision, extract(epoch FROM now())),
             coalesce(:now::double precision, extract(epoch FROM clock_timestamp()))) AS c (now, called),
     unnest(:type::text[], :payload::text[], :priority::integer[], :requires::text[], :due::double precision[],
            :due_after::double precision[], :max_attempts::bigint[] /*arrays*/)
     WITH ORDINALITY AS u (type, payload, priority, requires, due, due_after, max_attempts /*names*/, place)
ORDER BY u.place
RETURNING id, pg_current_xact_id()::text, created_at;

-- name: insert_alike
-- Many that differ in their payloads only. An element of the array is a payload, or a string with the payload's JSON
-- text.
INSERT INTO jobs (payload, type, priority, requires, scheduled_at, max_attempts, unique_key, created_at, updated_at
                  /*columns*/)
SELECT CASE json_typeof(e.value) WHEN 'string' THEN e.value #>> '{}' ELSE e.value::text END,
       :type, :priority::integer, :requires, coalesce(:due::double precision, c.called + :due_after::double precision, c.now),
       :max_attempts::bigint, :unique_key::text, c.now, c.now /*values*/
FROM (SELECT coalesce(:now::double precision, extract(epoch FROM now())),
             coalesce(:now::double precision, extract(epoch FROM clock_timestamp()))) AS c (now, called),
     json_array_elements(:payloads::json) WITH ORDINALITY AS e (value, place)
ORDER BY e.place
RETURNING id, pg_current_xact_id()::text, created_at;

-- name: find_unique
-- The existing job of a duplicate.
SELECT id, status FROM jobs
WHERE type = :type AND unique_key = :unique_key AND unique_key IS NOT NULL AND status IN ('pending', 'running', 'held');

-- name: find_recent
-- The same, or else the latest one that is done, as long as its key counts.
SELECT id, status FROM (
  (SELECT id, status, NULL::double precision AS until FROM jobs
   WHERE type = :type AND unique_key = :unique_key AND unique_key IS NOT NULL AND status IN ('pending', 'running', 'held'))
  UNION ALL
  (SELECT id, status, completed_at + unique_for FROM jobs
   WHERE type = :type AND unique_key = :unique_key AND unique_for IS NOT NULL AND status = 'done'
   ORDER BY completed_at DESC LIMIT 1)) AS twin
WHERE until IS NULL OR until > coalesce(:now::double precision, extract(epoch FROM clock_timestamp()))
LIMIT 1;

-- name: lock_key
-- Until the transaction ends: nobody else inserts a job of which its key counts after its end.
SELECT pg_advisory_xact_lock(hashtextextended(:type || ' ' || :key, 7308604897285366892));

-- name: replace_waiting
-- What a job that waits is to do. It keeps its place if it is due at once with the same priority; else, if it has gates, it
-- passes them again.
UPDATE jobs SET
  payload = :payload, priority = :priority::integer, updated_at = c.called, attempts = 0, claim_token = claim_token + 1,
  scheduled_at = CASE WHEN c.due > c.called THEN c.due
                      WHEN hold IN ('', 'key', 'type') AND priority = :priority::integer THEN scheduled_at
                      ELSE least(scheduled_at, c.called) END,
  status = CASE WHEN coalesce(hold, 'after') = 'after'
                  OR (hold <> 'due' AND priority = :priority::integer AND c.due <= c.called) THEN status ELSE 'held' END,
  hold = CASE WHEN coalesce(hold, 'after') = 'after'
                OR (hold <> 'due' AND priority = :priority::integer AND c.due <= c.called) THEN hold ELSE 'due' END
FROM (SELECT n.called, coalesce(:due::double precision, n.called + :due_after::double precision, n.called)
      FROM (SELECT coalesce(:now::double precision, extract(epoch FROM clock_timestamp()))) AS n (called)) AS c (called, due)
WHERE id = :id AND status IN ('pending', 'held')
RETURNING id;

-- name: find_once
-- The job of an earlier request, in whatever state. The bounds are those of the index.
SELECT id FROM jobs
WHERE type = :type AND unique_key = :unique_key AND unique_key >= 'run:' AND unique_key < 'run;'
ORDER BY id DESC LIMIT 1;

-- name: spooled
-- Of files, [name, type, unique key] each, those that the payload of their job names, and when it succeeded. The bounds
-- are those of the index.
SELECT f.value ->> 0, CASE j.status WHEN 'done' THEN j.completed_at END
FROM json_array_elements(:files::json) AS f (value)
     JOIN jobs j ON j.type = f.value ->> 1 AND j.unique_key = f.value ->> 2
WHERE j.unique_key >= 'run:' AND j.unique_key < 'run;' AND strpos(j.payload, f.value ->> 0) > 0;

-- name: one_request_at_a_time
-- Until the transaction ends: between a look at the table and the insert that depends on it, nobody else looks.
SELECT pg_advisory_xact_lock(7308604897285366888);

-- name: count_waiting
-- Due jobs of a type with at least this priority, paused or not, counted up to a limit. One seek for each
-- (requires, priority), so that delayed ones cost nothing.
WITH RECURSIVE
kinds (requires) AS (
  SELECT (SELECT j.requires FROM jobs j WHERE j.status = 'pending' AND j.type = :type ORDER BY j.requires LIMIT 1)
  UNION ALL
  SELECT (SELECT j.requires FROM jobs j WHERE j.status = 'pending' AND j.type = :type AND j.requires > k.requires
          ORDER BY j.requires LIMIT 1)
  FROM kinds k WHERE k.requires IS NOT NULL
),
groups (requires, priority) AS (
  SELECT k.requires, (SELECT j.priority FROM jobs j
                      WHERE j.status = 'pending' AND j.type = :type AND j.requires = k.requires
                        AND j.priority >= :priority
                      ORDER BY j.priority DESC LIMIT 1)
  FROM kinds k WHERE k.requires IS NOT NULL
  UNION ALL
  SELECT g.requires, (SELECT j.priority FROM jobs j
                      WHERE j.status = 'pending' AND j.type = :type AND j.requires = g.requires
                        AND j.priority < g.priority AND j.priority >= :priority
                      ORDER BY j.priority DESC LIMIT 1)
  FROM groups g WHERE g.priority IS NOT NULL
)
SELECT count(*) FROM (
  SELECT 1 FROM groups g CROSS JOIN LATERAL (
    SELECT 1 FROM jobs j
    WHERE j.status = 'pending' AND j.type = :type AND j.requires = g.requires AND j.priority = g.priority
      AND j.scheduled_at <= extract(epoch FROM clock_timestamp())
    LIMIT :limit) AS due
  WHERE g.priority IS NOT NULL
  LIMIT :limit) AS waiting;

-- name: transaction_status
-- committed, aborted, in progress, or NULL if it was too long ago; and whether a job that it inserted is there: after a
-- crash or a failover, another transaction may have its number.
SELECT pg_xact_status(:transaction::text::xid8), EXISTS (SELECT FROM jobs WHERE id = :id AND created_at = :created_at);

-- name: job
SELECT id, type, payload, status, priority, requires, scheduled_at, attempts, max_attempts, crashes,
       locked_by, locked_at, lock_expires_at, claim_token, cancel_requested_at, coalesce(unique_key, waiting_key) AS unique_key,
       progress,
       CASE WHEN octet_length(result) <= 4194304 THEN result ELSE left(result, 65536) END AS result,
       left(last_error, 65536) AS last_error, created_at, updated_at, started_at, completed_at, meta, progress_text,
       batch, concurrency_key, fair_key, hold
FROM jobs WHERE id = :id;

-- name: job_events
-- What programs that wait for these jobs are told: the result and the error once a job has ended, and which run it is.
SELECT id, status, progress, progress_text,
       CASE WHEN status IN ('pending', 'running', 'held') THEN NULL
            WHEN octet_length(result) <= 4194304 THEN result ELSE left(result, 65536) END,
       CASE WHEN status NOT IN ('pending', 'running', 'held') THEN left(last_error, 65536) END,
       attempts, claim_token
FROM jobs WHERE id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json)));

-- name: ends
SELECT id, status, completed_at FROM jobs
WHERE id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json)));


-- Claiming and settling ----------------------------------------------------------------------------

-- name: settle_and_claim
-- Behind a pooler the time-out is that of this statement: the session has none of ours.
SELECT id, claim_token, type, payload, attempts, max_attempts, crashes, scheduled_at, lost, requires, priority
FROM supervisor_settle_and_claim_v1(
  CASE WHEN :lock_timeout::text IS NULL OR set_config('lock_timeout', :lock_timeout::text, true) <> '' THEN :owner END,
  :registered::text, :keep, :now, :expires_at, :ids::bigint[], :tokens::bigint[], :results::text[],
  :progresses::double precision[], :starts::double precision[], :wanted::text[], :capabilities, :want::integer,
  :in_types::text[], :in_requires::text[], :in_priorities::integer[], :from_times::double precision[],
  :from_ids::bigint[], :most::bigint, :others::bigint[], :charged::bigint[], :paused::bigint[], :pauses::double precision[]);

-- name: blockers
-- Who keeps a session waiting: number, address and port of the client, a description. 0 is a prepared transaction.
SELECT b.pid, host(a.client_addr), a.client_port,
       CASE WHEN b.pid = 0 THEN 'a prepared transaction'
            ELSE format('session %s (%s, user %s, %s, transaction open for %s s)', b.pid,
                        coalesce(nullif(a.application_name, ''), 'unnamed'), coalesce(a.usename, 'unknown'),
                        coalesce(a.state, 'state unknown'),
                        coalesce(round(extract(epoch FROM clock_timestamp() - a.xact_start))::text, '?')) END
FROM unnest(pg_blocking_pids(:waiting::integer)) AS b (pid) LEFT JOIN pg_stat_activity a ON a.pid = b.pid;

-- name: delete_done
-- At once, unless somebody waits for the end of a job, or others depend on this one: then it is pruned later.
DELETE FROM jobs
WHERE id = :id AND status = 'done' AND hold IS NULL AND followed IS NULL AND batch IS NULL AND unique_for IS NULL
  AND (SELECT last_value FROM job_watchers) <= extract(epoch FROM clock_timestamp());

-- name: await_claims
-- Of a worker that has died: until none is on its way any more. Those that come later find it is not registered.
SELECT pg_advisory_xact_lock(hashtextextended(:owner, 7308604897285366887));

-- name: first_of_groups
-- Each (type, requires, priority) that has pending rows for these types and capabilities, from the least priority on,
-- with its first row; with positions, the first from there. Then a row without a type: the server's time, and the
-- entries walked.
SELECT type, requires, priority, first_at, first_id
FROM supervisor_groups_v1(:wanted::text[], :capabilities, :in_types::text[], :in_requires::text[],
                          :in_priorities::integer[], :from_times::double precision[], :from_ids::bigint[])
WHERE type IS NULL OR priority >= :least::bigint;

-- name: groups
-- Each (type, requires, priority) that has pending rows for these types and capabilities, from the least priority on,
-- with the time of its first row.
SELECT type, requires, priority, first_at
FROM supervisor_groups_v1(ARRAY(SELECT value FROM json_array_elements_text(:types::json)), :capabilities,
                          NULL, NULL, NULL, NULL, NULL)
WHERE priority >= :least::bigint;

-- name: claim_first
-- The first due job of a type, in the simple case: nothing of the type requires a capability, nothing has a higher
-- priority than the one asked for, and the type is not paused.
SELECT id FROM jobs
WHERE type = ?1 AND requires = '' AND priority = ?2 AND status = 'pending' AND scheduled_at <= ?3
  AND (expires_at BETWEEN 0 AND ?3) IS NOT TRUE
  AND NOT EXISTS (SELECT 1 FROM jobs WHERE type = ?1 AND requires > '' AND status = 'pending')
  AND NOT EXISTS (SELECT 1 FROM jobs WHERE type = ?1 AND requires = '' AND priority > ?2 AND status = 'pending')
  AND NOT EXISTS (SELECT 1 FROM job_controls WHERE kind = 'paused' AND name = ?1)
ORDER BY scheduled_at, id LIMIT 1;

-- name: peek_group
-- The first due rows of one group, to be claimed one by one.
SELECT scheduled_at, id FROM jobs
WHERE status = 'pending' AND type = :type AND requires = :requires AND priority = :priority
  AND scheduled_at <= :now AND (expires_at BETWEEN 0 AND :now) IS NOT TRUE
ORDER BY scheduled_at, id LIMIT :want;

-- name: claim_ids
-- Mark rows picked by peek_group, unless another worker has claimed them.
UPDATE jobs SET
  status = 'running', locked_by = :owner, locked_at = :now, lock_expires_at = :expires_at,
  claim_token = greatest(claim_token, (SELECT last_value FROM job_token_floor)) + 1, attempts = attempts + 1,
  started_at = :now, updated_at = :now
WHERE id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json)))
  AND status = 'pending' AND scheduled_at <= :now
RETURNING id, claim_token, type, payload, attempts, max_attempts, crashes, scheduled_at;

-- name: pending_token
-- What a row that is to be quarantined must still hold.
SELECT claim_token FROM jobs WHERE id = ?1 AND status = 'pending' FOR NO KEY UPDATE SKIP LOCKED;

-- name: show_progress
-- What a run has reported so far, as long as its claim holds.
UPDATE jobs SET progress = :fraction, progress_text = :text, updated_at = :now
WHERE id = :id AND status = 'running' AND locked_by = :owner AND claim_token = :token;

-- name: settle
-- Every outcome of a claim other than a plain success, by the same match. A job that is to be cancelled never runs
-- again, whatever this run ended with.
UPDATE jobs SET
  status = CASE WHEN :status::text IN ('pending', 'failed') AND cancel_requested_at IS NOT NULL THEN 'cancelled'
                ELSE :status::text END,
  result = :result::text,
  progress = :progress::double precision,
  progress_text = NULL,
  attempts = greatest(attempts + :attempts::bigint, 0),
  crashes = least(crashes, 9007199254740990) + :crashes::bigint,
  scheduled_at = CASE WHEN :delay::double precision > 0 THEN :now::double precision + :delay::double precision
                      ELSE scheduled_at END,
  started_at = coalesce(:started_at::double precision, started_at),
  completed_at = CASE WHEN :status::text = 'pending' AND cancel_requested_at IS NULL THEN NULL
                      ELSE :now::double precision END,
  updated_at = :now::double precision,
  last_error = CASE WHEN :status::text = 'done' THEN NULL ELSE coalesce(:error::text, last_error) END,
  locked_by = NULL, locked_at = NULL, lock_expires_at = NULL,
  claim_token = CASE WHEN :status::text <> 'pending' THEN claim_token
                     WHEN claim_token < 9007199254740991 THEN claim_token + 1 ELSE 1 END
WHERE id = :id AND status = 'running' AND locked_by = :owner AND claim_token = :token
RETURNING hold IS NOT NULL OR followed IS NOT NULL OR batch IS NOT NULL;

-- name: go_on
-- After such settlements, once for all of a transaction: what follows from them.
SELECT supervisor_settled_v1(:others::bigint[], :charged::bigint[], NULL, NULL, NULL, :paused::bigint[],
                             :pauses::double precision[]);

-- name: insert_error
INSERT INTO job_errors (job_id, attempt, kind, message, traceback, exit_code, signal, stderr,
                        peak_memory, worker, duration, created_at)
SELECT id, attempts - :attempts::bigint, :kind, :message, :traceback::text, :exit_code::bigint, :signal::text,
       :stderr::text, :peak_memory::bigint, :worker::text, :duration::double precision, :now::double precision
FROM jobs WHERE id = :id;

-- name: set_aside
-- Quarantine a row whose change the database refuses.
UPDATE jobs SET
  status = 'quarantined', last_error = :error, completed_at = :now, updated_at = :now,
  locked_by = NULL, locked_at = NULL, lock_expires_at = NULL,
  claim_token = CASE WHEN claim_token < 9007199254740991 THEN claim_token + 1 ELSE 1 END
WHERE id = :id AND claim_token IS NOT DISTINCT FROM :token::bigint
  AND CASE WHEN status IN ('pending', 'held') THEN :owner::text = ''
           ELSE status = 'running' AND coalesce(locked_by, '') = :owner::text
                AND (:expires_at::double precision IS NULL
                     OR CASE WHEN lock_expires_at < 1e300 THEN lock_expires_at ELSE 0 END
                        = :expires_at::double precision) END;

-- name: note_set_aside
INSERT INTO job_errors (job_id, attempt, kind, message, created_at)
SELECT id, attempts, 'row', :error::text, :now::double precision FROM jobs WHERE id = :id;

-- name: limit_batch
-- Its batch failed or killed its worker: it may run only in smaller ones.
INSERT INTO job_batch_limits (job_id, most) VALUES (:id, :most)
ON CONFLICT (job_id) DO UPDATE SET most = least(job_batch_limits.most, excluded.most);

-- name: batch_limits
SELECT job_id, most FROM job_batch_limits
WHERE job_id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:jobs::json)));

-- name: insert_run
-- Replaced, if there is one: a token names a run for ever, unless another program has lowered it.
-- The start of a dead worker's run is known from its duration.
INSERT INTO job_runs (job_id, token, attempt, outcome, worker, started_at, duration, cpu_time, peak_memory, log)
SELECT id, :token::bigint, attempts - :attempts::bigint, :outcome::text, :worker::text,
       coalesce(:started_at::double precision, :now::double precision - :duration::double precision, started_at,
                :now::double precision),
       :duration::double precision, :cpu_time::double precision, :peak_memory::bigint, :log::text
FROM jobs WHERE id = :id
ON CONFLICT (job_id, token) DO UPDATE SET
  attempt = excluded.attempt, outcome = excluded.outcome, worker = excluded.worker, started_at = excluded.started_at,
  duration = excluded.duration, cpu_time = excluded.cpu_time, peak_memory = excluded.peak_memory, log = excluded.log;

-- name: renew
-- Only locks that have used up a part of their time: quick jobs never cost a renewal. In the order of ids.
UPDATE jobs SET lock_expires_at = :expires_at::double precision
WHERE id = ANY (ARRAY(
  SELECT id FROM jobs
  WHERE status = 'running' AND locked_by = ANY (ARRAY(SELECT value FROM json_array_elements_text(:owners::json)))
    AND lock_expires_at < :renew_before
  ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)); -- a row that a stranger holds keeps no other lock from being renewed

-- name: to_renew
SELECT id FROM jobs
WHERE status = 'running' AND locked_by = ANY (ARRAY(SELECT value FROM json_array_elements_text(:owners::json)))
  AND lock_expires_at < :renew_before;

-- name: renew_one
UPDATE jobs SET lock_expires_at = :expires_at::double precision
WHERE id = :id AND status = 'running'
  AND locked_by = ANY (ARRAY(SELECT value FROM json_array_elements_text(:owners::json)))
  AND lock_expires_at < :renew_before;

-- name: needs_renewal
SELECT 1 FROM jobs
WHERE status = 'running' AND locked_by = ANY (ARRAY(SELECT value FROM json_array_elements_text(:owners::json)))
  AND lock_expires_at < :renew_before LIMIT 1;


-- Recovery and reclaim -----------------------------------------------------------------------------

-- name: held_by
-- What one worker holds, in the order in which it would run it.
SELECT id, claim_token, type, payload, attempts, max_attempts, crashes, scheduled_at
FROM jobs WHERE status = 'running' AND locked_by = :owner
ORDER BY priority DESC, scheduled_at, id;

-- name: expired
-- Claims whose lock has expired, or that have none: a row marked running by hand. What is no time, such as NaN or
-- infinity, is none. Without rows that a stranger holds:
-- nobody could have renewed those.
SELECT id, claim_token, coalesce(locked_by, ''), CASE WHEN lock_expires_at < 1e300 THEN lock_expires_at ELSE 0 END,
       CASE WHEN locked_at > -1e300 AND locked_at < 1e300 THEN locked_at ELSE 0 END
FROM jobs WHERE status = 'running' AND (lock_expires_at IS NULL OR lock_expires_at < :now OR lock_expires_at >= 1e300)
LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED;

-- name: claim_of
-- One expired claim, with what settling needs; it must be as it was when it was first read, and stay so.
SELECT id, claim_token, type, payload, attempts, max_attempts, crashes, scheduled_at, locked_by
FROM jobs
WHERE id = :id AND status = 'running' AND claim_token = :token
  AND CASE WHEN lock_expires_at < 1e300 THEN lock_expires_at ELSE 0 END = :expires_at
FOR NO KEY UPDATE;

-- name: adopt_unowned
-- A row that was marked running without a claim gets one, so that it can be settled like any other.
UPDATE jobs SET locked_by = 'foreign', lock_expires_at = :now,
  claim_token = CASE WHEN claim_token < 9007199254740991 THEN claim_token + 1 ELSE 1 END
WHERE id = :id AND status = 'running' AND claim_token = :token;

-- name: cancels
-- Running jobs of a supervisor's workers that are to be cancelled.
SELECT j.id, j.claim_token, j.locked_by FROM jobs j JOIN job_workers w ON w.incarnation = j.locked_by
WHERE j.status = 'running' AND j.cancel_requested_at IS NOT NULL AND w.supervisor = :supervisor
ORDER BY j.id LIMIT :limit;


-- The registry -------------------------------------------------------------------------------------

-- name: register_supervisor
INSERT INTO job_supervisors (id, pid, host, machine_id, boot_id, owner_lock, scoreboard, config, version,
                             started_at, node, lease_until)
VALUES (:id, :pid, :host, :machine_id, :boot_id, :owner_lock, :scoreboard, :config, :version, :started_at, :node,
        extract(epoch FROM clock_timestamp()) + 15)
ON CONFLICT (id) DO NOTHING;

-- name: renew_lease
-- What it posts stays as it is if nothing has changed. A transaction of its own, which wakes nobody.
UPDATE job_supervisors SET
  lease_until = extract(epoch FROM clock_timestamp()) + 15,
  posted = coalesce(:posted::text, posted)
WHERE id = :id
RETURNING extract(epoch FROM clock_timestamp())::double precision;

-- name: end_lease
-- Of a supervisor that is certainly dead.
UPDATE job_supervisors SET lease_until = 0 WHERE id = :id;

-- name: leases
-- What is no time, such as NaN or infinity, is a lease that has ended, here and below.
SELECT id, CASE WHEN lease_until > 0 AND lease_until < 1e11 THEN lease_until ELSE 0 END
           - extract(epoch FROM clock_timestamp())::double precision, coalesce(posted, '')
FROM job_supervisors;

-- name: lock_lease
-- Whether a lease holds, and will while this transaction lasts: renewing it waits for that.
SELECT lease_until > extract(epoch FROM clock_timestamp()) AND lease_until < 1e11 FROM job_supervisors WHERE id = :id FOR NO KEY UPDATE;

-- name: ended_leases
-- By the server's clock, which all hosts share. Usually none, however many hosts there are.
SELECT id FROM job_supervisors
WHERE (lease_until > extract(epoch FROM clock_timestamp()) AND lease_until < 1e11) IS NOT TRUE;

-- name: supervisors
SELECT id, pid, host, machine_id, boot_id, owner_lock, scoreboard, config, version, started_at,
       coalesce(node, '')
FROM job_supervisors ORDER BY started_at;

-- name: forget_supervisor
-- Its own row, or that of a dead one.
DELETE FROM job_supervisors
WHERE id = :id AND (:own OR lease_until <= extract(epoch FROM clock_timestamp()) OR lease_until >= 1e11)
RETURNING host, pid;

-- name: end_sessions
-- Of a process that has died: a claim of it may still be on its way, or wait for a row. Sessions of another user are
-- ended if this one may do that.
SELECT pg_terminate_backend(a.pid, 1000) FROM pg_stat_activity a JOIN pg_roles r ON r.oid = a.usesysid
WHERE a.application_name = :session AND a.datname = current_database() AND a.pid <> pg_backend_pid()
  AND (pg_has_role(a.usesysid, 'USAGE') OR (NOT r.rolsuper AND pg_has_role('pg_signal_backend', 'USAGE')));


-- Alerts -------------------------------------------------------------------------------------------

-- name: failed_jobs
-- The jobs of each type that failed in a range of failed attempts and have this status now, without those that alerts
-- have enqueued. The job and its error are those of the latest attempt.
SELECT type, count(DISTINCT job), (array_agg(job ORDER BY error DESC))[1], (array_agg(message ORDER BY error DESC))[1],
       max(error)
FROM (SELECT j.type, j.id AS job, left(e.message, 1000) AS message, e.id AS error
      FROM job_errors e JOIN jobs j ON j.id = e.job_id
      WHERE e.id > :after AND e.id <= :until AND j.status = :status AND (:type::text IS NULL OR j.type = :type::text)
        AND supervisor_json_v1(j.meta) -> 'alert' IS NULL) AS found
GROUP BY type;


-- Measuring ----------------------------------------------------------------------------------------

-- name: count_before
-- Due rows of one group that are claimed before a position, counted up to a limit.
SELECT count(*) FROM (
  SELECT 1 FROM jobs
  WHERE status = 'pending' AND type = :type AND requires = :requires AND priority = :priority
    AND (scheduled_at, id) < (:at::double precision, :id::bigint)
  LIMIT :limit) AS due;

-- name: count_from
-- The same for due rows from its first row on.
SELECT count(*) FROM (
  SELECT 1 FROM jobs
  WHERE status = 'pending' AND type = :type AND requires = :requires AND priority = :priority
    AND (scheduled_at, id) >= (:first_at, :first_id) AND scheduled_at <= :now
  LIMIT :limit) AS due;

-- name: backlog
-- Each (type, requires, priority) that has unfinished rows, paused or not, with the time of its first pending one.
-- One seek for each, by the index of pending rows, and a look at every running one.
WITH RECURSIVE
types (type) AS (
  SELECT (SELECT j.type FROM jobs j WHERE j.status = 'pending' ORDER BY j.type LIMIT 1)
  UNION ALL
  SELECT (SELECT j.type FROM jobs j WHERE j.status = 'pending' AND j.type > t.type ORDER BY j.type LIMIT 1)
  FROM types t WHERE t.type IS NOT NULL
),
kinds (type, requires) AS (
  SELECT t.type, (SELECT j.requires FROM jobs j WHERE j.status = 'pending' AND j.type = t.type
                  ORDER BY j.requires LIMIT 1)
  FROM types t WHERE t.type IS NOT NULL
  UNION ALL
  SELECT k.type, (SELECT j.requires FROM jobs j
                  WHERE j.status = 'pending' AND j.type = k.type AND j.requires > k.requires
                  ORDER BY j.requires LIMIT 1)
  FROM kinds k WHERE k.requires IS NOT NULL
),
groups (type, requires, priority) AS (
  SELECT k.type, k.requires, (SELECT j.priority FROM jobs j
                              WHERE j.status = 'pending' AND j.type = k.type AND j.requires = k.requires
                              ORDER BY j.priority DESC LIMIT 1)
  FROM kinds k WHERE k.requires IS NOT NULL
  UNION ALL
  SELECT g.type, g.requires, (SELECT j.priority FROM jobs j
                              WHERE j.status = 'pending' AND j.type = g.type AND j.requires = g.requires
                                AND j.priority < g.priority
                              ORDER BY j.priority DESC LIMIT 1)
  FROM groups g WHERE g.priority IS NOT NULL
)
SELECT g.type, g.requires, g.priority,
       (SELECT j.scheduled_at FROM jobs j
        WHERE j.status = 'pending' AND j.type = g.type AND j.requires = g.requires AND j.priority = g.priority
        ORDER BY j.scheduled_at, j.id LIMIT 1) AS first_at
FROM groups g WHERE g.priority IS NOT NULL
UNION ALL
SELECT j.type, j.requires, j.priority, NULL FROM jobs j WHERE j.status = 'running' GROUP BY 1, 2, 3;

-- name: clock
-- By which jobs are due, whatever the clock of the machine shows that asks.
SELECT extract(epoch FROM clock_timestamp())::double precision;

-- name: server_state
-- The server's clock, whether it is a standby or read-only, its sessions, which part of the queue of notifications is in
-- use, and whether we see what other users' sessions do. Without that right, of these not even the kind is known.
SELECT extract(epoch FROM clock_timestamp())::double precision,
       pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
       (SELECT count(*) FROM pg_stat_activity
        WHERE coalesce(backend_type = 'client backend', datid IS NOT NULL AND usesysid IS NOT NULL)),
       current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer,
       pg_notification_queue_usage(), pg_has_role('pg_read_all_stats', 'USAGE');

-- name: powerless
-- Of the users that workers have, those who may not end the sessions of another one. Of sessions that we may not see the
-- names, we know nothing.
WITH users AS (
  SELECT DISTINCT r.oid, r.rolname, r.rolsuper FROM pg_stat_activity a JOIN pg_roles r ON r.oid = a.usesysid
  WHERE a.datname = current_database() AND a.application_name LIKE 'job-supervisor %'
)
SELECT DISTINCT one.rolname::text FROM users one JOIN users other ON one.oid <> other.oid
WHERE NOT one.rolsuper AND NOT pg_has_role(one.oid, other.oid, 'USAGE')
  AND (other.rolsuper OR NOT pg_has_role(one.oid, 'pg_signal_backend'::name, 'USAGE'))
ORDER BY 1;

-- name: table_rows
-- Our tables: live and dead rows.
SELECT format('%I.%I', n.nspname, c.relname), coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0)
FROM pg_class ours JOIN pg_class c ON c.relnamespace = ours.relnamespace AND c.relkind = 'r'
JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
WHERE ours.oid = to_regclass('jobs')
  AND c.relname IN ('jobs', 'job_batch_limits', 'job_controls', 'job_errors', 'job_history', 'job_meta', 'job_runs',
                    'job_schedules', 'job_second_chances', 'job_supervisors', 'job_workers')
ORDER BY c.relname;

-- name: keepers
-- What keeps dead rows of this database from being removed: its kind, its name, its age in seconds if that is known, and
-- in transactions. Of each kind the one that keeps the most.
SELECT DISTINCT ON (kind) kind, who, seconds::double precision, xids FROM (
  SELECT 'transaction' AS kind,
         format('pid %s, %s, user %s, %s', pid, coalesce(nullif(application_name, ''), 'unnamed'), usename,
                coalesce(state, 'state unknown')) AS who,
         extract(epoch FROM clock_timestamp() - xact_start) AS seconds,
         greatest(age(backend_xmin), age(backend_xid))::bigint AS xids
  FROM pg_stat_activity
  WHERE pid <> pg_backend_pid() AND coalesce(backend_xmin, backend_xid) IS NOT NULL
    AND (datname = current_database() OR backend_type = 'walsender')
    AND NOT EXISTS (SELECT 1 FROM pg_stat_progress_vacuum p WHERE p.pid = pg_stat_activity.pid)
  UNION ALL
  SELECT 'prepared transaction', format('prepared transaction %s of user %s', gid, owner),
         extract(epoch FROM clock_timestamp() - prepared), age(transaction)::bigint
  FROM pg_prepared_xacts WHERE database = current_database()
  UNION ALL
  SELECT 'replication slot', format('replication slot %s, %s', slot_name, CASE WHEN active THEN 'in use' ELSE 'not in use' END),
         NULL, age(xmin)::bigint
  FROM pg_replication_slots WHERE xmin IS NOT NULL
) AS found
ORDER BY kind, xids DESC, seconds DESC NULLS LAST;

-- name: crowded
-- Whether a scan of the whole index costs less than a few seeks per group. The planner decides that here.
SELECT false;

-- name: whole_backlog
-- The backlog of each type, by one scan: how many are due, since when, and when the next will be.
SELECT type, count(*) FILTER (WHERE scheduled_at <= :now), min(scheduled_at) FILTER (WHERE scheduled_at <= :now),
       min(scheduled_at) FILTER (WHERE scheduled_at > :now)
FROM jobs WHERE status = 'pending' GROUP BY type;

-- name: awaiting_retry
-- Whether a pending job for these types and capabilities has been tried before, or has passed its gates, and is due again
-- soon: what a burst waits for. Also for one whose time has come and that has not passed its gates yet, and until the
-- maintainer has seen what has ended.
(SELECT 1 FROM jobs
 WHERE (status = 'pending' OR (status = 'held' AND hold = 'due')) AND scheduled_at <= :latest
   AND type = ANY (ARRAY(SELECT value FROM json_array_elements_text(:types::json)))
   AND priority >= :least::bigint
   AND (attempts > 0 OR crashes > 0 OR hold = '' OR (status = 'held' AND scheduled_at <= :now))
   AND (requires = '' OR supervisor_covers_v1(:capabilities, requires)) LIMIT 1)
UNION ALL
(SELECT 1 FROM job_keys
 WHERE opens_at <= :latest AND type = ANY (ARRAY(SELECT value FROM json_array_elements_text(:types::json))) LIMIT 1)
UNION ALL
(SELECT 1 FROM job_ends LIMIT 1);

-- name: left_behind
-- Jobs that wait for more than their own time, when nothing else is left to do.
SELECT id FROM jobs
WHERE hold IN ('', 'after', 'key', 'type') AND status IN ('held', 'pending')
  AND type = ANY (ARRAY(SELECT value FROM json_array_elements_text(:types::json)))
LIMIT :limit;

-- name: written_later
-- Pending rows that will be due and that were written after a time to come: the clock was set back since.
SELECT id FROM jobs
WHERE (status = 'pending' OR (status = 'held' AND hold = 'due')) AND scheduled_at > :now
  AND updated_at > :written_after AND updated_at < 1e11
  AND (CASE status WHEN 'held' THEN attempts ELSE claim_token END > 0 OR scheduled_at <= updated_at)
LIMIT :limit;

-- name: bring_forward
UPDATE jobs SET
  scheduled_at = :now::double precision + greatest(scheduled_at - updated_at, 0), updated_at = :now
WHERE id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json)))
  AND status IN ('pending', 'held') AND scheduled_at > :now AND updated_at > :written_after AND updated_at < 1e11;

-- name: has_claims
-- Whether any worker of a supervisor holds a claim.
SELECT 1 FROM jobs j JOIN job_workers w ON w.incarnation = j.locked_by
WHERE j.status = 'running' AND w.supervisor = :supervisor LIMIT 1;

-- name: count_pending
SELECT count(*) FROM jobs
WHERE status = 'pending' AND type = ANY (ARRAY(SELECT value FROM json_array_elements_text(:types::json)));

-- name: unsuccessful_since
SELECT count(*) FROM jobs
WHERE status IN ('failed', 'quarantined') AND completed_at >= :since
  AND type = ANY (ARRAY(SELECT value FROM json_array_elements_text(:types::json)));

-- name: unhandled
-- Types with pending jobs that no pool of ours handles. One seek for each type.
WITH RECURSIVE types (type) AS (
  SELECT (SELECT j.type FROM jobs j WHERE j.status = 'pending' ORDER BY j.type LIMIT 1)
  UNION ALL
  SELECT (SELECT j.type FROM jobs j WHERE j.status = 'pending' AND j.type > t.type ORDER BY j.type LIMIT 1)
  FROM types t WHERE t.type IS NOT NULL
)
SELECT type FROM types
WHERE type IS NOT NULL AND type <> ALL (ARRAY(SELECT value FROM json_array_elements_text(:types::json)))
LIMIT 20;

-- name: running_by_type
SELECT type, count(*) FROM jobs WHERE status = 'running' GROUP BY type;

-- name: controls
SELECT kind, name, value FROM job_controls
UNION ALL
SELECT 'drained', substr(key, 9), 1 FROM job_meta WHERE substr(key, 1, 8) = 'drained:'
UNION ALL
SELECT 'host', substr(key, 6), CASE WHEN value ~ '^[0-9]{1,9}$' THEN value::bigint ELSE 0 END
FROM job_meta WHERE substr(key, 1, 5) = 'host:';


-- History ------------------------------------------------------------------------------------------

-- name: history
SELECT minute, type, done, failed, waiting, running, run_seconds, wait_seconds
FROM job_history WHERE minute >= :since AND minute < :until ORDER BY minute, type LIMIT nullif(:limit::bigint, -1);

-- name: history_in_steps
SELECT :since::double precision + floor((minute - :since::double precision) / :step::double precision)
         * :step::double precision, type,
  least(sum(done), 9000000000000000)::bigint, least(sum(failed), 9000000000000000)::bigint,
  max(waiting), max(running), sum(run_seconds), sum(wait_seconds)
FROM job_history WHERE minute >= :since::double precision AND minute < :until
GROUP BY 1, 2 ORDER BY 1, 2 LIMIT nullif(:limit::bigint, -1);

-- name: first_minute
-- A row that begins with an hour is that hour's, or its first minute's, to which the others are added.
SELECT minute FROM job_history
WHERE minute < :before AND minute <> floor(minute / 3600.0) * 3600.0 ORDER BY minute LIMIT 1;

-- name: lock_minutes
-- Of two that roll up the same hour, the other one finds nothing any more.
SELECT FROM job_history WHERE minute > :hour::double precision AND minute < :hour::double precision + 3600
ORDER BY minute, type FOR UPDATE;

-- name: add_hour
-- The minutes of an hour are added to its first one, which then stands for the hour. The busiest types keep their names.
INSERT INTO job_history AS h (minute, type, done, failed, waiting, running, run_seconds, wait_seconds)
SELECT :hour::double precision,
       CASE WHEN type IN (SELECT m.type FROM job_history m
                          WHERE m.minute > :hour::double precision AND m.minute < :hour::double precision + 3600
                            AND m.type <> ''
                          GROUP BY m.type ORDER BY sum(m.done) + sum(m.failed) DESC, max(m.waiting) DESC, m.type
                          LIMIT :types) THEN type ELSE '' END AS named,
  least(sum(done), 9000000000000000)::bigint, least(sum(failed), 9000000000000000)::bigint,
  max(waiting), max(running), sum(run_seconds), sum(wait_seconds)
FROM job_history WHERE minute > :hour::double precision AND minute < :hour::double precision + 3600 GROUP BY named
ON CONFLICT (minute, type) DO UPDATE SET
  done = least(h.done + excluded.done, 9000000000000000), failed = least(h.failed + excluded.failed, 9000000000000000),
  waiting = greatest(h.waiting, excluded.waiting), running = greatest(h.running, excluded.running),
  run_seconds = h.run_seconds + excluded.run_seconds, wait_seconds = h.wait_seconds + excluded.wait_seconds;

-- name: forget_minutes
DELETE FROM job_history WHERE minute > :hour::double precision AND minute < :hour::double precision + 3600;


-- Operating ----------------------------------------------------------------------------------------

-- name: match_among
-- Which of these jobs match a filter. A condition that is empty or NULL matches all.
SELECT id FROM jobs
WHERE id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json)))
  AND (:statuses::text = '[]' OR status = ANY (ARRAY(SELECT value FROM json_array_elements_text(:statuses::json))))
  AND (:types::text = '[]' OR type = ANY (ARRAY(SELECT value FROM json_array_elements_text(:types::json))))
  AND (:error::text = '' OR strpos(lower(last_error), lower(:error::text)) > 0)
  AND (:text::text = '' OR strpos(lower(left(payload, 65536)), lower(:text::text)) > 0
       OR strpos(lower(left(result, 65536)), lower(:text::text)) > 0
       OR strpos(lower(last_error), lower(:text::text)) > 0)
  AND (:unique_key::text IS NULL OR coalesce(unique_key, waiting_key) = :unique_key::text)
  AND (:requires::text IS NULL OR requires = :requires::text
       OR (:requires::text <> '' AND strpos(' ' || requires || ' ', ' ' || :requires::text || ' ') > 0))
  AND (:batch::bigint IS NULL OR batch = :batch::bigint)
  AND (:priority::integer IS NULL OR priority = :priority::integer)
  AND (:finished_after::double precision IS NULL OR completed_at >= :finished_after::double precision)
  AND (:finished_before::double precision IS NULL OR completed_at < :finished_before::double precision)
  AND (:tags::text = '[]' OR coalesce(supervisor_json_v1(meta) -> 'tags' @> supervisor_json_v1(:tags), false))
ORDER BY id DESC;

-- name: match_stretch
-- The same for a range of ids.
SELECT id FROM jobs
WHERE id >= :floor AND id <= :latest
  AND (:statuses::text = '[]' OR status = ANY (ARRAY(SELECT value FROM json_array_elements_text(:statuses::json))))
  AND (:types::text = '[]' OR type = ANY (ARRAY(SELECT value FROM json_array_elements_text(:types::json))))
  AND (:error::text = '' OR strpos(lower(last_error), lower(:error::text)) > 0)
  AND (:text::text = '' OR strpos(lower(left(payload, 65536)), lower(:text::text)) > 0
       OR strpos(lower(left(result, 65536)), lower(:text::text)) > 0
       OR strpos(lower(last_error), lower(:text::text)) > 0)
  AND (:unique_key::text IS NULL OR coalesce(unique_key, waiting_key) = :unique_key::text)
  AND (:requires::text IS NULL OR requires = :requires::text
       OR (:requires::text <> '' AND strpos(' ' || requires || ' ', ' ' || :requires::text || ' ') > 0))
  AND (:batch::bigint IS NULL OR batch = :batch::bigint)
  AND (:priority::integer IS NULL OR priority = :priority::integer)
  AND (:finished_after::double precision IS NULL OR completed_at >= :finished_after::double precision)
  AND (:finished_before::double precision IS NULL OR completed_at < :finished_before::double precision)
  AND (:tags::text = '[]' OR coalesce(supervisor_json_v1(meta) -> 'tags' @> supervisor_json_v1(:tags), false))
ORDER BY id DESC;

-- name: arrange
-- These jobs in another order.
SELECT id FROM jobs WHERE id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json)))
ORDER BY CASE :by::text WHEN 'type' THEN type WHEN 'status' THEN status END,
         CASE :by::text WHEN 'priority' THEN priority WHEN 'attempts' THEN attempts WHEN 'due' THEN scheduled_at
                        WHEN 'changed' THEN coalesce(completed_at, started_at, created_at) END, id;

-- name: unsuccessful_types
-- Types of failed or of quarantined jobs, by one seek per type.
WITH RECURSIVE types (type) AS (
  SELECT (SELECT type FROM jobs WHERE status = :status AND status IN ('failed', 'quarantined') ORDER BY type LIMIT 1)
  UNION ALL
  SELECT (SELECT j.type FROM jobs j
          WHERE j.status = :status AND j.status IN ('failed', 'quarantined') AND j.type > t.type
          ORDER BY j.type LIMIT 1)
  FROM types t WHERE t.type IS NOT NULL
)
SELECT type FROM types WHERE type IS NOT NULL;

-- name: unsuccessful_ids
-- Those of one type, the latest first, in the order of the index.
SELECT id FROM jobs
WHERE status = :status AND status IN ('failed', 'quarantined') AND type = :type AND id <= :latest
ORDER BY id DESC LIMIT :limit;

-- name: unfinished_ids
(SELECT id FROM jobs WHERE status = 'pending' LIMIT :limit)
UNION ALL
(SELECT id FROM jobs WHERE status = 'running' LIMIT :limit)
UNION ALL
(SELECT id FROM jobs WHERE status = 'held' LIMIT :limit)
LIMIT :limit;

-- name: running_ids
SELECT id FROM jobs WHERE status = 'running' LIMIT :limit;

-- name: jobs_among
-- For lists: only the beginnings of long texts, so that a page of large rows does not take hundreds of megabytes.
SELECT id, type, CASE WHEN octet_length(payload) <= 4096 THEN payload ELSE left(payload, 4096) END,
       status, priority, requires, scheduled_at, attempts, max_attempts, crashes,
       locked_by, locked_at, lock_expires_at, claim_token, cancel_requested_at, coalesce(unique_key, waiting_key) AS unique_key,
       progress,
       CASE WHEN octet_length(result) <= 4096 THEN result ELSE left(result, 4096) END,
       left(last_error, 4096), created_at, updated_at, started_at, completed_at, meta, progress_text,
       batch, concurrency_key, fair_key, hold
FROM jobs WHERE id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json))) ORDER BY id DESC;

-- name: durations
-- Of the latest run of each of these jobs, if it was recorded.
SELECT j.id, r.duration FROM jobs j JOIN job_runs r ON r.job_id = j.id AND r.token = j.claim_token
WHERE j.id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json))) AND r.duration IS NOT NULL;

-- name: recent_errors
-- The latest failed attempts, to be grouped, and whether their jobs are failed now.
SELECT j.type, e.kind, left(e.message, 1000), e.created_at, e.job_id, j.status IN ('failed', 'quarantined')
FROM job_errors e JOIN jobs j ON j.id = e.job_id
WHERE e.created_at >= :since ORDER BY e.created_at DESC LIMIT :rows;

-- name: job_errors
SELECT job_id, attempt, kind, left(message, 65536), left(traceback, 131072), exit_code, signal, stderr, peak_memory,
       worker, duration, created_at
FROM job_errors WHERE job_id = :id ORDER BY id;

-- name: latest_runs
SELECT r.number, r.job_id, r.token, r.attempt, r.outcome, r.worker, r.started_at, r.duration, r.cpu_time,
       r.peak_memory, r.log, j.type, j.last_error
FROM job_runs r JOIN jobs j ON j.id = r.job_id
WHERE r.number > :after ORDER BY r.number DESC LIMIT :limit;

-- name: latest_run
SELECT max(number) FROM job_runs;

-- name: lock_jobs
-- What is seen of them afterwards stays so until the transaction ends. In the order of ids, as everywhere: nobody waits
-- for somebody who waits.
SELECT id FROM jobs
WHERE id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json)))
ORDER BY id FOR NO KEY UPDATE;

-- name: retry
-- Back to pending with their counters reset, but those whose unique key is taken by now. If two of them have the same
-- one, all are refused.
UPDATE jobs SET
  status = 'pending', attempts = 0, crashes = 0, scheduled_at = :now,
  claim_token = CASE WHEN claim_token < 9007199254740991 THEN claim_token + 1 ELSE 1 END,
  completed_at = NULL, cancel_requested_at = NULL, progress = NULL, progress_text = NULL, result = NULL,
  updated_at = :now
WHERE id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json)))
  AND status IN ('failed', 'quarantined', 'cancelled')
  AND NOT EXISTS (SELECT 1 FROM jobs twin
                  WHERE twin.type = jobs.type AND twin.unique_key = jobs.unique_key AND twin.unique_key IS NOT NULL
                    AND twin.status IN ('pending', 'running', 'held'))
RETURNING id;

-- name: rerun
-- A retry of one job by hand: with another payload, or although it has succeeded.
UPDATE jobs SET
  status = 'pending', attempts = 0, crashes = 0, scheduled_at = :now, payload = coalesce(:payload::text, payload),
  claim_token = CASE WHEN claim_token < 9007199254740991 THEN claim_token + 1 ELSE 1 END,
  completed_at = NULL, cancel_requested_at = NULL, progress = NULL, progress_text = NULL, result = NULL,
  updated_at = :now
WHERE id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json)))
  AND (status IN ('failed', 'quarantined', 'cancelled') OR (:done::boolean AND status = 'done'))
  AND NOT EXISTS (SELECT 1 FROM jobs twin
                  WHERE twin.type = jobs.type AND twin.unique_key = jobs.unique_key AND twin.unique_key IS NOT NULL
                    AND twin.status IN ('pending', 'running', 'held'))
RETURNING id;

-- name: duplicates
-- Those of some finished jobs whose unique key an unfinished one has, and its id.
SELECT j.id, twin.id
FROM jobs j JOIN jobs twin ON twin.type = j.type AND twin.unique_key = j.unique_key
WHERE j.id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json)))
  AND j.status NOT IN ('pending', 'running', 'held')
  AND twin.unique_key IS NOT NULL AND twin.status IN ('pending', 'running', 'held');

-- name: cancel_pending
UPDATE jobs SET status = 'cancelled', completed_at = :now, updated_at = :now, cancel_requested_at = :now,
  claim_token = CASE WHEN claim_token < 9007199254740991 THEN claim_token + 1 ELSE 1 END
WHERE id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json))) AND status IN ('pending', 'held')
RETURNING id;

-- name: request_cancel
-- A running job keeps its status until it has really stopped.
UPDATE jobs SET cancel_requested_at = coalesce(cancel_requested_at, :now)
WHERE id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json))) AND status = 'running'
RETURNING id;

-- name: delete_finished
DELETE FROM jobs
WHERE id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json)))
  AND status NOT IN ('pending', 'running', 'held')
RETURNING id;

-- name: prune
-- Those that somebody else has locked go next time.
DELETE FROM jobs WHERE id = ANY (ARRAY(
  SELECT id FROM jobs
  WHERE id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json)))
    AND ((status IN ('done', 'cancelled') AND completed_at < :done_before)
      OR (status IN ('failed', 'quarantined') AND completed_at < :failed_before))
    AND (unique_for IS NULL OR completed_at + unique_for < extract(epoch FROM clock_timestamp()))
  FOR UPDATE SKIP LOCKED));

-- name: prune_errors
-- Rows of a job that is gone go with it, always: this engine has no way to leave them.
DELETE FROM job_errors WHERE false AND created_at < :before;

-- name: prune_runs
DELETE FROM job_runs WHERE false AND job_id > :after;

-- name: prune_batch_limits
DELETE FROM job_batch_limits WHERE false AND job_id > :after;

-- name: prune_second_chances
DELETE FROM job_second_chances WHERE false AND job_id > :after;

-- name: failed_after
-- Failed jobs in the order of their failures, and whether each is to be redriven.
SELECT j.completed_at, j.id,
       j.type = ANY (ARRAY(SELECT value FROM json_array_elements_text(:types::json))) AND j.priority >= :least::bigint
       AND (j.requires = '' OR supervisor_covers_v1(:capabilities, j.requires))
       AND coalesce((SELECT c.used FROM job_second_chances c WHERE c.job_id = j.id), 0) < :times
FROM jobs j
WHERE j.status = 'failed' AND (j.completed_at, j.id) > (:failed_at::double precision, :id::bigint)
  AND j.completed_at <= :until
ORDER BY j.completed_at, j.id LIMIT :limit;

-- name: note_second_chance
INSERT INTO job_second_chances (job_id, used) SELECT value::bigint, 1 FROM json_array_elements_text(:ids::json)
ON CONFLICT (job_id) DO UPDATE SET used = job_second_chances.used + 1;

-- name: forget_second_chances
-- Jobs that are retried by hand start again.
DELETE FROM job_second_chances WHERE job_id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json)));

-- name: count_open
-- Jobs that are unfinished or failed, by the indexes that hold no others.
SELECT type, status, count(*) FROM jobs WHERE status = 'pending' GROUP BY type, status
UNION ALL
SELECT type, status, count(*) FROM jobs WHERE status = 'running' GROUP BY type, status
UNION ALL
SELECT type, status, count(*) FROM jobs WHERE status = 'held' GROUP BY type, status
UNION ALL
SELECT type, status, count(*) FROM jobs WHERE status IN ('failed', 'quarantined') GROUP BY status, type;

-- name: count_held
SELECT type, hold, count(*) FROM jobs WHERE status = 'held' AND hold IN ('after', 'due', 'key', 'type')
GROUP BY type, hold;

-- name: count_closed
-- The others, which are in no index. Of a table with more than :most rows only so many are read, in pages from all over
-- it, and the counts are estimates.
SELECT type, status, round(count(*) * 100 / p.part)::bigint
FROM (SELECT least(100, 100 * :most::double precision / greatest(reltuples, 1)) AS part
      FROM pg_class WHERE oid = 'jobs'::regclass) AS p,
     jobs TABLESAMPLE SYSTEM ((SELECT least(100, 100 * :most::double precision / greatest(reltuples, 1))
                               FROM pg_class WHERE oid = 'jobs'::regclass)) REPEATABLE (0)
WHERE status = 'done' OR status = 'cancelled' GROUP BY type, status, p.part;

-- name: held_by_supervisor
-- Running jobs by the supervisor of their worker; without those of foreign programs.
SELECT coalesce(w.supervisor, ''), count(*)
FROM jobs j LEFT JOIN job_workers w ON w.incarnation = j.locked_by
WHERE j.status = 'running' AND coalesce(j.locked_by, '') <> 'foreign'
GROUP BY 1;

-- name: count_expired
SELECT count(*) FROM (
  SELECT 1 FROM jobs WHERE status = 'running' AND (lock_expires_at IS NULL OR lock_expires_at < :past)
  LIMIT :limit) AS found;


-- name: slowest_types
-- Mean seconds per job of each type among the latest done ones: of those before the last one that runs, since above it
-- there may be millions that wait.
SELECT type, count(*), avg(completed_at - started_at), max(completed_at - started_at)
FROM (SELECT type, started_at, completed_at
      FROM (SELECT id, type, status, started_at, completed_at FROM jobs
            WHERE id <= coalesce((SELECT max(id) FROM jobs WHERE status = 'running'), 4611686018427387904)
            ORDER BY id DESC LIMIT 20000) AS looked_at
      WHERE status = 'done' AND started_at IS NOT NULL ORDER BY id DESC LIMIT 5000) AS latest
GROUP BY type ORDER BY 3 DESC LIMIT 200;


-- Waking -------------------------------------------------------------------------------------------

-- name: version
-- Changes whenever a transaction that has written something ends, in any database of the server.
SELECT pg_current_snapshot()::text;

-- name: look
-- The version once more, whether the server is read-only, the transactions that have written the rows of supervisors, our
-- own, and how many seconds of notifications are left: a lease that is renewed is no news. With :seconds somebody sleeps:
-- inserts are to notify for so long, unless others have seen to it for at least :least seconds.
SELECT pg_current_snapshot()::text, current_setting('transaction_read_only') = 'on',
       ARRAY(SELECT s.xmin::text::bigint FROM job_supervisors s),
       CASE WHEN :seconds::bigint > 0 AND w.rest < :least::bigint
            THEN setval('job_sleepers', w.now::bigint + :seconds::bigint) - w.now ELSE w.rest END,
       pg_current_xact_id_if_assigned()::text::bigint & 4294967295
FROM (SELECT t.now, last_value - t.now AS rest
      FROM job_sleepers, (SELECT extract(epoch FROM clock_timestamp())::double precision AS now OFFSET 0) AS t OFFSET 0) AS w;

-- name: watch
-- Somebody waits for the end of a job: whatever is settled is to notify, and to be kept. Whoever may not say so can
-- enqueue all the same.
SELECT setval('job_watchers', extract(epoch FROM clock_timestamp())::bigint + :seconds::bigint)
WHERE has_sequence_privilege('job_watchers', 'UPDATE');

-- name: announce
-- Changes of rows that are there already, to all who sleep or wait. Insertions and plain successes announce themselves.
SELECT pg_notify('job_supervisor', '')
WHERE pg_current_xact_id_if_assigned() IS NOT NULL
  AND greatest((SELECT last_value FROM job_sleepers), (SELECT last_value FROM job_watchers))
      > extract(epoch FROM clock_timestamp());

-- name: listen
LISTEN job_supervisor;


-- The database itself ------------------------------------------------------------------------------

-- name: open_session
-- The number of the session, its search path and isolation. Settings are made only in the session that has welcomed us: behind a
-- pooler, the one that answers serves others too.
SELECT pg_backend_pid(), current_setting('search_path'), current_setting('default_transaction_isolation'),
       (SELECT count(set_config(s.key, s.value, false)) FROM json_each_text(:settings::json) AS s
        WHERE pg_backend_pid() = :backend::bigint);

-- name: name_session
SELECT set_config('application_name', :session, false);

-- name: read_only
SELECT current_setting('transaction_read_only') = 'on';

-- name: tables
-- `jobs`, as the search path finds it, and what has such a name in the same schema.
SELECT m.relname::text FROM pg_class j JOIN pg_class m ON m.relnamespace = j.relnamespace
WHERE j.oid = coalesce(to_regclass('jobs'), to_regclass('job_meta')) AND m.relname >= 'job' AND m.relname < 'jobt'
  AND m.relkind <> 'i' AND pg_table_is_visible(m.oid);

-- name: search_path
-- Where new tables would be, and where they are looked for. NULL: no such schema exists, or may be used.
SELECT current_schema(), current_setting('search_path');

-- name: take_time
-- An index on a large table takes its time; how long its locks are waited for is bounded as ever. The second setting is
-- unknown to older servers. Tables that are to be updated are in the usual store, whatever the default is.
SELECT set_config(name, CASE name WHEN 'default_table_access_method' THEN 'heap' ELSE '0' END, true) FROM pg_settings
WHERE name IN ('statement_timeout', 'transaction_timeout', 'default_table_access_method');
-- name: migrating_here
-- The beginning of a script for somebody else, whose search path may be another one.
SELECT format('BEGIN; SET LOCAL search_path = %s;', string_agg(quote_ident(name), ', ' ORDER BY place))
FROM unnest(current_schemas(false)) WITH ORDINALITY AS t (name, place);

-- name: migrating
-- One program at a time, until its transaction ends.
SELECT pg_advisory_xact_lock(7308604897285366885);


-- Gates --------------------------------------------------------------------------------------------

-- name: lock_gate
-- Whoever admits jobs of the type meanwhile does so before, or knows the new limit.
SELECT pg_advisory_xact_lock(hashtextextended(:type, 7308604897285366890));

-- name: unapplied
-- Also types whose limit was removed, if somebody had locked one of their jobs then.
SELECT type FROM job_limits WHERE applied = 0
UNION SELECT j.type FROM jobs j
WHERE j.hold = 'type' AND j.status = 'held' AND NOT EXISTS (SELECT 1 FROM job_limits l WHERE l.type = j.type);

-- name: limit_applied
UPDATE job_limits SET applied = 1
WHERE type = :type
  AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.type = :type AND j.status = 'pending' AND j.hold IS NULL)
  AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.type = :type AND j.status = 'running' AND j.hold IS NULL)
  AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.type = :type AND j.hold = 'type' AND j.status = 'held'
                    AND supervisor_wide_v1(ARRAY[:type]) = '{}');

-- name: forget_keys
-- What is known of keys that nothing depends on any more.
DELETE FROM job_keys WHERE (type, key) IN (
  SELECT k.type, k.key FROM job_keys k WHERE k.next_at < :now AND NOT EXISTS (
    SELECT 1 FROM job_limits l WHERE l.type = k.type AND l.fair = 1 AND k.turn > l.turn)
  FOR UPDATE OF k SKIP LOCKED);

-- name: mark_pending
-- Pending jobs are to pass the gates, once more if they have been admitted, and those that are held at a gate that there is
-- no more. Those that run have passed.
UPDATE jobs SET hold = CASE status WHEN 'running' THEN '' ELSE 'due' END
WHERE id = ANY (ARRAY(SELECT id FROM jobs WHERE type = :type AND status = 'pending' AND coalesce(hold, '') = ''
                      ORDER BY id LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED))
   OR id = ANY (ARRAY(SELECT id FROM jobs WHERE status = 'running' AND type = :type AND hold IS NULL
                      ORDER BY id FOR NO KEY UPDATE SKIP LOCKED))
   OR id = ANY (ARRAY(SELECT id FROM jobs WHERE type = :type AND hold = 'type' AND status = 'held'
                        AND supervisor_wide_v1(ARRAY[:type]) = '{}'
                      LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED));

-- name: hold_marked
UPDATE jobs SET status = 'held', claim_token = claim_token + 1 WHERE type = :type AND status = 'pending' AND hold = 'due';

-- name: admit_due
-- One row for each that it has seen.
SELECT n FROM supervisor_admit_due_v1(:limit) AS seen, generate_series(1, seen) AS n WHERE :now::double precision > 0;

-- name: next_due
SELECT least(
    (SELECT 0::double precision FROM job_ends LIMIT 1),
    (SELECT opens_at FROM job_keys WHERE opens_at < 1e11 ORDER BY opens_at LIMIT 1),
    (SELECT scheduled_at FROM jobs WHERE status = 'held' AND hold = 'due' ORDER BY scheduled_at LIMIT 1)),
  (SELECT expires_at FROM jobs
   WHERE expires_at >= 0 AND expires_at < 1e11 AND expires_at IS NOT NULL AND status IN ('pending', 'held')
   ORDER BY expires_at LIMIT 1);

-- name: gate_heads
-- The first job of each type, and of each key that seems to have room, that is held there.
WITH RECURSIVE
types (type) AS (
  SELECT (SELECT type FROM jobs WHERE hold = 'type' AND status = 'held' ORDER BY type LIMIT 1)
  UNION ALL
  SELECT (SELECT j.type FROM jobs j WHERE j.type > t.type AND j.hold = 'type' AND j.status = 'held' ORDER BY j.type LIMIT 1)
  FROM types t WHERE t.type IS NOT NULL
),
keys (type, key) AS (
  (SELECT type, concurrency_key FROM jobs
   WHERE concurrency_key IS NOT NULL AND status IN ('held', 'pending', 'running') AND hold = 'key'
   ORDER BY type, concurrency_key LIMIT 1)
  UNION ALL
  SELECT n.type, n.concurrency_key FROM keys k, LATERAL (
    SELECT j.type, j.concurrency_key FROM jobs j
    WHERE j.concurrency_key IS NOT NULL AND j.status IN ('held', 'pending', 'running')
      AND j.hold = 'key' AND (j.type, j.concurrency_key) > (k.type, k.key)
    ORDER BY j.type, j.concurrency_key LIMIT 1) AS n
)
SELECT h.id FROM types t, LATERAL (
  SELECT j.id FROM jobs j WHERE j.type = t.type AND j.hold = 'type' AND j.status = 'held' ORDER BY j.turn, j.id LIMIT 1) AS h
UNION ALL
(SELECT h.id FROM keys k LEFT JOIN job_limits l ON l.type = k.type, LATERAL (
   SELECT j.id FROM jobs j
   WHERE j.type = k.type AND j.concurrency_key = k.key AND j.status IN ('held', 'pending', 'running') AND j.hold = 'key'
   ORDER BY j.turn, j.id LIMIT 1) AS h
 WHERE coalesce(l.per_key, 1) > (
   SELECT count(*) FROM jobs j
   WHERE j.type = k.type AND j.concurrency_key = k.key AND j.status IN ('held', 'pending', 'running')
     AND j.hold IN ('', 'type'))
 LIMIT :limit);

-- name: try_gates
SELECT supervisor_settled_v1(ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json)), NULL, NULL, NULL, NULL);

-- name: admitted_from_now
-- What has passed the gates is due, or will be by a rate.
UPDATE jobs SET scheduled_at = :now
WHERE id = ANY (ARRAY(
  SELECT id FROM jobs
  WHERE type IN (SELECT type FROM job_limits UNION SELECT type FROM job_keys) AND hold = '' AND status = 'pending'
    AND scheduled_at > :now AND type = coalesce(CAST(:type AS text), type)
  ORDER BY id FOR NO KEY UPDATE SKIP LOCKED));

-- name: too_late
SELECT id, claim_token FROM jobs
WHERE expires_at BETWEEN 0 AND :now AND expires_at IS NOT NULL AND status IN ('pending', 'held') LIMIT :limit;

-- name: cancel_expired
UPDATE jobs SET status = 'cancelled', last_error = 'expired', completed_at = :now, updated_at = :now,
  claim_token = claim_token + 1
WHERE id = ANY (ARRAY(SELECT id FROM jobs
                      WHERE id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json)))
                        AND expires_at <= :now AND status IN ('pending', 'held')
                      FOR NO KEY UPDATE SKIP LOCKED));

-- name: existing
SELECT id FROM jobs WHERE id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json)));

-- name: follow
-- A job that is held waits for these. What becomes of it if they have ended, triggers say.
INSERT INTO job_after (after_id, job_id, on_failed)
SELECT value::bigint, :job::bigint, :on_failed FROM json_array_elements_text(:ids::json);

-- name: sweep_batches
-- Somebody has deleted the last jobs of these.
INSERT INTO job_ends (batch) SELECT b.id FROM job_batches b WHERE b.closed = 1 AND b.ended_at IS NULL AND NOT EXISTS (
  SELECT 1 FROM jobs j WHERE j.batch = b.id AND j.status IN ('held', 'pending', 'running'));
