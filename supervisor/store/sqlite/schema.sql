-- The schema, version 1. Every statement stands once: tables, indexes, views, triggers, the first values.
-- Times are REAL Unix seconds; the defaults use julianday because unixepoch('subsec') is silently NULL on SQLite 3.40.


-- Jobs ---------------------------------------------------------------------------------------------

-- The table refuses what no job can have, whoever writes it. length() and GLOB end at a NUL: a text as long in characters
-- as in bytes has neither one nor anything beyond ASCII.
CREATE TABLE jobs (
  id                  INTEGER PRIMARY KEY AUTOINCREMENT
                      CHECK (id BETWEEN 1 AND 4611686018427387904),
  type                TEXT NOT NULL
                      CHECK (length(type) BETWEEN 1 AND 100 AND length(type) = length(CAST(type AS BLOB))
                             AND type NOT GLOB '*[^a-zA-Z0-9_.:/-]*'),
  payload             TEXT NOT NULL DEFAULT '{}'
                      CHECK (length(CAST(payload AS BLOB)) <= 1048576),
  status              TEXT NOT NULL DEFAULT 'pending'
                      -- Not IN (…): SQLite would build the list anew at every update, 2 µs each time.
                      CHECK (status = 'pending' OR status = 'running' OR status = 'done' OR status = 'failed' OR
                             status = 'cancelled' OR status = 'quarantined' OR status = 'held'),
  priority            INTEGER NOT NULL DEFAULT 0
                      CHECK (priority BETWEEN -100 AND 100),
  requires            TEXT NOT NULL DEFAULT ''
                      CHECK (requires = '' OR -- ASCII: what another program wrote can always be read
                             (length(CAST(requires AS BLOB)) <= 1000 AND instr(CAST(requires AS BLOB), x'00') = 0
                              AND requires NOT GLOB '*[^' || char(1) || '-~]*')),
  scheduled_at        REAL NOT NULL DEFAULT ((julianday('now') - 2440587.5) * 86400.0)
                      CHECK (scheduled_at >= 0 AND scheduled_at < 1e11), -- 1e11: milliseconds are refused
  attempts            INTEGER NOT NULL DEFAULT 0
                      CHECK (attempts BETWEEN 0 AND 9007199254740991),
  max_attempts        INTEGER CHECK (max_attempts >= 1),
  crashes             INTEGER NOT NULL DEFAULT 0
                      CHECK (crashes BETWEEN 0 AND 9007199254740991),
  locked_by           TEXT,
  locked_at           REAL,
  lock_expires_at     REAL,
  claim_token         INTEGER NOT NULL DEFAULT 0
                      CHECK (claim_token BETWEEN 0 AND 9007199254740991),
  cancel_requested_at REAL,
  unique_key          TEXT
                      CHECK (unique_key IS NULL OR
                             (length(CAST(unique_key AS BLOB)) <= 4000 AND instr(CAST(unique_key AS BLOB), x'00') = 0)),
  progress            REAL,
  result              TEXT,
  last_error          TEXT,
  created_at          ANY DEFAULT ((julianday('now') - 2440587.5) * 86400.0),
  updated_at          ANY DEFAULT ((julianday('now') - 2440587.5) * 86400.0),
  started_at          REAL,
  completed_at        REAL,
  meta                TEXT              -- free to the user
                      CHECK (meta IS NULL OR (length(CAST(meta AS BLOB)) <= 16384 AND json_valid(meta)
                                              AND json_type(meta) = 'object')),
  progress_text       TEXT,             -- what a running job says it is doing; NULL once it has ended
  -- When it may run; see the gates below.
  concurrency_key     TEXT,
  fair_key            TEXT,
  expires_at          REAL,
  hold                TEXT,             -- the gate at which it is held; '' once it has passed all; NULL: no gates, or ended
  turn                REAL,             -- its place in the order of its gate
  followed            INTEGER,
  batch               INTEGER,
  waiting_key         TEXT,             -- its unique_key, if that counts only until it starts: NULL there while it runs
  unique_for          REAL              -- seconds after its success for which its unique_key counts, too
) STRICT;

