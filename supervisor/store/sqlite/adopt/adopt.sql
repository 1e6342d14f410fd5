-- Taking over a `jobs` table made by hand. {…} are filled in with quoted names and with definitions read
-- from the database or from our own migrations.


-- What stands there --------------------------------------------------------------------------------

-- name: objects
SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY rowid;

-- name: kind
SELECT type, wr, strict FROM pragma_table_list WHERE schema = 'main' AND lower(name) = lower(:table);

-- name: columns
SELECT name, type, pk, hidden FROM pragma_table_xinfo(:table);

-- name: rows
SELECT count(*) FROM {table};

-- name: other_keys
-- Keys that are no integers.
SELECT count(*) FROM {table} WHERE typeof({column}) <> 'integer';

-- name: found_words
SELECT CAST({column} AS TEXT), count(*) FROM {table} GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 100;

-- name: found_types
SELECT CAST({column} AS TEXT), count(*) FROM {table} GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 21;

-- name: has_type
SELECT EXISTS (SELECT 1 FROM {table} WHERE {column} = :type);

-- name: written_times
-- Times that are no seconds: texts, or milliseconds.
SELECT EXISTS (SELECT 1 FROM {table} WHERE typeof({column}) IN ('text', 'blob')
               OR (typeof({column}) IN ('integer', 'real') AND {column} >= 1e11));

-- name: pointing_here
SELECT s.name, f."from", upper(f.on_delete)
FROM sqlite_schema s, pragma_foreign_key_list(s.name) f
WHERE s.type = 'table' AND lower(f."table") = lower(:table) AND lower(s.name) <> lower(:table);

-- name: sequence
SELECT seq FROM sqlite_sequence WHERE lower(name) = 'jobs';

-- name: offending
-- Values that a column of ours cannot take, by its own CHECK.
SELECT {column}, count(*) FROM (SELECT {shown} AS {column}, {value} AS {ours} FROM {table})
WHERE ({ours} IS NULL AND NOT {optional})
   OR ({ours} IS NOT NULL AND (typeof({ours}) <> '{type}' OR NOT {check}))
GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 5;

-- name: beyond
SELECT count(*) FROM (SELECT {value} AS {ours} FROM {table}) WHERE NOT {check};

-- name: no_times
SELECT {column}, count(*) FROM {table} WHERE {column} IS NOT NULL AND {column} <> '' AND {value} IS NULL
GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 5;

-- name: samples
-- One value of each kind that the application has stored in a column, the latest of each.
SELECT {column}, max(_rowid_) FROM {table} GROUP BY typeof({column});

-- name: latest_row
SELECT {columns} FROM {table} ORDER BY _rowid_ DESC LIMIT 1;

-- name: latest_time
SELECT {column} FROM {table} WHERE {column} IS NOT NULL ORDER BY _rowid_ DESC LIMIT 1;

-- name: default_of
SELECT {value};


-- The new table ------------------------------------------------------------------------------------

-- name: rename_table
-- Whatever refers to the table follows.
ALTER TABLE {table} RENAME TO jobs;

-- name: rename_old_table
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
INSERT INTO jobs ({columns}) SELECT {values} FROM jobs_before_adopt ORDER BY _rowid_;

-- name: drop
DROP TABLE jobs_before_adopt;

-- name: keep_sequence
UPDATE sqlite_sequence SET seq = max(seq, :seq) WHERE name = 'jobs';

-- name: add_sequence
INSERT INTO sqlite_sequence (name, seq)
SELECT 'jobs', :seq WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'jobs');

-- name: as_text
CAST({value} AS TEXT);

-- name: as_integer
CAST({value} AS INTEGER);

-- name: as_counter
max(0, min(CAST({value} AS INTEGER), 1000000));

-- name: as_real
CAST({value} AS REAL);

-- name: as_limit
CASE WHEN CAST({value} AS INTEGER) >= 1 THEN CAST({value} AS INTEGER) END;

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
CASE WHEN {status} NOT IN ('pending', 'running') THEN coalesce({sources}, :now) END;

-- name: or_now
coalesce({value}, :now);

-- name: no_later
min({value}, :now);


-- The application's own form of times --------------------------------------------------------------

-- name: form_text
strftime('{form}', CAST({value} AS REAL), 'unixepoch');

-- name: form_milliseconds
CAST(round({value} * 1000) AS INTEGER);

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


-- The application's words, columns and ids ----------------------------------------------------------

