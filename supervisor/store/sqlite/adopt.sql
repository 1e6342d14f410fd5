-- Taking over a `jobs` table made by hand. {…} are filled in with quoted names and with definitions read
-- from the database or from our own migrations.


-- What stands there --------------------------------------------------------------------------------

-- name: objects
SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY rowid;

-- name: kind
SELECT type, wr, strict FROM pragma_table_list WHERE schema = 'main' AND lower(name) = 'jobs';

-- name: columns
SELECT name, type, pk, hidden FROM pragma_table_xinfo(:table);

-- name: inner_indexes
-- A primary key that is the rowid has no index.
SELECT count(*) FROM pragma_index_list(:table) WHERE origin = 'pk';

-- name: pointing_here
SELECT s.name, f."from", upper(f.on_delete)
FROM sqlite_schema s, pragma_foreign_key_list(s.name) f
WHERE s.type = 'table' AND lower(f."table") = 'jobs' AND lower(s.name) <> 'jobs';

-- name: sequence
SELECT seq FROM sqlite_sequence WHERE lower(name) = 'jobs';

-- name: offending
-- Values that a column of ours cannot take, by its own CHECK.
SELECT {column}, count(*) FROM {table}
WHERE ({column} IS NULL AND NOT {optional})
   OR ({column} IS NOT NULL AND (typeof({column}) <> '{type}' OR NOT {check}))
GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 5;

-- name: beyond
SELECT count(*) FROM {table} WHERE NOT {check};

-- name: no_times
SELECT {column}, count(*) FROM {table} WHERE {column} IS NOT NULL AND {value} IS NULL
GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 5;

-- name: delayed_elsewhere
SELECT count(*) FROM {table} WHERE status = 'pending' AND {value} > :now;

-- name: count_running
SELECT count(*) FROM {table} WHERE status = 'running';

-- name: samples
-- One value of each kind that the application has stored in a column, the latest of each.
SELECT {column}, max(id) FROM {table} GROUP BY typeof({column});

-- name: latest_row
SELECT {columns} FROM {table} ORDER BY id DESC LIMIT 1;

-- name: latest_time
SELECT {column} FROM {table} WHERE {column} IS NOT NULL ORDER BY id DESC LIMIT 1;

-- name: default_of
SELECT {value};


-- The new table ------------------------------------------------------------------------------------

-- name: rename_column
ALTER TABLE {table} RENAME COLUMN {column} TO payload;

-- name: put_aside
-- The old table, until its rows are copied.
ALTER TABLE {table} RENAME TO jobs_before_adopt;

-- name: create
CREATE TABLE jobs (
  {definitions}
);

-- name: not_null
-- A NULL that the old table took becomes the default.
NOT NULL ON CONFLICT REPLACE;

-- name: guard
-- What STRICT would hold.
CHECK (typeof({column}) IN ({types}));

-- name: copy
INSERT INTO jobs ({columns}) SELECT {values} FROM jobs_before_adopt ORDER BY id;

-- name: drop
DROP TABLE jobs_before_adopt;

-- name: keep_sequence
UPDATE sqlite_sequence SET seq = max(seq, :seq) WHERE name = 'jobs';

-- name: add_sequence
INSERT INTO sqlite_sequence (name, seq)
SELECT 'jobs', :seq WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'jobs');

-- name: as_text
CAST({column} AS TEXT);

-- name: as_integer
CAST({column} AS INTEGER);

-- name: as_counter
max(0, min(CAST({column} AS INTEGER), 1000000));

-- name: as_real
CAST({column} AS REAL);

-- name: as_status
CASE {column} WHEN 'running' THEN 'pending' ELSE {column} END;

-- name: as_limit
CASE WHEN CAST({column} AS INTEGER) >= 1 THEN CAST({column} AS INTEGER) END;

-- name: as_time
-- Unix seconds of a text time, of seconds or of milliseconds; NULL for anything else.
(SELECT CASE WHEN t >= 0 AND t < 1e11 THEN CAST(t AS REAL) END FROM (SELECT
  CASE WHEN typeof({column}) = 'text' THEN (julianday({column}) - 2440587.5) * 86400.0
       WHEN typeof({column}) IN ('integer', 'real') AND {column} >= 1e11 THEN {column} / 1000.0
       WHEN typeof({column}) IN ('integer', 'real') THEN {column} END AS t));

-- name: completed
-- When a finished job ended, as far as the old row tells.
CASE WHEN status NOT IN ('pending', 'running') THEN coalesce({sources}, :now) END;

-- name: or_now
coalesce({value}, :now);

-- name: no_later
min({value}, :now);


-- The application's own form of times --------------------------------------------------------------

-- name: form_text
strftime('{form}', CAST(NEW.{column} AS REAL), 'unixepoch');

-- name: form_milliseconds
CAST(round(NEW.{column} * 1000) AS INTEGER);

-- name: kept_form
{column} = CASE WHEN {ours} THEN {value} ELSE NEW.{column} END;

-- name: written_by_us
-- Plain seconds; a column declared TEXT has made text of them.
(NEW.{column} GLOB '[0-9]*' AND NEW.{column} NOT GLOB '*[^0-9.e+]*' AND CAST(NEW.{column} AS REAL) < 1e11);

-- name: form_insert
CREATE TRIGGER jobs_times_insert AFTER INSERT ON jobs WHEN {ours} BEGIN
  UPDATE jobs SET {assignments} WHERE id = NEW.id;
END;

-- name: form_update
CREATE TRIGGER jobs_times_update AFTER UPDATE OF updated_at ON jobs WHEN {ours} BEGIN
  UPDATE jobs SET {assignments} WHERE id = NEW.id;
END;


-- What such an application runs --------------------------------------------------------------------

-- name: try_insert
INSERT INTO jobs (type, {payload}) VALUES ('tag', '{{"path": "cat.jpg"}}');

-- name: try_delete_row
DELETE FROM jobs WHERE id = (SELECT max(id) FROM jobs);

-- name: try_insert_like
INSERT INTO jobs ({columns}) VALUES ({marks});

-- name: try_claim
UPDATE jobs SET status = 'running'{touch}
WHERE id = (SELECT id FROM jobs WHERE status = 'pending' ORDER BY id LIMIT 1) RETURNING *;

-- name: try_done
UPDATE jobs SET status = 'done'{touch} WHERE id = (SELECT max(id) FROM jobs);

-- name: try_failed
UPDATE jobs SET status = 'failed'{attempts}{error}{touch} WHERE id = (SELECT max(id) FROM jobs);

-- name: try_reset
UPDATE jobs SET status = 'pending' WHERE status = 'running';

-- name: try_select
SELECT id, type, {payload}, status FROM jobs WHERE status = 'pending' ORDER BY id;

-- name: try_delete
DELETE FROM jobs WHERE status = 'done';

-- name: try_view
SELECT * FROM {view};

-- name: try_value
UPDATE jobs SET {column} = :value WHERE id = (SELECT max(id) FROM jobs);

-- name: touch
, updated_at = CURRENT_TIMESTAMP;

-- name: count_attempt
, attempts = attempts + 1;

-- name: write_error
, last_error = 'no such file';

-- name: make_pending
-- For a trial of our own statements on a row of the application's.
UPDATE jobs SET status = 'pending', locked_by = NULL, claim_token = claim_token + 1, scheduled_at = 0,
  unique_key = NULL
WHERE id = (SELECT max(id) FROM jobs) RETURNING type, requires, priority;

-- name: count_jobs
SELECT count(*) FROM jobs;