-- Every index is partial: a finished job costs nothing, however many there are.

-- Claiming: one seek finds the first due row of a (type, requires, priority) group. What runs stands right
-- before what waits, so a claim and its settlement change one page of one index.
CREATE INDEX jobs_unfinished ON jobs (type, requires, priority DESC, status DESC, scheduled_at)
  WHERE status = 'pending' OR status = 'running';

-- At most one unfinished job per type and key.
CREATE UNIQUE INDEX jobs_unique_key ON jobs (type, unique_key)
  WHERE unique_key IS NOT NULL AND status IN ('pending', 'running', 'held');

CREATE INDEX jobs_unique_after ON jobs (type, unique_key) WHERE unique_for IS NOT NULL;

-- The jobs that are held, by the gate at which they are, and those that have passed. This and the other indexes of gates
-- ask for `hold`, not for the status: so a claim and a settlement of a job without gates touch none of them.
CREATE INDEX jobs_at_gate ON jobs (type, hold, turn) WHERE hold IS NOT NULL;

-- Requests that are repeated find the job of the first one, also after its end. Only keys of requests are in here.
CREATE INDEX jobs_once ON jobs (type, unique_key) WHERE unique_key >= 'run:' AND unique_key < 'run;';

-- What people look for: what went wrong, in the order of the failures; and by type, the latest first without
-- sorting, since the id ends each entry.
CREATE INDEX jobs_unsuccessful ON jobs (status, completed_at) WHERE status IN ('failed', 'quarantined');
CREATE INDEX jobs_unsuccessful_type ON jobs (status, type) WHERE status IN ('failed', 'quarantined');


-- What unfinished jobs there are -------------------------------------------------------------------

-- Each type, each (type, requires) and each (type, requires, priority), by one seek in the index each, whatever the
-- number of rows.
CREATE VIEW job_types AS
WITH RECURSIVE types (type) AS (
  SELECT (SELECT type FROM jobs INDEXED BY jobs_unfinished
          WHERE status = 'pending' OR status = 'running' ORDER BY type LIMIT 1)
  UNION ALL
  SELECT (SELECT j.type FROM jobs j INDEXED BY jobs_unfinished
          WHERE j.type > t.type AND (j.status = 'pending' OR j.status = 'running') ORDER BY j.type LIMIT 1)
  FROM types t WHERE t.type IS NOT NULL
)
SELECT type FROM types WHERE type IS NOT NULL;

CREATE VIEW job_kinds AS
WITH RECURSIVE kinds (type, requires) AS (
  SELECT t.type, (SELECT j.requires FROM jobs j INDEXED BY jobs_unfinished
                  WHERE j.type = t.type AND (j.status = 'pending' OR j.status = 'running')
                  ORDER BY j.requires LIMIT 1)
  FROM job_types t
  UNION ALL
  SELECT k.type, (SELECT j.requires FROM jobs j INDEXED BY jobs_unfinished
                  WHERE j.type = k.type AND j.requires > k.requires
                    AND (j.status = 'pending' OR j.status = 'running')
                  ORDER BY j.requires LIMIT 1)
  FROM kinds k WHERE k.requires IS NOT NULL
)
SELECT type, requires FROM kinds WHERE requires IS NOT NULL;

CREATE VIEW job_groups AS
WITH RECURSIVE groups (type, requires, priority) AS (
  SELECT k.type, k.requires, (SELECT j.priority FROM jobs j INDEXED BY jobs_unfinished
                              WHERE j.type = k.type AND j.requires = k.requires
                                AND (j.status = 'pending' OR j.status = 'running')
                              ORDER BY j.priority DESC LIMIT 1)
  FROM job_kinds k
  UNION ALL
  SELECT g.type, g.requires, (SELECT j.priority FROM jobs j INDEXED BY jobs_unfinished
                              WHERE j.type = g.type AND j.requires = g.requires AND j.priority < g.priority
                                AND (j.status = 'pending' OR j.status = 'running')
                              ORDER BY j.priority DESC LIMIT 1)
  FROM groups g WHERE g.priority IS NOT NULL
)
SELECT type, requires, priority FROM groups WHERE priority IS NOT NULL;

