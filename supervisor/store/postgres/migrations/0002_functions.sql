-- The functions carry a version in their names: an older release of the program calls the one that it knows.

-- Whether these capabilities meet what a job requires. Both are words, in any order and spacing.
CREATE FUNCTION supervisor_covers_v1(capabilities text, requires text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT requires = '' OR requires !~ '\S'
      OR regexp_split_to_array(btrim(requires, E' \t\n\r\f\v'), '\s+')
         <@ regexp_split_to_array(btrim(capabilities, E' \t\n\r\f\v'), '\s+')
$$;

-- Each (type, requires, priority) that has pending rows for these types and capabilities, with the time of its first
-- row; paused types have none. Loose index scans: one seek for each, whatever the number of rows. The planner's
-- settings are pinned, here and below: it would otherwise take its plan from what the table was like when it was last
-- analysed, which may have been empty.
CREATE FUNCTION supervisor_groups_v1(wanted text[], capabilities text)
RETURNS TABLE (type text, requires text, priority integer, first_at double precision)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH RECURSIVE
  kinds (type, requires) AS (
    SELECT w.type, (SELECT j.requires FROM jobs j WHERE j.status = 'pending' AND j.type = w.type
                    ORDER BY j.requires LIMIT 1)
    FROM unnest(wanted) AS w (type)
    WHERE NOT EXISTS (SELECT 1 FROM job_controls c WHERE c.kind = 'paused' AND c.name = w.type)
    UNION ALL
    SELECT k.type, (SELECT j.requires FROM jobs j
                    WHERE j.status = 'pending' AND j.type = k.type AND j.requires > k.requires
                    ORDER BY j.requires LIMIT 1)
    FROM kinds k WHERE k.requires IS NOT NULL
  ),
  groups (type, requires, priority) AS (
    SELECT k.type, k.requires, (SELECT j.priority FROM jobs j
                                WHERE j.status = 'pending' AND j.type = k.type AND j.requires = k.requires
                                ORDER BY j.priority DESC LIMIT 1)
    FROM kinds k WHERE k.requires IS NOT NULL AND (k.requires = '' OR supervisor_covers_v1(capabilities, k.requires))
    UNION ALL
    SELECT g.type, g.requires, (SELECT j.priority FROM jobs j
                                WHERE j.status = 'pending' AND j.type = g.type AND j.requires = g.requires
                                  AND j.priority < g.priority
                                ORDER BY j.priority DESC LIMIT 1)
    FROM groups g WHERE g.priority IS NOT NULL
  )
  SELECT g.type, g.requires, g.priority,
         (SELECT j.scheduled_at FROM jobs j
          WHERE j.status = 'pending' AND j.type = g.type AND j.requires = g.requires AND j.priority = g.priority
          ORDER BY j.scheduled_at, j.id LIMIT 1)
  FROM groups g WHERE g.priority IS NOT NULL;
END $$;

-- Settle plain successes and claim the next jobs, in one round trip. Not one statement: its parts would share a
-- snapshot, and the claim would not see what the settlement has inserted or freed.
-- Returns the jobs whose claim was lost (lost is true), then the new claims, best first.
CREATE FUNCTION supervisor_settle_and_claim_v1(
  by_owner text, at double precision, until double precision,
  ids bigint[], tokens bigint[], results text[], progresses double precision[], starts double precision[],
  wanted text[], capabilities text, want integer)
RETURNS TABLE (lost boolean, id bigint, claim_token bigint, type text, payload text, attempts bigint,
               max_attempts bigint, crashes bigint, scheduled_at double precision)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
  -- A variable: with the word itself the planner would take the index of running jobs, which reads all of them for each.
  held constant text := 'running';
  settled bigint[];
  tier record;
  picked tid[];
  changed integer;
BEGIN
  -- A crash of the server repeats the last moments' claims and settlements, and loses no job.
  PERFORM set_config('synchronous_commit', 'off', true);
  IF cardinality(ids) > 0 THEN
    IF (SELECT last_value FROM job_watchers) > extract(epoch FROM clock_timestamp()) THEN
      PERFORM pg_notify('job_supervisor', '');
    END IF;
    WITH ended AS (
      UPDATE jobs SET
        status = 'done', result = results[array_position(ids, jobs.id)],
        progress = progresses[array_position(ids, jobs.id)], progress_text = NULL,
        started_at = starts[array_position(ids, jobs.id)], completed_at = at, updated_at = at,
        locked_by = NULL, locked_at = NULL, lock_expires_at = NULL, last_error = NULL
      WHERE jobs.id = ANY (ids) AND jobs.status = held AND jobs.locked_by = by_owner
        AND jobs.claim_token = tokens[array_position(ids, jobs.id)]
      RETURNING jobs.id)
    SELECT coalesce(array_agg(ended.id), '{}') INTO settled FROM ended;
    IF cardinality(settled) < cardinality(ids) THEN
      RETURN QUERY SELECT true, u.id, NULL::bigint, NULL::text, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint,
                          NULL::double precision
                   FROM unnest(ids) AS u (id) WHERE u.id <> ALL (settled);
    END IF;
  END IF;
  IF want > 0 THEN
    FOR tier IN
      SELECT g.priority, array_agg(g.type) AS types, array_agg(g.requires) AS kinds
      FROM supervisor_groups_v1(wanted, capabilities) g WHERE g.first_at <= at
      GROUP BY g.priority ORDER BY g.priority DESC
    LOOP
      picked := ARRAY(
        SELECT c.ctid
        FROM unnest(tier.types, tier.kinds) AS g (type, requires),
             LATERAL (SELECT j.ctid, j.scheduled_at, j.id FROM jobs j
                      WHERE j.status = 'pending' AND j.type = g.type AND j.requires = g.requires
                        AND j.priority = tier.priority AND j.scheduled_at <= at
                      ORDER BY j.scheduled_at, j.id LIMIT want FOR NO KEY UPDATE SKIP LOCKED) c
        ORDER BY c.scheduled_at, c.id LIMIT want);
      CONTINUE WHEN cardinality(picked) = 0;
      RETURN QUERY
      WITH claimed AS (
        UPDATE jobs SET
          status = 'running', locked_by = by_owner, locked_at = at, lock_expires_at = until,
          claim_token = jobs.claim_token + 1, attempts = jobs.attempts + 1, started_at = at, updated_at = at
        WHERE jobs.ctid = ANY (picked)
        RETURNING jobs.id, jobs.claim_token, jobs.type, jobs.payload, jobs.attempts, jobs.max_attempts, jobs.crashes,
                  jobs.scheduled_at)
      SELECT false, c.* FROM claimed c ORDER BY c.scheduled_at, c.id;
      GET DIAGNOSTICS changed = ROW_COUNT;
      IF changed = 0 THEN
        RAISE EXCEPTION 'a trigger ignores the change';
      END IF;
      want := want - changed;
      EXIT WHEN want <= 0;
    END LOOP;
  END IF;
END $$;
