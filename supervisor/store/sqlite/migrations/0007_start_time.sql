-- With the pid alone a stranger that has the number later would be taken for the worker: clock ticks from the boot to
-- its start, as in the 22nd field of /proc/PID/stat.

ALTER TABLE job_workers ADD COLUMN pid_started INTEGER;
