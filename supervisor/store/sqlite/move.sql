-- Statements of `supervisor move`. What stands in braces is filled in: tables, columns and keys that the schema names.

-- name: columns
SELECT name, type FROM pragma_table_xinfo(:table) ORDER BY cid;

-- name: insert
INSERT INTO {table} ({columns}) VALUES ({values});

-- name: present
SELECT id FROM jobs WHERE id IN (SELECT value FROM json_each(:ids));

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
-- What another program has just done is known here only. What follows from it is noted, and what follows from that.
DELETE FROM job_moves;
DELETE FROM job_moves;
DELETE FROM job_moves;
CREATE TRIGGER jobs_closed_insert BEFORE INSERT ON jobs BEGIN
  SELECT RAISE(ABORT, {message});
END;
CREATE TRIGGER jobs_closed_update BEFORE UPDATE ON jobs BEGIN
  SELECT RAISE(ABORT, {message});
END;
CREATE TRIGGER jobs_closed_delete BEFORE DELETE ON jobs BEGIN
  SELECT RAISE(ABORT, {message});
END;
CREATE TRIGGER supervisors_closed BEFORE INSERT ON job_supervisors BEGIN
  SELECT RAISE(ABORT, {message});
END;

-- name: open
DROP TRIGGER IF EXISTS jobs_closed_insert;
DROP TRIGGER IF EXISTS jobs_closed_update;
DROP TRIGGER IF EXISTS jobs_closed_delete;
DROP TRIGGER IF EXISTS supervisors_closed;
