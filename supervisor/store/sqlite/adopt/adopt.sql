-- Taking over a `jobs` table made by hand. {…} are filled in with quoted names, and with definitions and expressions read
-- from the database or from our own schema.


-- What stands there --------------------------------------------------------------------------------

-- name: objects
SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY rowid;

-- name: kind
SELECT type, wr FROM pragma_table_list WHERE schema = 'main' AND lower(name) = lower(:table);

-- name: columns
SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(:table);

-- name: other_keys
-- Keys that are no integers.
SELECT 1 FROM {table} WHERE typeof({column}) <> 'integer' LIMIT 1;

-- name: found_words
SELECT CAST({column} AS TEXT), count(*) FROM {table} GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 100;

-- name: found_types
SELECT CAST({column} AS TEXT) FROM {table} GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 100;

-- name: written_times
-- Times that are no seconds: texts, or milliseconds.
SELECT 1 FROM {table} WHERE typeof({column}) IN ('text', 'blob')
  OR (typeof({column}) IN ('integer', 'real') AND {column} >= 1e11) LIMIT 1;

-- name: latest_time
SELECT {column} FROM {table} WHERE {column} IS NOT NULL ORDER BY _rowid_ DESC LIMIT 1;

-- name: default_of
SELECT {value};

-- name: pointing_here
SELECT s.name, f."from", upper(f.on_delete)
FROM sqlite_schema s, pragma_foreign_key_list(s.name) f
WHERE s.type = 'table' AND lower(f."table") = lower(:table) AND lower(s.name) <> lower(:table);

-- name: offending
-- Values that a column of ours cannot take.
SELECT shown, count(*) FROM (SELECT {column} AS shown, {value} AS {ours} FROM {table})
WHERE {wrong} GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 5;


-- The new table ------------------------------------------------------------------------------------

-- name: rename_table
-- Whatever refers to the table follows.
ALTER TABLE {table} RENAME TO jobs;

-- name: rename_old_table
-- The old table, until its rows are copied.
ALTER TABLE jobs RENAME TO jobs_before_adopt;

-- name: create
CREATE TABLE jobs (
  {definitions}
);

-- name: copy
INSERT INTO jobs ({columns}) SELECT {values} FROM jobs_before_adopt ORDER BY _rowid_;

-- name: keep_sequence
-- Ids of deleted jobs are not given again.
INSERT INTO sqlite_sequence (name, seq)
SELECT 'jobs', coalesce(max(seq), 0) FROM sqlite_sequence WHERE name IN ('jobs', 'jobs_before_adopt');

-- name: one_sequence
DELETE FROM sqlite_sequence
WHERE name = 'jobs' AND rowid < (SELECT max(rowid) FROM sqlite_sequence WHERE name = 'jobs');

-- name: drop
DROP TABLE jobs_before_adopt;

-- name: now
((julianday('now') - 2440587.5) * 86400.0);

-- name: as_time
-- Unix seconds of a text time, of seconds or of milliseconds; NULL for anything else. julianday wants a colon in a
-- zone like +0200, and would take a plain number for a day.
(SELECT CASE WHEN t >= 0 AND t < 1e11 THEN CAST(t AS REAL) END FROM (SELECT
  CASE WHEN n >= 1e11 THEN n / 1000.0
       WHEN n IS NOT NULL THEN n
       WHEN typeof({value}) <> 'text' THEN NULL
       ELSE (julianday(CASE WHEN {value} GLOB '*:*[+-][0-9][0-9][0-9][0-9]'
                            THEN substr({value}, 1, length({value}) - 2) || ':' || substr({value}, -2)
                            ELSE {value} END) - 2440587.5) * 86400.0 END AS t
  FROM (SELECT CASE WHEN typeof({value}) IN ('integer', 'real') THEN {value}
                    WHEN typeof({value}) = 'text' AND {value} GLOB '[0-9]*' AND {value} NOT GLOB '*[^0-9.]*'
                    THEN CAST({value} AS REAL) END AS n)));

-- name: completed
-- When a finished job ended, as far as the old row tells.
CASE WHEN {status} NOT IN ('pending', 'running') THEN coalesce({sources}, {now}) END;


-- Triggers: the application's form of times, its words, its columns and ids ------------------------

-- name: written_by_us
-- Plain seconds; a column declared TEXT has made text of them.
(NEW.{column} GLOB '[0-9]*' AND NEW.{column} NOT GLOB '*[^0-9.e+]*' AND CAST(NEW.{column} AS REAL) < 1e11);

-- name: trigger
CREATE TRIGGER jobs_{name} AFTER {event} ON jobs WHEN {when} BEGIN
  {checks}
  UPDATE jobs SET {assignments} WHERE id = NEW.id;
END;

-- name: check
-- Refuses the row.
SELECT RAISE(ABORT, {message}) WHERE {when};


-- The view -----------------------------------------------------------------------------------------

-- name: view
CREATE VIEW {view} ({columns}) AS SELECT {values} FROM jobs;

-- name: view_insert
CREATE TRIGGER {name} INSTEAD OF INSERT ON {view} BEGIN
  INSERT INTO jobs ({columns}) VALUES ({values});
END;

-- name: view_update
CREATE TRIGGER {name} INSTEAD OF UPDATE ON {view} BEGIN
  UPDATE jobs SET {assignments} WHERE {key} = OLD.{old_key};
END;

-- name: view_delete
CREATE TRIGGER {name} INSTEAD OF DELETE ON {view} BEGIN
  DELETE FROM jobs WHERE {key} = OLD.{old_key};
END;
