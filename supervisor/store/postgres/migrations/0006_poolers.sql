-- As the second version. A worker that is registered claims only while it is, which is decided here, after a lock: behind
-- a pooler, a claim of a dead worker may come late, and its session cannot be found and ended. Without `keep`, jobs that
-- have succeeded are deleted at once, unless somebody waits for the end of a job. The ids are given in ascending order:
-- width_bucket finds the place of one in a few steps. Of a worker that is not registered the last row says so, in which
-- both `id` and `lost` are NULL.
CREATE FUNCTION supervisor_settle_and_claim_v3(
  by_owner text, registered text, keep boolean, at double precision, until double precision,
  ids bigint[], tokens bigint[], results text[], progresses double precision[], starts double precision[],
  wanted text[], capabilities text, want integer,
  in_types text[], in_requires text[], in_priorities integer[], from_times double precision[], from_ids bigint[],
  most bigint)
RETURNS TABLE (id bigint, claim_token bigint, type text, payload text, attempts bigint, max_attempts bigint,
               crashes bigint, scheduled_at double precision, lost boolean, requires text, priority integer)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
  -- A variable: with the word itself the planner would take the index of running jobs, which reads all of them for each.
  held constant text := 'running';
  settled bigint[];
  tier record;
  places bigint[]; -- the groups of a tier, if there are several: once for each row that is wanted of them
  picked tid[];
  changed integer;
  walked bigint;
  token_floor bigint;
  watched boolean;
