-- The tables. Times are REAL Unix seconds; the defaults use julianday because unixepoch('subsec')
-- is silently NULL on SQLite 3.40.

CREATE TABLE jobs (
  id                  INTEGER PRIMARY KEY AUTOINCREMENT,
  type                TEXT NOT NULL
                      CHECK (length(type) BETWEEN 1 AND 100 AND type NOT GLOB '*[^a-z0-9_.-]*'),
  payload             TEXT NOT NULL DEFAULT '{}',
  status              TEXT NOT NULL DEFAULT 'pending'
                      -- Not IN (…): SQLite would build the list anew at every update, 2 µs each time.
                      CHECK (status = 'pending' OR status = 'running' OR status = 'done' OR
                             status = 'failed' OR status = 'cancelled' OR status = 'quarantined'),
  priority            INTEGER NOT NULL DEFAULT 0
                      CHECK (priority BETWEEN -100 AND 100),
  requires            TEXT NOT NULL DEFAULT '',
  scheduled_at        REAL NOT NULL DEFAULT ((julianday('now') - 2440587.5) * 86400.0)
                      CHECK (scheduled_at >= 0 AND scheduled_at < 1e11), -- 1e11: milliseconds are refused
  attempts            INTEGER NOT NULL DEFAULT 0,
  max_attempts        INTEGER CHECK (max_attempts >= 1),
  crashes             INTEGER NOT NULL DEFAULT 0,
  locked_by           TEXT,
  locked_at           REAL,
  lock_expires_at     REAL,
  claim_token         INTEGER NOT NULL DEFAULT 0,
  cancel_requested_at REAL,
  unique_key          TEXT,
  progress            REAL,
  result              TEXT,
  last_error          TEXT,
  created_at          ANY DEFAULT ((julianday('now') - 2440587.5) * 86400.0),
  updated_at          ANY DEFAULT ((julianday('now') - 2440587.5) * 86400.0),
  started_at          REAL,
  completed_at        REAL
) STRICT;

CREATE TABLE job_errors (
  id          INTEGER PRIMARY KEY AUTOINCREMENT,
  job_id      INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
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

CREATE TABLE job_batch_limits (
  job_id INTEGER PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
  most   INTEGER NOT NULL         -- jobs that it may run together with, itself included: a batch of more has failed
) STRICT;

CREATE TABLE job_runs (
  job_id      INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
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
  started_at REAL NOT NULL
) STRICT;

CREATE TABLE job_workers (
  incarnation TEXT PRIMARY KEY,   -- what jobs.locked_by holds
  supervisor  TEXT NOT NULL,
  pool        TEXT NOT NULL,
  name        TEXT NOT NULL,
  pid         INTEGER NOT NULL,
  slot        INTEGER NOT NULL,
  policy      TEXT NOT NULL,      -- JSON: the pool's retry and crash policy, for whoever recovers its jobs
  started_at  REAL NOT NULL
) STRICT;

CREATE TABLE job_controls (
  kind       TEXT NOT NULL CHECK (kind IN ('paused', 'workers', 'reload')),
  name       TEXT NOT NULL,       -- the type paused, the pool scaled; '' for reload
  value      INTEGER NOT NULL,
  updated_at REAL NOT NULL,
  PRIMARY KEY (kind, name)
) STRICT;

CREATE TABLE job_schedules (
  name     TEXT PRIMARY KEY,
  timing   TEXT NOT NULL,         -- JSON: cron line, interval, time zone; with another one next_at starts anew
  next_at  REAL NOT NULL,
  last_at  REAL,                  -- the planned time that fired last
  last_job INTEGER                -- the job that it made
) STRICT;

CREATE TABLE job_meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT;
