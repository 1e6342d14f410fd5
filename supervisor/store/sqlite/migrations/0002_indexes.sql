-- Every index is partial: a finished job costs nothing, however many there are.

-- Claiming: one seek finds the first due row of a (type, requires, priority) group.
CREATE INDEX jobs_due ON jobs (type, requires, priority DESC, scheduled_at) WHERE status = 'pending';

-- Recovery, renewal and reclaim: what each worker holds.
CREATE INDEX jobs_running ON jobs (locked_by) WHERE status = 'running';

-- At most one unfinished job per type and key.
CREATE UNIQUE INDEX jobs_unique_key ON jobs (type, unique_key)
  WHERE unique_key IS NOT NULL AND status IN ('pending', 'running');

-- What people look for: what went wrong, latest last.
CREATE INDEX jobs_unsuccessful ON jobs (status, completed_at) WHERE status IN ('failed', 'quarantined');

CREATE INDEX job_errors_job ON job_errors (job_id);
CREATE INDEX job_errors_time ON job_errors (created_at);
CREATE INDEX job_workers_supervisor ON job_workers (supervisor);
