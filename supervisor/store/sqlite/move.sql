-- Statements of `supervisor move`. What stands in braces is filled in: tables, columns and keys that the schema names.

-- name: columns
SELECT name, type FROM pragma_table_xinfo(:table) ORDER BY cid;

-- name: count
SELECT count(*) FROM {table} WHERE {where};

-- name: block
SELECT {columns} FROM {table} WHERE {where} ORDER BY {order} LIMIT :limit;

-- name: clear
DELETE FROM {table} WHERE {where};

-- name: insert
INSERT INTO {table} ({columns}) VALUES ({values});

-- name: present
SELECT id FROM jobs WHERE id IN (SELECT value FROM json_each(:ids));

-- name: meta
SELECT value FROM job_meta WHERE key = :key;

-- name: note
INSERT INTO job_meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: forget
DELETE FROM job_meta WHERE key = :key;

-- name: sequences
SELECT name, seq FROM sqlite_sequence WHERE name IN ('jobs', 'job_errors')
UNION ALL
SELECT 'job_runs', max(rowid) FROM job_runs;

-- name: raise_sequences
-- The rowids of runs go on from the greatest.
DELETE FROM sqlite_sequence WHERE name IN ('jobs', 'job_errors');
INSERT INTO sqlite_sequence (name, seq) VALUES ('jobs', :jobs), ('job_errors', :job_errors);

-- name: shut
-- RAISE takes no expression, so the message stands in the triggers. There may be some with another message.
DROP TRIGGER IF EXISTS jobs_closed_insert;
DROP TRIGGER IF EXISTS jobs_closed_update;
DROP TRIGGER IF EXISTS jobs_closed_delete;
DROP TRIGGER IF EXISTS supervisors_closed;
CREATE TRIGGER jobs_closed_insert BEFORE INSERT ON jobs
WHEN NOT EXISTS (SELECT 1 FROM job_meta WHERE key = 'move_writer')
BEGIN
  SELECT RAISE(ABORT, {message});
END;
CREATE TRIGGER jobs_closed_update BEFORE UPDATE ON jobs
WHEN NOT EXISTS (SELECT 1 FROM job_meta WHERE key = 'move_writer')
BEGIN
  SELECT RAISE(ABORT, {message});
END;
CREATE TRIGGER jobs_closed_delete BEFORE DELETE ON jobs
WHEN NOT EXISTS (SELECT 1 FROM job_meta WHERE key = 'move_writer')
BEGIN
  SELECT RAISE(ABORT, {message});
END;
CREATE TRIGGER supervisors_closed BEFORE INSERT ON job_supervisors
WHEN NOT EXISTS (SELECT 1 FROM job_meta WHERE key = 'move_writer')
BEGIN
  SELECT RAISE(ABORT, {message});
END;

-- name: open
DROP TRIGGER IF EXISTS jobs_closed_insert;
DROP TRIGGER IF EXISTS jobs_closed_update;
DROP TRIGGER IF EXISTS jobs_closed_delete;
DROP TRIGGER IF EXISTS supervisors_closed;
