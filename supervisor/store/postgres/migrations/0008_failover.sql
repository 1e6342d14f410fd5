-- A standby that takes the place of the primary may lack its latest commits. What these had given out must not be given
-- out again: ids, for which programs wait and under which services remember a job, and tokens of claims.

CREATE FUNCTION supervisor_timeline_v1() RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint
$$;

-- Of the server's log, in which the ids are given out: each promotion begins another one.
CREATE SEQUENCE job_timeline MINVALUE 0 START 0;
SELECT setval('job_timeline', supervisor_timeline_v1());
GRANT SELECT ON SEQUENCE job_timeline TO PUBLIC; -- a program that only enqueues looks at it

-- In a new timeline ids go on far above what the lost commits can have used. Who does so twice does no harm. With the
-- owner's rights, since programs that only enqueue cannot set a sequence.
CREATE FUNCTION supervisor_continue_ids_v1() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  ids constant regclass := pg_get_serial_sequence('jobs', 'id');
BEGIN
  IF (SELECT last_value FROM job_timeline) <> supervisor_timeline_v1() THEN
    PERFORM setval(ids, nextval(ids) + 10000000);
    PERFORM setval('job_timeline', supervisor_timeline_v1());
  END IF;
END $$;

CREATE FUNCTION supervisor_before_insert_v1() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- With the schema named: this runs with the search path of whoever writes.
  IF pg_sequence_last_value(format('%I.job_timeline', TG_TABLE_SCHEMA)::regclass)
     <> ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint THEN
    EXECUTE format('SELECT %I.supervisor_continue_ids_v1()', TG_TABLE_SCHEMA);
  END IF;
  RETURN NULL;
END $$;

-- For each statement: before its rows take their ids.
CREATE TRIGGER jobs_continue BEFORE INSERT ON jobs FOR EACH STATEMENT EXECUTE FUNCTION supervisor_before_insert_v1();

-- As before, and at least what the clock says: the floor itself may be among what a standby lacks.
CREATE OR REPLACE FUNCTION supervisor_after_crash_v1() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(7308604897285366886);
  IF NOT EXISTS (SELECT 1 FROM job_since_crash) THEN
    PERFORM setval('job_token_floor', greatest((SELECT last_value FROM job_token_floor) + 4294967296,
                                               floor(extract(epoch FROM clock_timestamp()) * 1048576)::bigint));
    INSERT INTO job_since_crash VALUES (true);
    PERFORM set_config('synchronous_commit', 'on', true); -- the next crash must not undo this
  END IF;
END $$;