BEGIN
  -- A crash of the server repeats the last moments' claims and settlements, and loses no job.
  PERFORM set_config('synchronous_commit', 'off', true);
  IF cardinality(ids) > 0 THEN
    watched := (SELECT last_value FROM job_watchers) > extract(epoch FROM clock_timestamp());
    IF watched THEN
      PERFORM pg_notify('job_supervisor', '');
    END IF;
    IF keep OR watched THEN
      WITH ended AS (
        UPDATE jobs SET
          status = 'done', result = results[width_bucket(jobs.id, ids)],
          progress = progresses[width_bucket(jobs.id, ids)], progress_text = NULL,
          started_at = starts[width_bucket(jobs.id, ids)], completed_at = at, updated_at = at,
          locked_by = NULL, locked_at = NULL, lock_expires_at = NULL, last_error = NULL
        WHERE jobs.id = ANY (ids) AND jobs.status = held AND jobs.locked_by = by_owner
          AND jobs.claim_token = tokens[width_bucket(jobs.id, ids)]
        RETURNING jobs.id)
      SELECT coalesce(array_agg(ended.id), '{}') INTO settled FROM ended;
    ELSE
      WITH ended AS (
        DELETE FROM jobs
        WHERE jobs.id = ANY (ids) AND jobs.status = held AND jobs.locked_by = by_owner
          AND jobs.claim_token = tokens[width_bucket(jobs.id, ids)]
        RETURNING jobs.id)
      SELECT coalesce(array_agg(ended.id), '{}') INTO settled FROM ended;
    END IF;
    IF cardinality(settled) < cardinality(ids) THEN
      RETURN QUERY SELECT u.id, NULL::bigint, NULL::text, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint,
                          NULL::double precision, true, NULL::text, NULL::integer
                   FROM unnest(ids) AS u (id) WHERE u.id <> ALL (settled);
    END IF;
  END IF;
  IF want > 0 AND registered IS NOT NULL THEN
    -- Whoever settles what a dead worker held waits for this lock, so that no claim of it is still on its way.
    PERFORM pg_advisory_xact_lock_shared(hashtextextended(registered, 7308604897285366887));
    IF NOT EXISTS (SELECT 1 FROM job_workers w WHERE w.incarnation = registered) THEN
      want := 0; -- a crash of the server has undone it, or others have taken the worker for dead
      RETURN QUERY SELECT NULL::bigint, NULL::bigint, NULL::text, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint,
                          NULL::double precision, NULL::boolean, NULL::text, NULL::integer;
    END IF;
  END IF;
  IF want > 0 THEN
    IF NOT EXISTS (SELECT 1 FROM job_since_crash) THEN
      PERFORM supervisor_after_crash_v1();
    END IF;
    token_floor := (SELECT last_value FROM job_token_floor);
    walked := pg_stat_get_xact_tuples_returned('jobs_pending'::regclass);
    FOR tier IN
      SELECT s.priority, array_agg(s.type) AS types, array_agg(s.requires) AS kinds, array_agg(s.since) AS times,
             array_agg(s.first) AS firsts
      FROM (SELECT g.type, g.requires, g.priority, g.first_at, g.first_id
            FROM supervisor_groups_v2(wanted, capabilities, NULL, NULL, NULL, NULL, NULL) g
            WHERE in_types IS NULL AND g.type IS NOT NULL AND g.first_at <= at
            UNION ALL
            SELECT m.type, m.requires, m.priority, m.since, m.first
            FROM unnest(in_types, in_requires, in_priorities, from_times, from_ids)
                 AS m (type, requires, priority, since, first)
            WHERE NOT EXISTS (SELECT 1 FROM job_controls c WHERE c.kind = 'paused' AND c.name = m.type)
           ) AS s (type, requires, priority, since, first)
      GROUP BY s.priority ORDER BY s.priority DESC
    LOOP
      -- No more rows are locked than are claimed, or others would find none: which groups the first `want` rows are of is
      -- seen before any is locked.
      places := NULL;
      IF cardinality(tier.types) > 1 THEN
        places := ARRAY(
          SELECT g.place
          FROM unnest(tier.types, tier.kinds, tier.times, tier.firsts) WITH ORDINALITY
                 AS g (type, requires, since, first, place),
               LATERAL (SELECT j.scheduled_at, j.id FROM jobs j
                        WHERE j.status = 'pending' AND j.type = g.type AND j.requires = g.requires
                          AND j.priority = tier.priority AND (j.scheduled_at, j.id) >= (g.since, g.first)
                          AND j.scheduled_at <= at
                        ORDER BY j.scheduled_at, j.id LIMIT want) c
          ORDER BY c.scheduled_at, c.id LIMIT want);
      END IF;
      picked := ARRAY(
        SELECT c.ctid
        FROM unnest(tier.types, tier.kinds, tier.times, tier.firsts) WITH ORDINALITY
               AS g (type, requires, since, first, place),
             LATERAL (SELECT j.ctid FROM jobs j
                      WHERE j.status = 'pending' AND j.type = g.type AND j.requires = g.requires
                        AND j.priority = tier.priority AND (j.scheduled_at, j.id) >= (g.since, g.first)
                        AND j.scheduled_at <= at
                      ORDER BY j.scheduled_at, j.id LIMIT coalesce(cardinality(array_positions(places, g.place)), want)
                      FOR NO KEY UPDATE SKIP LOCKED) c
        WHERE places IS NULL OR g.place = ANY (places));
      IF cardinality(picked) < cardinality(places) THEN
        -- Others have locked some of these: one group after the other, until there are enough.
        FOR place IN 1 .. cardinality(tier.types) LOOP
          picked := picked || ARRAY(
            SELECT j.ctid FROM jobs j
            WHERE j.status = 'pending' AND j.type = tier.types[place] AND j.requires = tier.kinds[place]
              AND j.priority = tier.priority AND (j.scheduled_at, j.id) >= (tier.times[place], tier.firsts[place])
              AND j.scheduled_at <= at AND j.ctid <> ALL (picked)
            ORDER BY j.scheduled_at, j.id LIMIT want - cardinality(picked) FOR NO KEY UPDATE SKIP LOCKED);
          EXIT WHEN cardinality(picked) >= want;
        END LOOP;
      END IF;
      CONTINUE WHEN cardinality(picked) = 0;
      RETURN QUERY
      WITH claimed AS (
        UPDATE jobs SET
          status = 'running', locked_by = by_owner, locked_at = at, lock_expires_at = until,
          claim_token = greatest(jobs.claim_token, token_floor) + 1, attempts = jobs.attempts + 1, started_at = at, updated_at = at
        WHERE jobs.ctid = ANY (picked)
        RETURNING jobs.id, jobs.claim_token, jobs.type, jobs.payload, jobs.attempts, jobs.max_attempts, jobs.crashes,
                  jobs.scheduled_at, jobs.requires)
      SELECT c.id, c.claim_token, c.type, c.payload, c.attempts, c.max_attempts, c.crashes, c.scheduled_at, false,
             CASE WHEN in_types IS NOT NULL THEN c.requires END, tier.priority
      FROM claimed c ORDER BY c.scheduled_at, c.id;
      GET DIAGNOSTICS changed = ROW_COUNT;
      IF changed = 0 THEN
        RAISE EXCEPTION 'a trigger ignores the change';
      END IF;
      want := want - changed;
      EXIT WHEN want <= 0;
    END LOOP;
    walked := pg_stat_get_xact_tuples_returned('jobs_pending'::regclass) - walked;
    IF in_types IS NULL AND walked > most THEN
      RETURN QUERY SELECT walked, NULL::bigint, NULL::text, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint,
                          NULL::double precision, NULL::boolean, NULL::text, NULL::integer;
    END IF;
  END IF;
END $$;
