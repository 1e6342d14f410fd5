-- The table refuses what no job can have, whoever writes it; `meta` is free to the user. Before this file
-- supervisor/store/sqlite/repair.py has given new ids to rows whose ids are none.

-- Rows that are not to be had any more, found by one look at the table.
CREATE TEMP TABLE unfit AS
SELECT id, unfinished, told, kept, bad_type, bad_payload, bad_requires, bad_key FROM (
  SELECT id, bad_type, bad_payload, bad_requires, bad_key,
         status NOT IN ('done', 'failed', 'cancelled', 'quarantined') AS unfinished,
         iif(bad_type, ', type (' || length(CAST(type AS BLOB)) || ' bytes)', '')
           || iif(bad_payload, ', payload (' || length(CAST(payload AS BLOB)) || ' bytes)', '')
           || iif(bad_requires, ', requires (' || length(CAST(requires AS BLOB)) || ' bytes)', '')
           || iif(bad_key, ', unique_key (' || length(CAST(unique_key AS BLOB)) || ' bytes)', '')
           || iif(bad_token, ', claim_token (' || claim_token || ')', '')
           || iif(bad_attempts, ', attempts (' || attempts || ')', '')
           || iif(bad_crashes, ', crashes (' || crashes || ')', '') AS told,
         iif(bad_type, 'type: ' || type || char(10), '')
           || iif(bad_payload, 'payload: ' || payload || char(10), '')
           || iif(bad_requires, 'requires: ' || requires || char(10), '')
           || iif(bad_key, 'unique_key: ' || unique_key || char(10), '') AS kept
  FROM (
    SELECT id, status, type, payload, requires, unique_key, claim_token, attempts, crashes,
           (length(CAST(type AS BLOB)) BETWEEN 1 AND 100 AND length(type) = length(CAST(type AS BLOB))) IS NOT TRUE
             AS bad_type,
           length(CAST(payload AS BLOB)) > 1048576 AS bad_payload,
           (length(CAST(requires AS BLOB)) > 1000 OR instr(CAST(requires AS BLOB), x'00') > 0) AS bad_requires,
           (unique_key IS NOT NULL
             AND (length(CAST(unique_key AS BLOB)) > 4000 OR instr(CAST(unique_key AS BLOB), x'00') > 0)) AS bad_key,
           (claim_token BETWEEN 0 AND 9007199254740991) IS NOT TRUE AS bad_token,
           (attempts BETWEEN 0 AND 9007199254740991) IS NOT TRUE AS bad_attempts,
           (crashes BETWEEN 0 AND 9007199254740991) IS NOT TRUE AS bad_crashes
    FROM jobs)
  WHERE bad_type OR bad_payload OR bad_requires OR bad_key OR bad_token OR bad_attempts OR bad_crashes);

INSERT INTO job_errors (job_id, attempt, kind, message, traceback, created_at)
SELECT u.id, 0, 'row', 'the row held what no job can have: ' || substr(u.told, 3), nullif(u.kept, ''),
       (julianday('now') - 2440587.5) * 86400.0
FROM temp.unfit u;

UPDATE jobs SET
  status = iif(u.unfinished, 'quarantined', status),
  last_error = iif(u.unfinished, 'the row held what no job can have: ' || substr(u.told, 3), last_error),
  completed_at = iif(u.unfinished, (julianday('now') - 2440587.5) * 86400.0, completed_at),
  locked_by = iif(u.unfinished, NULL, locked_by),
  locked_at = iif(u.unfinished, NULL, locked_at),
  lock_expires_at = iif(u.unfinished, NULL, lock_expires_at),
  claim_token = iif(claim_token BETWEEN 0 AND 9007199254740990, claim_token + 1, 1),
  attempts = iif(attempts BETWEEN 0 AND 9007199254740990, attempts, iif(attempts > 0, 1000000, 0)),
  crashes = iif(crashes BETWEEN 0 AND 9007199254740990, crashes, iif(crashes > 0, 1000000, 0)),
  type = iif(u.bad_type, 'invalid', type),
  payload = iif(u.bad_payload, '{}', payload),
  requires = iif(u.bad_requires, '', requires),
  unique_key = iif(u.bad_key, NULL, unique_key)
FROM temp.unfit u WHERE jobs.id = u.id;

DROP TABLE temp.unfit;

-- SQLite has no statement that changes a CHECK; its documentation allows this way for constraints, which change
-- nothing in the file (https://sqlite.org/lang_altertable.html#otheralter). A table that was taken over has the same
-- text in its definition. length() and GLOB end at a NUL: a text as long in characters as in bytes has neither one nor
-- anything beyond ASCII.
PRAGMA writable_schema = ON;

UPDATE sqlite_schema SET sql = replace(sql,
  'CHECK (length(type) BETWEEN 1 AND 100 AND type NOT GLOB ''*[^a-z0-9_.-]*'')',
  'CHECK (length(type) BETWEEN 1 AND 100 AND length(type) = length(CAST(type AS BLOB))
                             AND type NOT GLOB ''*[^a-zA-Z0-9_.:/-]*'')
                      -- Of the others, too, each for itself: SQLite looks only at those whose columns have changed.
                      CHECK (id BETWEEN 1 AND 4611686018427387904)
                      CHECK (length(CAST(payload AS BLOB)) <= 1048576)
                      CHECK (requires = '''' OR
                             (length(CAST(requires AS BLOB)) <= 1000 AND instr(CAST(requires AS BLOB), x''00'') = 0))
                      CHECK (unique_key IS NULL OR
                             (length(CAST(unique_key AS BLOB)) <= 4000 AND instr(CAST(unique_key AS BLOB), x''00'') = 0))
                      CHECK (claim_token BETWEEN 0 AND 9007199254740991)
                      CHECK (attempts BETWEEN 0 AND 9007199254740991)
                      CHECK (crashes BETWEEN 0 AND 9007199254740991)')
WHERE type = 'table' AND lower(name) = 'jobs';

PRAGMA writable_schema = RESET;

-- A table that was taken over may have a column of this name; then that is it.
ALTER TABLE jobs ADD COLUMN meta TEXT
  CHECK (meta IS NULL OR (length(CAST(meta AS BLOB)) <= 16384 AND json_valid(meta) AND json_type(meta) = 'object'));

-- Names this life of the database: ids may be used again after an older copy of it was put in its place.
INSERT OR IGNORE INTO job_meta (key, value) VALUES ('epoch', lower(hex(randomblob(8))));

-- What unfinished jobs there are: each type, each (type, requires) and each (type, requires, priority), by one seek in
-- the index each, whatever the number of rows.
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

-- Every running job, as before, unless that is crowded.
DROP VIEW jobs_held;
CREATE VIEW jobs_held AS
WITH crowded (yes) AS MATERIALIZED (SELECT yes FROM jobs_crowded)
SELECT j.* FROM crowded c CROSS JOIN job_groups g CROSS JOIN jobs j INDEXED BY jobs_unfinished
WHERE NOT c.yes AND j.type = g.type AND j.requires = g.requires AND j.priority = g.priority AND j.status = 'running'
UNION ALL
SELECT j.* FROM crowded c CROSS JOIN jobs j INDEXED BY jobs_unfinished
WHERE c.yes AND (j.status = 'pending' OR j.status = 'running') AND j.status = 'running';