-- Whether there are so many kinds, among few enough rows, that one look at the whole index costs less than a few seeks
-- a kind.
CREATE VIEW jobs_crowded AS
SELECT CASE WHEN (SELECT count(*) FROM (SELECT 1 FROM job_types LIMIT 1000)) = 1000  -- first: this ends the walk
              OR (SELECT count(*) FROM (SELECT 1 FROM job_kinds LIMIT 1000)) = 1000
       THEN (SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_unfinished
                                   WHERE status = 'pending' OR status = 'running' LIMIT 200000)) < 200000
       ELSE 0 END AS yes;

-- Recovery, renewal and reclaim: every running job, by one seek a group unless that is crowded.
CREATE VIEW jobs_held AS
WITH crowded (yes) AS MATERIALIZED (SELECT yes FROM jobs_crowded)
SELECT j.* FROM crowded c CROSS JOIN job_groups g CROSS JOIN jobs j INDEXED BY jobs_unfinished
WHERE NOT c.yes AND j.type = g.type AND j.requires = g.requires AND j.priority = g.priority AND j.status = 'running'
UNION ALL
SELECT j.* FROM crowded c CROSS JOIN jobs j INDEXED BY jobs_unfinished
WHERE c.yes AND (j.status = 'pending' OR j.status = 'running') AND j.status = 'running';


-- What is known of single jobs ---------------------------------------------------------------------

-- ON UPDATE CASCADE: a job whose id leaves no room for others gets a new one.
CREATE TABLE job_errors (
  id          INTEGER PRIMARY KEY AUTOINCREMENT,
  job_id      INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE ON UPDATE CASCADE,
  attempt     INTEGER NOT NULL,
  kind        TEXT NOT NULL,      -- exception, timeout, crash, out_of_memory, stuck, …
  message     TEXT NOT NULL,
  traceback   TEXT,
  exit_code   INTEGER,
  signal      TEXT,
  stderr      TEXT,               -- the tail of what the worker wrote
  peak_memory INTEGER,            -- bytes
  worker      TEXT,               -- its name, for people
  duration    REAL,               -- seconds
  created_at  REAL NOT NULL
) STRICT;
CREATE INDEX job_errors_job ON job_errors (job_id);
CREATE INDEX job_errors_time ON job_errors (created_at);

CREATE TABLE job_runs (
  job_id      INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE ON UPDATE CASCADE,
  token       INTEGER NOT NULL,   -- of the claim: one run each
  attempt     INTEGER NOT NULL,
  outcome     TEXT NOT NULL,      -- done, released, or the kind of job_errors
  worker      TEXT,               -- its name, for people
  started_at  REAL NOT NULL,
  duration    REAL,               -- seconds
  cpu_time    REAL,               -- seconds
  peak_memory INTEGER,            -- bytes
  log         TEXT,
  PRIMARY KEY (job_id, token)
) STRICT;

CREATE TABLE job_batch_limits (
  job_id INTEGER PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE ON UPDATE CASCADE,
  most   INTEGER NOT NULL         -- jobs that it may run together with, itself included: a batch of more has failed
) STRICT;

-- Failed jobs that went back to pending by themselves, and how often: retry_failed_times is the limit.
CREATE TABLE job_second_chances (
  job_id INTEGER PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE ON UPDATE CASCADE,
  used   INTEGER NOT NULL
) STRICT;


-- Who works here -----------------------------------------------------------------------------------

