-- What a running job says it is doing: written now and then while it runs, NULL once it has ended.
ALTER TABLE jobs ADD COLUMN progress_text TEXT;