-- name: words
CASE CAST({value} AS TEXT) {cases} ELSE {value} END;

-- name: word
WHEN {word} THEN {new};

-- name: states_and_words
-- Our states, and for a moment the words that triggers replace.
CHECK ({check} OR status IN ({words}));

-- name: words_insert
CREATE TRIGGER jobs_words_insert AFTER INSERT ON jobs WHEN {foreign} BEGIN
  UPDATE jobs SET {assignments} WHERE id = NEW.id;
END;

-- name: words_update
CREATE TRIGGER jobs_words_update AFTER UPDATE OF {columns} ON jobs WHEN {foreign} BEGIN
  UPDATE jobs SET {assignments} WHERE id = NEW.id;
END;

-- name: is_foreign
NEW.{column} IN ({words});

-- name: kept_insert
-- A column of the application's and ours of the same meaning: whichever was written fills the other.
CREATE TRIGGER jobs_kept_insert AFTER INSERT ON jobs BEGIN
  {checks}
  UPDATE jobs SET {assignments} WHERE id = NEW.id;
END;

-- name: kept_update
CREATE TRIGGER jobs_kept_update AFTER UPDATE OF {columns} ON jobs WHEN {differs} BEGIN
  UPDATE jobs SET {assignments} WHERE id = NEW.id;
END;

-- name: no_time
SELECT RAISE(ABORT, {message}) WHERE NEW.{column} <> '' AND {value} IS NULL;

-- name: no_type
SELECT RAISE(ABORT, {message}) WHERE NEW.{column} IS NULL AND NEW.type = '-';

-- name: filled
{column} = coalesce({first}, {second});

-- name: differs
((NEW.{column} IS NOT OLD.{column} OR NEW.{ours} IS NOT OLD.{ours}) AND {value} IS NOT NEW.{ours});

-- name: follow_theirs
{ours} = CASE WHEN NEW.{column} IS NOT OLD.{column} THEN coalesce({value}, {ours}) ELSE {ours} END;

-- name: follow_ours
{column} = CASE WHEN NEW.{column} IS NOT OLD.{column} THEN {column} WHEN {differs} THEN {back} ELSE {column} END;

-- name: view
CREATE VIEW {view} ({columns}) AS SELECT {values} FROM jobs;

-- name: as_it_was
-- The original, as long as ours is what it was read as.
CASE WHEN {value} IS {ours} THEN {column} ELSE {back} END;

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

-- name: if_changed
{column} = CASE WHEN NEW.{old} IS NOT OLD.{old} THEN {value} ELSE {column} END;

-- name: or_default
coalesce({value}, {default});


-- What such an application runs --------------------------------------------------------------------

-- name: try_insert
INSERT INTO {table} ({type}, {payload}) VALUES ('tag', '{{"path": "cat.jpg"}}');

-- name: try_delete_row
DELETE FROM jobs WHERE id = (SELECT max(id) FROM jobs);

-- name: try_insert_like
INSERT INTO {table} ({columns}) VALUES ({marks});

-- name: try_claim
UPDATE {table} SET {status} = {running}{touch}
WHERE {key} = (SELECT {key} FROM {table} WHERE {status} = {pending} ORDER BY {key} LIMIT 1) RETURNING *;

-- name: try_done
UPDATE {table} SET {status} = {done}{touch} WHERE {key} = {latest};

-- name: try_failed
UPDATE {table} SET {status} = {failed}{touch} WHERE {key} = {latest};

-- name: try_reset
UPDATE {table} SET {status} = {pending} WHERE {status} = {running};

-- name: try_select
SELECT {key}, {type}, {payload}, {status} FROM {table} WHERE {status} = {pending} ORDER BY {key};

-- name: try_delete
DELETE FROM {table} WHERE {status} = {done};

-- name: try_view
SELECT * FROM {view};

-- name: try_value
UPDATE {table} SET {column} = :value WHERE {key} = {latest};

-- name: latest
(SELECT max({key}) FROM {table});

-- name: touch
, {column} = CURRENT_TIMESTAMP;

-- name: count_attempt
, {column} = {column} + 1;

-- name: write_error
, {column} = 'no such file';

-- name: make_pending
-- For a trial of our own statements on a row of the application's.
UPDATE jobs SET status = 'pending', locked_by = NULL, claim_token = claim_token + 1, scheduled_at = 0,
  unique_key = NULL
WHERE id = (SELECT max(id) FROM jobs) RETURNING type, requires, priority;