CREATE TABLE job_supervisors (
  id         TEXT PRIMARY KEY,
  pid        INTEGER NOT NULL,
  host       TEXT NOT NULL,
  machine_id TEXT NOT NULL,
  boot_id    TEXT NOT NULL,
  owner_lock TEXT NOT NULL,       -- the file whose record lock says that it lives
  scoreboard TEXT NOT NULL,       -- the mapped file that tells what its workers are doing
  config     TEXT NOT NULL,
  version    TEXT NOT NULL,
  started_at REAL NOT NULL,
  counted    TEXT NOT NULL DEFAULT '{}' -- what of its counters is in job_history, as JSON: changed together with it
) STRICT;

CREATE TABLE job_workers (
  incarnation TEXT PRIMARY KEY,   -- what jobs.locked_by holds
  supervisor  TEXT NOT NULL,
  pool        TEXT NOT NULL,
  name        TEXT NOT NULL,
  pid         INTEGER NOT NULL,
  slot        INTEGER NOT NULL,
  policy      TEXT NOT NULL,      -- JSON: the pool's retry and crash policy, for whoever recovers its jobs
  started_at  REAL NOT NULL,
  pid_started INTEGER             -- clock ticks from the boot to its start: another process may have its pid later
) STRICT;
CREATE INDEX job_workers_supervisor ON job_workers (supervisor);


-- The rest -----------------------------------------------------------------------------------------

CREATE TABLE job_controls (
  kind       TEXT NOT NULL CHECK (kind IN ('paused', 'workers', 'reload', 'schedules')),
  name       TEXT NOT NULL,       -- the type paused, the pool scaled; '' for what is counted
  value      INTEGER NOT NULL,
  updated_at REAL NOT NULL,
  PRIMARY KEY (kind, name)
) STRICT;

CREATE TABLE job_schedules (
  name      TEXT PRIMARY KEY,
  timing    TEXT NOT NULL,        -- JSON: cron line, interval, time zone; with another one next_at starts anew
  next_at   REAL NOT NULL,
  last_at   REAL,                 -- the planned time that fired last
  last_job  INTEGER,              -- the job that it made
  type      TEXT NOT NULL DEFAULT '', -- of its jobs; '': not known
  payload   TEXT NOT NULL DEFAULT '{}',
  priority  INTEGER NOT NULL DEFAULT 0,
  paused_at REAL,                 -- NULL: it fires
  expect_within REAL,         -- seconds within which one of its jobs must succeed; NULL: nobody asks
  expected_from REAL,         -- since when: the last success, or when this was first asked
  watched   TEXT NOT NULL DEFAULT '', -- ids of its jobs that have not succeeded, if somebody asks
  definition TEXT             -- JSON: the keys of one that was made at run time; NULL: a configuration has it
) STRICT;

-- The last hour in minutes, the days before in hours, so that charts need no scraper.
CREATE TABLE job_history (
  minute       REAL NOT NULL,     -- when it began
  type         TEXT NOT NULL,     -- '' for those beyond the 50 busiest
  done         INTEGER NOT NULL,
  failed       INTEGER NOT NULL,
  waiting      INTEGER NOT NULL,  -- due at its end
  running      INTEGER NOT NULL,  -- at its end
  run_seconds  REAL NOT NULL,
  wait_seconds REAL NOT NULL,
  PRIMARY KEY (minute, type)
) STRICT, WITHOUT ROWID;

CREATE TABLE job_meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT;

INSERT INTO job_meta (key, value) VALUES
  ('foreign_lock_time', '3600'),         -- seconds for which a claim of another program is respected
  ('epoch', lower(hex(randomblob(8)))); -- names this life of the database: a restored copy may use ids again


CREATE VIEW job_clock AS SELECT (julianday('now') - 2440587.5) * 86400.0 AS now;


-- Claims of programs that know nothing of them -----------------------------------------------------

-- Our own statements raise claim_token with every move to running or pending, and change locked_by with every other: a
-- status that changes without is foreign. One trigger before and one after: each further trigger costs every claim and
-- settlement a microsecond.

