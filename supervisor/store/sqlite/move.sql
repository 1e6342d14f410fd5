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

-- name: free_jobs
-- A job that was copied earlier and had the key then: it has changed meanwhile, and is copied again.
DELETE FROM jobs WHERE type = :type AND unique_key = :unique_key AND status IN ('pending', 'running');

-- name: free_job_runs
DELETE FROM job_runs WHERE job_id = :job_id AND token = :token;

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

-- name: add_sequence
INSERT INTO sqlite_sequence (name, seq)
SELECT :name, 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = :name);

-- name: raise_sequence
UPDATE sqlite_sequence SET seq = max(seq, :value) WHERE name = :name;

-- name: shut
-- RAISE takes no expression, so the message stands in the trigger.
CREATE TRIGGER {name} BEFORE {event} ON {table}
WHEN NOT EXISTS (SELECT 1 FROM job_meta WHERE key = 'move_writer')
BEGIN
  SELECT RAISE(ABORT, {message});
END;

-- name: open
DROP TRIGGER IF EXISTS {name};
