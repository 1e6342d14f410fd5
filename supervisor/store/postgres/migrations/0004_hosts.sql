-- What other hosts must know of a supervisor, since they cannot read its scoreboard: written with its lease.
ALTER TABLE job_supervisors
  ADD COLUMN node   text, -- its machine and the space of its pids: where they mean the same
  ADD COLUMN posted text; -- JSON: its status, and what its workers run