-- Ignored: a foreign change of a job that one of our workers holds (an application's own "reset running
-- rows at start" must not release them), a late foreign settlement of a finished job (one recorded
-- outcome a job), and a foreign start of what is not pending.
CREATE TRIGGER jobs_defend BEFORE UPDATE OF status ON jobs
WHEN NEW.status IS NOT OLD.status AND NEW.claim_token IS OLD.claim_token
  AND (NEW.locked_by IS OLD.locked_by OR NEW.status IN ('pending', 'running'))
  AND ((OLD.status = 'running' AND OLD.locked_by <> 'foreign')
    OR (OLD.status NOT IN ('pending', 'running') AND (NEW.status = 'running' OR (OLD.status = 'held') = (NEW.status = 'pending'))))
BEGIN
  SELECT RAISE(IGNORE);
END;

-- Stamped: a foreign claim becomes an ordinary claim with an expiry; a foreign settlement, release or
-- requeue leaves the row as ours would. What is to run again is held until it has passed its gates, and every move of a job
-- with gates is noted for them. The statements are in a trigger of a view: a trigger costs every change as much as it is
-- long, also if its WHEN is false, and most need none of this.
CREATE VIEW job_transitions AS SELECT id, status AS before, 0 AS is_foreign, 0 AS charged FROM jobs;

CREATE TRIGGER jobs_stamp AFTER UPDATE OF status ON jobs
WHEN coalesce(OLD.hold, OLD.followed) IS NOT NULL OR (NEW.status = 'pending' AND OLD.status NOT IN ('held', 'running')) OR (
  NEW.status IS NOT OLD.status AND NEW.claim_token IS OLD.claim_token
  AND (NEW.locked_by IS OLD.locked_by OR NEW.status IN ('pending', 'running') OR OLD.locked_by = 'foreign'))
BEGIN
  INSERT INTO job_transitions VALUES (NEW.id, OLD.status,
    NEW.claim_token IS OLD.claim_token AND NEW.status IS NOT OLD.status
      AND (NEW.locked_by IS OLD.locked_by OR NEW.status IN ('pending', 'running') OR OLD.locked_by = 'foreign'),
    NEW.attempts >= OLD.attempts);
END;

CREATE TRIGGER jobs_changed INSTEAD OF INSERT ON job_transitions
BEGIN
  UPDATE jobs SET
    locked_by = 'foreign',
    locked_at = (SELECT now FROM job_clock),
    lock_expires_at = (SELECT now FROM job_clock)
      + (SELECT CAST(value AS REAL) FROM job_meta WHERE key = 'foreign_lock_time'),
    started_at = (SELECT now FROM job_clock),
    completed_at = NULL,
    claim_token = claim_token + 1
  WHERE id = NEW.id AND NEW.is_foreign AND status = 'running';
  UPDATE jobs SET
    locked_by = NULL, locked_at = NULL, lock_expires_at = NULL,
    claim_token = claim_token + 1,
    completed_at = CASE WHEN status NOT IN ('pending', 'held') THEN (SELECT now FROM job_clock) END
  WHERE id = NEW.id AND NEW.is_foreign AND status <> 'running';
  INSERT INTO job_moves (stage, id, type, concurrency_key, before, now, charged, followed, batch)
    SELECT status <> 'running', id, type, concurrency_key, NEW.before, status, NEW.charged, followed, batch FROM jobs
    WHERE id = NEW.id AND status <> NEW.before AND (status <> 'held' OR NEW.is_foreign)
      AND NOT (NEW.before = 'held' AND status = 'pending')
      AND NOT (status = 'cancelled' AND hold IS 'failed') -- jobs_ended sees to these, all at once
      AND (coalesce(hold, concurrency_key, batch, expires_at, waiting_key, followed) IS NOT NULL OR status = 'held'
        OR EXISTS (SELECT 1 FROM job_limits WHERE type = jobs.type)
        OR EXISTS (SELECT 1 FROM job_after WHERE job_id = jobs.id));
  -- At once: whoever looks for the next one would read all that have ended and have not been seen to.
  UPDATE jobs SET hold = NULL WHERE id = NEW.id AND status NOT IN ('held', 'pending', 'running') AND hold <> 'failed';
  -- Also what another program has held.
  UPDATE jobs SET status = 'held', hold = iif(status = 'held' AND hold <> '', hold, 'due'), claim_token = claim_token + 1
  WHERE id = NEW.id AND NEW.before NOT IN ('held', status) AND ((status = 'held' AND NEW.is_foreign) OR (status = 'pending'
    AND (coalesce(hold, concurrency_key, batch, expires_at, waiting_key) IS NOT NULL
      OR EXISTS (SELECT 1 FROM job_limits WHERE type = jobs.type)
      OR EXISTS (SELECT 1 FROM job_after WHERE job_id = jobs.id))));
