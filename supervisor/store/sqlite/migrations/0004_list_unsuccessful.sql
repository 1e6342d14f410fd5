-- Lists and counts of what went wrong, by type: the latest first without sorting, since the id ends each entry.
CREATE INDEX jobs_unsuccessful_type ON jobs (status, type) WHERE status IN ('failed', 'quarantined');
