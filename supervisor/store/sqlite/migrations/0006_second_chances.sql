-- Failed jobs that went back to pending by themselves, and how often: retry_failed_times is the limit.

CREATE TABLE job_second_chances (
  job_id INTEGER PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
  used   INTEGER NOT NULL
) STRICT;