END;


-- When a job may run -------------------------------------------------------------------------------

-- A job of a type with limits, or with a concurrency_key, is held at gates before it is pending: `due` until its time has
-- come, `key` while its key has no room, `type` while its type has none. What has passed the gates and has not ended is
-- counted; there is no number that could be wrong. Whoever writes, triggers hold a job and note in job_moves what happened
-- to it. Deleting from there lets it, or the next one, pass, by the triggers of gates.sql: our own transactions do so before
-- they commit, and a maintainer for those of other programs. So no kill can lose it.

-- What happened to jobs with gates, or with others that wait for them.
CREATE TABLE job_moves (
  place           INTEGER PRIMARY KEY,
  stage           INTEGER NOT NULL DEFAULT 1, -- starts, 0, are seen to first, new jobs, 2, last
  id              INTEGER,
  type            TEXT,
  concurrency_key TEXT,
  before          TEXT,             -- its status; NULL: the job is new
  now             TEXT NOT NULL,    -- its status, or deleted; closed: its batch is
  charged         INTEGER NOT NULL DEFAULT 0, -- 1: the attempt counts
  followed        INTEGER,
  batch           INTEGER
) STRICT;
CREATE INDEX job_moves_order ON job_moves (stage, place);

-- The limits of types, as configured, and how far they are used.
CREATE TABLE job_limits (
  type          TEXT PRIMARY KEY,
  max_running   INTEGER,               -- pending and running jobs at most; NULL: any number
  per_key       INTEGER,               -- the same for each concurrency_key; NULL: 1
  on_conflict   TEXT NOT NULL DEFAULT 'wait', -- what a job does whose key has others: wait, skip, cancel_running
  interval      REAL,                  -- seconds between two starts; NULL: no rate
  burst         INTEGER NOT NULL DEFAULT 1,   -- starts that may be saved up
  key_interval  REAL,                  -- the same for each concurrency_key
  key_burst     INTEGER NOT NULL DEFAULT 1,
  fair          INTEGER NOT NULL DEFAULT 0,   -- 1: jobs take turns by fair_key
  age_boost     REAL NOT NULL DEFAULT 1e9,    -- seconds of waiting that count as much as one step of priority
  max_failures  INTEGER,               -- in a row, after which the breaker opens; NULL: there is none
  breaker_pause REAL NOT NULL DEFAULT 60,     -- seconds for which it is open
  next_at       REAL NOT NULL DEFAULT 0,      -- when the next job may start if none is saved up
  turn          REAL NOT NULL DEFAULT 0,      -- of the job that was admitted last, if they take turns
  failures      INTEGER NOT NULL DEFAULT 0,   -- in a row
  chosen        INTEGER NOT NULL DEFAULT 0,   -- 1: by an operator; the configuration does not change it
  applied       INTEGER NOT NULL DEFAULT 0    -- 1: what was pending when it was set has passed the gates again
) STRICT, WITHOUT ROWID;

