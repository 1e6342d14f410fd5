-- The schema defends claims, also against programs that know nothing of them. Our own statements raise
-- claim_token with every move to running or pending, and change locked_by with every other: a status that
-- changes without is foreign.
-- One trigger before and one after: each further trigger costs every claim and settlement a microsecond.

INSERT INTO job_meta (key, value) VALUES ('foreign_lock_time', '3600');

-- Ignored: a foreign change of a job that one of our workers holds (an application's own "reset running
-- rows at start" must not release them), and a late foreign settlement of a finished job (one recorded
-- outcome a job).
CREATE TRIGGER jobs_defend BEFORE UPDATE OF status ON jobs
WHEN NEW.status IS NOT OLD.status AND NEW.claim_token IS OLD.claim_token
  AND (NEW.locked_by IS OLD.locked_by OR NEW.status IN ('pending', 'running'))
  AND ((OLD.status = 'running' AND OLD.locked_by <> 'foreign')
    OR (OLD.status NOT IN ('pending', 'running') AND NEW.status NOT IN ('pending', 'running')))
BEGIN
  SELECT RAISE(IGNORE);
END;

-- Stamped: a foreign claim becomes an ordinary claim with an expiry; a foreign settlement, release or
-- requeue leaves the row as ours would.
CREATE TRIGGER jobs_stamp AFTER UPDATE OF status ON jobs
WHEN NEW.status IS NOT OLD.status AND NEW.claim_token IS OLD.claim_token
  AND (NEW.locked_by IS OLD.locked_by OR NEW.status IN ('pending', 'running') OR OLD.locked_by = 'foreign')
BEGIN
  UPDATE jobs SET
    locked_by = 'foreign',
    locked_at = (julianday('now') - 2440587.5) * 86400.0,
    lock_expires_at = (julianday('now') - 2440587.5) * 86400.0
      + (SELECT CAST(value AS REAL) FROM job_meta WHERE key = 'foreign_lock_time'),
    started_at = (julianday('now') - 2440587.5) * 86400.0,
    completed_at = NULL,
    claim_token = claim_token + 1
  WHERE id = NEW.id AND NEW.status = 'running';
  UPDATE jobs SET
    locked_by = NULL, locked_at = NULL, lock_expires_at = NULL,
    claim_token = claim_token + 1,
    completed_at = CASE WHEN NEW.status = 'pending' THEN NULL
                        ELSE (julianday('now') - 2440587.5) * 86400.0 END
  WHERE id = NEW.id AND NEW.status <> 'running';
END;
