"""Several jobs at the same time in one worker: a pool with `concurrency` above 1.

    main thread         the event loop with the async jobs
    threads "jobs-N"    JobThreads: the jobs that are not async
    thread "claims"     Loop, and what it calls of Concurrent: so a slow database never holds up the event loop
    heartbeat thread    Watch: time limits, cancels, progress, and what blocks the event loop

`Runs` are those that have begun, and shows them in the worker's slot; `Calls` calls the handler for each of them.
"""