-- The same of keys that have a rate, and of fair_keys: the turn given out last.
CREATE TABLE job_keys (
  type     TEXT NOT NULL,
  key      TEXT NOT NULL,
  next_at  REAL NOT NULL DEFAULT 0,
  turn     REAL NOT NULL DEFAULT 0,
  opens_at REAL,                  -- when its first job, which waits for next_at, is tried again; NULL: none waits
  PRIMARY KEY (type, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_keys_opening ON job_keys (opens_at) WHERE opens_at IS NOT NULL;

CREATE INDEX jobs_by_key ON jobs (type, concurrency_key, hold, turn)
  WHERE concurrency_key IS NOT NULL AND hold IS NOT NULL;
CREATE INDEX jobs_expiring ON jobs (expires_at) WHERE expires_at IS NOT NULL AND hold IS NOT NULL;
CREATE INDEX jobs_due_later ON jobs (scheduled_at) WHERE hold = 'due';

-- A view's trigger holds them, as with job_transitions.
CREATE VIEW job_arrivals AS SELECT id, 0 AS is_new FROM jobs;

CREATE TRIGGER jobs_arrive AFTER INSERT ON jobs
WHEN NEW.hold IS NULL AND (NEW.status = 'held' OR (NEW.status IN ('pending', 'running') AND (
  coalesce(NEW.concurrency_key, NEW.batch, NEW.expires_at, NEW.waiting_key) IS NOT NULL
  OR EXISTS (SELECT 1 FROM job_limits WHERE type = NEW.type))))
BEGIN
  INSERT INTO job_arrivals VALUES (NEW.id, 1);
END;
-- It passes the gates that it has now, and may have left room at those that it had.
CREATE TRIGGER jobs_arrive_late AFTER UPDATE OF type, concurrency_key, batch, expires_at, waiting_key ON jobs
WHEN NEW.status IN ('held', 'pending', 'running') AND NEW.hold IS NOT 'after'
  AND (NEW.hold IS NULL OR NEW.type <> OLD.type OR NEW.concurrency_key IS NOT OLD.concurrency_key)
  AND (coalesce(NEW.hold, NEW.concurrency_key, NEW.batch, NEW.expires_at, NEW.waiting_key) IS NOT NULL
    OR EXISTS (SELECT 1 FROM job_limits WHERE type = NEW.type))
BEGIN
  INSERT INTO job_moves (id, type, concurrency_key, before, now)
    SELECT NEW.id, OLD.type, OLD.concurrency_key, 'held', 'deleted' WHERE OLD.hold IS NOT NULL;
  INSERT INTO job_arrivals VALUES (NEW.id, 0);
END;
-- What runs is counted, and holds nothing up; if it was inserted so, that was a start.
CREATE TRIGGER jobs_hold INSTEAD OF INSERT ON job_arrivals
BEGIN
  UPDATE jobs SET hold = iif(status = 'running', '', 'due'), status = iif(status = 'running', status, 'held'),
    claim_token = claim_token + (status <> 'running') WHERE id = NEW.id;
  INSERT INTO job_moves (stage, id, type, concurrency_key, before, now)
    SELECT iif(hold = '', 0, 2), id, type, concurrency_key, iif(hold = '', 'pending', NULL), status
    FROM jobs WHERE id = NEW.id AND (NEW.is_new OR status = 'held');
END;
-- One that is to wait for others once more leaves its place.
CREATE TRIGGER jobs_wait_again AFTER UPDATE OF hold ON jobs WHEN NEW.hold = 'after' AND OLD.hold IN ('', 'type')
BEGIN
  INSERT INTO job_moves (id, type, concurrency_key, before, now) VALUES (NEW.id, NEW.type, NEW.concurrency_key, 'held', 'held');
END;

CREATE TRIGGER jobs_deleted AFTER DELETE ON jobs WHEN coalesce(OLD.hold, OLD.followed) IS NOT NULL
BEGIN
  INSERT INTO job_moves (id, type, concurrency_key, before, now, followed, batch)
    VALUES (OLD.id, OLD.type, OLD.concurrency_key, OLD.status, 'deleted', OLD.followed, OLD.batch);
END;


-- Jobs after others, and batches -------------------------------------------------------------------

-- A job whose predecessors have not all ended is held with `after`. A predecessor has followed = 1.
CREATE TABLE job_after (
  after_id  INTEGER NOT NULL,          -- a deleted one is there until the gates have seen that
  job_id    INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE ON UPDATE CASCADE,
  on_failed TEXT NOT NULL DEFAULT 'cancel' CHECK (on_failed IN ('cancel', 'run')), -- if it fails: what the job does
  PRIMARY KEY (after_id, job_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_after_job ON job_after (job_id);

-- A program that adds a job after others, and none after it, pays for one look.
CREATE TRIGGER job_after_circles BEFORE INSERT ON job_after
WHEN NEW.after_id = NEW.job_id OR (
  EXISTS (SELECT 1 FROM job_after WHERE after_id = NEW.job_id) AND EXISTS (SELECT 1 FROM job_after WHERE job_id = NEW.after_id)
  AND NEW.after_id IN (WITH RECURSIVE later (id) AS (
    SELECT NEW.job_id UNION SELECT a.job_id FROM later JOIN job_after a ON a.after_id = later.id LIMIT 1000) SELECT id FROM later))
BEGIN
  SELECT RAISE(ABORT, 'a job would wait for itself, by a circle in job_after');
END;

CREATE TRIGGER job_after_begins AFTER INSERT ON job_after
BEGIN
  UPDATE jobs SET followed = 1 WHERE id = NEW.after_id AND followed IS NULL;
  -- One that had ended may have let it pass, although it has more.
  UPDATE jobs SET status = 'held', hold = 'after', claim_token = claim_token + 1
  WHERE id = NEW.job_id AND (status = 'pending' OR (status = 'held' AND hold <> 'after'));
  INSERT INTO job_moves (id, before, now, followed) SELECT id, status, status, 1 FROM jobs
    WHERE id = NEW.after_id AND status IN ('done', 'failed', 'cancelled', 'quarantined');
END;

CREATE TRIGGER job_after_ends AFTER DELETE ON job_after
WHEN NOT EXISTS (SELECT 1 FROM job_after WHERE job_id = OLD.job_id)
BEGIN
  INSERT INTO job_moves (id, before, now) VALUES (OLD.job_id, 'held', 'held');
END;

-- Jobs of one batch; when its last one has ended, a job is enqueued, once. It must be one that the table of jobs takes.
CREATE TABLE job_batches (
  id         INTEGER PRIMARY KEY       -- microseconds of its creation
             CHECK (id BETWEEN 1 AND 4611686018427387904),
  type       TEXT                      -- of the job that is enqueued; NULL: none
             CHECK (length(type) BETWEEN 1 AND 100 AND length(type) = length(CAST(type AS BLOB))
                    AND type NOT GLOB '*[^a-zA-Z0-9_.:/-]*'),
  payload    TEXT NOT NULL DEFAULT '{}'
             CHECK (length(CAST(payload AS BLOB)) <= 1048576),
  closed     INTEGER NOT NULL DEFAULT 0, -- 1: the program that makes it has added its jobs
  callback   INTEGER,                  -- the job that was enqueued
  created_at REAL NOT NULL DEFAULT ((julianday('now') - 2440587.5) * 86400.0)
             CHECK (created_at BETWEEN 0 AND 1e11),
  ended_at   REAL
             CHECK (ended_at BETWEEN 0 AND 1e11)
) STRICT;
CREATE INDEX jobs_in_batch ON jobs (batch, hold) WHERE batch IS NOT NULL;

CREATE TRIGGER job_batch_closes AFTER UPDATE OF closed ON job_batches
BEGIN
  INSERT INTO job_moves (batch, before, now) VALUES (NEW.id, '', 'closed');
END;
