-- Requests that are repeated find the job of the first one, also after its end. Only keys of requests are in here: other
-- jobs cost nothing.
CREATE INDEX jobs_once ON jobs (type, unique_key) WHERE unique_key >= 'run:' AND unique_key < 'run;';
