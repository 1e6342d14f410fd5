"""Several jobs at the same time in one worker: a pool with `concurrency` above 1.

The main thread runs the event loop with the async jobs; threads run the others. A thread of its own claims and settles,
so that a slow database never holds up the loop. The heartbeat thread enforces time limits and cancels.
"""
