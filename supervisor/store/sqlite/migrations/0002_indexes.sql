-- Every index is partial: a finished job costs nothing, however many there are.

-- Claiming: one seek finds the first due row of a (type, requires, priority) group. What runs stands right
-- before what waits, so a claim and its settlement change one page of one index.
CREATE INDEX jobs_unfinished ON jobs (type, requires, priority DESC, status DESC, scheduled_at)
  WHERE status = 'pending' OR status = 'running';

-- Recovery, renewal and reclaim: every running job, by one seek a group.
CREATE VIEW jobs_held AS
WITH RECURSIVE
types (type) AS (
  SELECT (SELECT type FROM jobs INDEXED BY jobs_unfinished
          WHERE status = 'pending' OR status = 'running' ORDER BY type LIMIT 1)
  UNION ALL
  SELECT (SELECT j.type FROM jobs j INDEXED BY jobs_unfinished
          WHERE j.type > t.type AND (j.status = 'pending' OR j.status = 'running') ORDER BY j.type LIMIT 1)
  FROM types t WHERE t.type IS NOT NULL
),
kinds (type, requires) AS (
  SELECT t.type, (SELECT j.requires FROM jobs j INDEXED BY jobs_unfinished
                  WHERE j.type = t.type AND (j.status = 'pending' OR j.status = 'running')
                  ORDER BY j.requires LIMIT 1)
  FROM types t WHERE t.type IS NOT NULL
  UNION ALL
  SELECT k.type, (SELECT j.requires FROM jobs j INDEXED BY jobs_unfinished
                  WHERE j.type = k.type AND j.requires > k.requires
                    AND (j.status = 'pending' OR j.status = 'running')
                  ORDER BY j.requires LIMIT 1)
  FROM kinds k WHERE k.requires IS NOT NULL
),
groups (type, requires, priority) AS (
  SELECT k.type, k.requires, (SELECT j.priority FROM jobs j INDEXED BY jobs_unfinished
                              WHERE j.type = k.type AND j.requires = k.requires
                                AND (j.status = 'pending' OR j.status = 'running')
                              ORDER BY j.priority DESC LIMIT 1)
  FROM kinds k WHERE k.requires IS NOT NULL
  UNION ALL
  SELECT g.type, g.requires, (SELECT j.priority FROM jobs j INDEXED BY jobs_unfinished
                              WHERE j.type = g.type AND j.requires = g.requires AND j.priority < g.priority
                                AND (j.status = 'pending' OR j.status = 'running')
                              ORDER BY j.priority DESC LIMIT 1)
  FROM groups g WHERE g.priority IS NOT NULL
)
SELECT j.* FROM groups g CROSS JOIN jobs j INDEXED BY jobs_unfinished
WHERE j.type = g.type AND j.requires = g.requires AND j.priority = g.priority AND j.status = 'running';

-- At most one unfinished job per type and key.
CREATE UNIQUE INDEX jobs_unique_key ON jobs (type, unique_key)
  WHERE unique_key IS NOT NULL AND status IN ('pending', 'running');

-- What people look for: what went wrong, latest last.
CREATE INDEX jobs_unsuccessful ON jobs (status, completed_at) WHERE status IN ('failed', 'quarantined');

CREATE INDEX job_errors_job ON job_errors (job_id);
CREATE INDEX job_errors_time ON job_errors (created_at);
CREATE INDEX job_workers_supervisor ON job_workers (supervisor);
