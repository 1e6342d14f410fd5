-- The schema defends claims, also against programs that know nothing of them. Our own statements raise claim_token
-- with every move to running or pending, and change locked_by with every other: a status that changes without is
-- foreign. The condition is part of the trigger, so that our own changes do not call the function.
CREATE FUNCTION supervisor_defend_v1() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  at constant double precision := extract(epoch FROM clock_timestamp());
BEGIN
  -- Ignored: a foreign change of a job that one of our workers holds, and a late foreign settlement of a finished job.
  IF (NEW.locked_by IS NOT DISTINCT FROM OLD.locked_by OR NEW.status IN ('pending', 'running'))
     AND ((OLD.status = 'running' AND OLD.locked_by <> 'foreign')
       OR (OLD.status NOT IN ('pending', 'running') AND NEW.status NOT IN ('pending', 'running'))) THEN
    RETURN NULL;
  END IF;
  -- Stamped: a foreign claim becomes an ordinary claim with an expiry; a foreign settlement, release or requeue
  -- leaves the row as ours would.
  NEW.claim_token := OLD.claim_token + 1;
  IF NEW.status = 'running' THEN
    NEW.locked_by := 'foreign';
    NEW.locked_at := at;
    NEW.lock_expires_at := at + (SELECT value::double precision FROM job_meta WHERE key = 'foreign_lock_time');
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

CREATE TRIGGER jobs_defend BEFORE UPDATE OF status ON jobs FOR EACH ROW
WHEN (NEW.status IS DISTINCT FROM OLD.status AND NEW.claim_token IS NOT DISTINCT FROM OLD.claim_token
      AND (NEW.locked_by IS NOT DISTINCT FROM OLD.locked_by OR NEW.status IN ('pending', 'running')
           OR OLD.locked_by = 'foreign'))
EXECUTE FUNCTION supervisor_defend_v1();

-- A notification takes a lock for the whole cluster until after the commit, so it is sent only while somebody sleeps.
CREATE FUNCTION supervisor_announce_v1() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (SELECT last_value FROM job_sleepers) > extract(epoch FROM clock_timestamp()) THEN
    PERFORM pg_notify('job_supervisor', '');
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER jobs_announce AFTER INSERT ON jobs FOR EACH STATEMENT EXECUTE FUNCTION supervisor_announce_v1();
CREATE TRIGGER controls_announce AFTER INSERT OR UPDATE OR DELETE ON job_controls FOR EACH STATEMENT
EXECUTE FUNCTION supervisor_announce_v1();
