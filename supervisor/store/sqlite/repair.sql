-- Putting ids right. {…} are quoted names.

-- name: latest_id
-- The greatest id that is one, of what is there and of what was.
SELECT max(coalesce((SELECT max(id) FROM jobs WHERE id <= :last), 0),
           coalesce((SELECT max(job_id) FROM job_errors WHERE job_id <= :last), 0),
           coalesce((SELECT max(seq) FROM sqlite_sequence
                     WHERE name = 'jobs' AND typeof(seq) = 'integer' AND seq <= :last), 0));

-- name: impossible
SELECT id FROM jobs WHERE id < 1 OR id > :last ORDER BY id;

-- name: pointing_here
SELECT s.name, f."from" FROM sqlite_schema s, pragma_foreign_key_list(s.name) f
WHERE s.type = 'table' AND lower(f."table") = 'jobs' AND lower(coalesce(f."to", 'id')) = 'id';

-- name: move_job
UPDATE jobs SET id = :new WHERE id = :old;

-- name: move_pointer
-- Unless ON UPDATE CASCADE has done it.
UPDATE {table} SET {column} = :new WHERE {column} = :old;

-- name: move_last_job
UPDATE job_schedules SET last_job = :new WHERE last_job = :old;

-- name: tell
INSERT INTO job_errors (job_id, attempt, kind, message, created_at)
VALUES (:new, 0, 'row', 'its id was ' || :old || ', which no job can have; it has got a new one',
        (julianday('now') - 2440587.5) * 86400.0);

-- name: set_sequence
UPDATE sqlite_sequence SET seq = :latest WHERE name = 'jobs' AND (typeof(seq) <> 'integer' OR seq > :last OR seq < :latest);

-- name: move_errors
-- Behind the others, in their order; nothing points at them.
UPDATE job_errors SET id = n.id FROM (
  SELECT id AS old, row_number() OVER (ORDER BY id)
                    + (SELECT coalesce(max(id), 0) FROM job_errors WHERE id BETWEEN 1 AND :last) AS id
  FROM job_errors WHERE id > :last) n
WHERE job_errors.id = n.old;

-- name: set_error_sequence
UPDATE sqlite_sequence SET seq = (SELECT coalesce(max(id), 0) FROM job_errors)
WHERE name = 'job_errors' AND (typeof(seq) <> 'integer' OR seq > :last);
