"""The supervisor: it starts, watches, replaces and stops the processes. In the order in which one reads it:

1. `supervisor`: the loop. Wait; hear the maintainer, the admin process, the templates; once a tick look around; watch
   the workers; bring the pools to their size; post the state. Then reload and stop.
2. `maintainer_client`: recovery comes first, and every death is reported until it is settled. Until a maintainer has
   recovered what dead supervisors have left, nothing is forked.
3. `workforce`: the pools with all that is done to them in one pass of the loop, in its order.
4. `pool`: one pool. Its code (`release`: candidate, serving, outgoing, retired), its workers, its scale, and what it
   remembers of deaths. How many workers it wants is a pure function in `domain.scaling`.
5. `plan`: from these, how many workers start now, with which code; who leaves; which spare serves.
6. `staffing`: carries the plan out. It asks `templates` for workers and obeys their answers.
7. `worker_process`: one worker, from its request to its end.
8. `watchdog`: what workers have done since the last look; heartbeats, teardowns, memory, and the time limits of runs
   (`time_limits`). It kills, and says why.
9. `ends`: an end is noticed through a pidfd, explained, reported, and made up for. `exit_reason` decides as a pure
   function what a worker died of, which run is charged, and what follows for its pool.
10. `stopping`: how the supervisor ends.

Beside that road, each behind a few calls: `budget` and what it uses (who may have how much memory),
`database_health` (the locks of the database, as seen from outside), `worker_output` (what workers print), `reloading`,
`burst`, `admin_process`, `pools` (all of them, and what `status` shows), `supervised_process` (a child that is replaced
when it dies or hangs) and `service` (descriptors, times, signals, log, systemd).
"""
