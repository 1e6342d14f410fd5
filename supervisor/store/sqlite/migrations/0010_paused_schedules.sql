-- Schedules can be paused, and run by hand: for that, the row holds what the configuration says of its jobs.

ALTER TABLE job_schedules ADD COLUMN type TEXT NOT NULL DEFAULT '';       -- '': no supervisor has told it yet
ALTER TABLE job_schedules ADD COLUMN payload TEXT NOT NULL DEFAULT '{}';
ALTER TABLE job_schedules ADD COLUMN paused_at REAL;                      -- NULL: it fires
