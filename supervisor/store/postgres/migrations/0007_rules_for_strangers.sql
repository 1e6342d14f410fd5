-- What others do with the table: in sessions with settings of their own, at the same time, and after a restore.

-- A text as JSON, or NULL: what json takes is not all that jsonb can hold, such as \u0000, half a surrogate pair, 1e400000.
CREATE FUNCTION supervisor_json_v1(given text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
  RETURN given::jsonb;
EXCEPTION WHEN others THEN
  RETURN NULL;
END $$;

-- The functions of triggers run with the search path of whoever writes. So they name every table with its schema: that
-- of the table which the trigger is on.
CREATE OR REPLACE FUNCTION supervisor_announce_v1() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- An expression without a query: it costs each insert a few microseconds.
  IF pg_sequence_last_value(format('%I.job_sleepers', TG_TABLE_SCHEMA)::regclass) > extract(epoch FROM clock_timestamp())
  THEN
    PERFORM pg_notify('job_supervisor', '');
  END IF;
  RETURN NULL;
END $$;

-- A claim by another program is one of a pending row. Its UPDATE may have found the row pending, waited for ours, and
-- goes on with what the row is then: without a look of its own, so the trigger looks. What has ended runs again if its
-- status is set to pending.
CREATE FUNCTION supervisor_defend_v2() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  at constant double precision := extract(epoch FROM clock_timestamp());
  lock_time double precision;
BEGIN
  -- Ignored: a claim of what is not pending, a foreign change of a job that one of our workers holds, and a late foreign
  -- settlement of a finished job.
  IF (NEW.status = 'running' AND OLD.status <> 'pending')
     OR ((NEW.locked_by IS NOT DISTINCT FROM OLD.locked_by OR NEW.status = 'pending')
         AND ((OLD.status = 'running' AND OLD.locked_by <> 'foreign')
           OR (OLD.status NOT IN ('pending', 'running') AND NEW.status NOT IN ('pending', 'running')))) THEN
    RETURN NULL;
  END IF;
  -- Stamped: a foreign claim becomes an ordinary claim with an expiry; a foreign settlement, release or requeue
  -- leaves the row as ours would.
  NEW.claim_token := OLD.claim_token + 1;
  IF NEW.status = 'running' THEN
    EXECUTE format('SELECT value::double precision FROM %I.job_meta WHERE key = ''foreign_lock_time''', TG_TABLE_SCHEMA)
    INTO lock_time;
    NEW.locked_by := 'foreign';
    NEW.locked_at := at;
    NEW.lock_expires_at := at + lock_time;
    NEW.started_at := at;
    NEW.completed_at := NULL;
  ELSE
    NEW.locked_by := NULL;
    NEW.locked_at := NULL;
    NEW.lock_expires_at := NULL;
    NEW.completed_at := CASE WHEN NEW.status = 'pending' THEN NULL ELSE at END;
  END IF;
  RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER jobs_defend BEFORE UPDATE OF status ON jobs FOR EACH ROW
WHEN (NEW.claim_token IS NOT DISTINCT FROM OLD.claim_token
      AND (NEW.status = 'running'
           OR (NEW.status IS DISTINCT FROM OLD.status
               AND (NEW.locked_by IS NOT DISTINCT FROM OLD.locked_by OR NEW.status = 'pending'
                    OR OLD.locked_by = 'foreign'))))
EXECUTE FUNCTION supervisor_defend_v2();
