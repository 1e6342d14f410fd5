-- Statements of `supervisor move`. What stands in braces is filled in: tables, columns and keys that the schema names.

-- name: columns
SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
WHERE attrelid = to_regclass(:table) AND attnum > 0 AND NOT attisdropped ORDER BY attnum;

-- name: insert
-- Columns whose values are always generated take these, too.
COPY {table} ({columns}) FROM STDIN;

-- name: present
SELECT id FROM jobs WHERE id = ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(:ids::json)));

-- name: sequences
SELECT 'jobs', pg_sequence_last_value(pg_get_serial_sequence('jobs', 'id')::regclass)
UNION ALL
SELECT 'job_errors', pg_sequence_last_value(pg_get_serial_sequence('job_errors', 'id')::regclass)
UNION ALL
SELECT 'job_runs', pg_sequence_last_value(pg_get_serial_sequence('job_runs', 'number')::regclass);

-- name: raise_sequences
SELECT setval(pg_get_serial_sequence('jobs', 'id'), greatest(:jobs, 1), :jobs > 0),
       setval(pg_get_serial_sequence('job_errors', 'id'), greatest(:job_errors, 1), :job_errors > 0),
       setval(pg_get_serial_sequence('job_runs', 'number'), greatest(:job_runs, 1), :job_runs > 0);

-- name: lock
-- Others read; whoever writes waits for the end of the move.
LOCK TABLE jobs, job_supervisors IN EXCLUSIVE MODE;

-- name: shut
-- It waits for transactions that have written, so that their rows are found; it holds up nobody who reads.
CREATE OR REPLACE FUNCTION supervisor_closed_v1() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING MESSAGE = TG_ARGV[0];
END $$;
CREATE OR REPLACE TRIGGER jobs_closed BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON jobs FOR EACH STATEMENT
EXECUTE FUNCTION supervisor_closed_v1({message});
CREATE OR REPLACE TRIGGER supervisors_closed BEFORE INSERT ON job_supervisors FOR EACH STATEMENT
EXECUTE FUNCTION supervisor_closed_v1({message});

-- name: open
DROP TRIGGER IF EXISTS jobs_closed ON jobs;
DROP TRIGGER IF EXISTS supervisors_closed ON job_supervisors;
