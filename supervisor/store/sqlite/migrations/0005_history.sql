-- The last hour in minutes, so that charts need no scraper.

CREATE TABLE job_history (
  minute       REAL NOT NULL,     -- when it began
  type         TEXT NOT NULL,     -- '' for those beyond the 50 busiest
  done         INTEGER NOT NULL,
  failed       INTEGER NOT NULL,
  waiting      INTEGER NOT NULL,  -- due at its end
  running      INTEGER NOT NULL,  -- at its end
  run_seconds  REAL NOT NULL,
  wait_seconds REAL NOT NULL,
  PRIMARY KEY (minute, type)
) STRICT, WITHOUT ROWID;

-- What of a supervisor's tallies stands in the history, as JSON; it changes with the rows that were written, or
-- neither does.
ALTER TABLE job_supervisors ADD COLUMN counted TEXT NOT NULL DEFAULT '{}';
