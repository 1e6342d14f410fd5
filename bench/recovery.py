"""From the KILL of a worker in its handler to the first line of the job's next run.

python bench/recovery.py [--count 100]
"""

from __future__ import annotations

import argparse
import os
import signal
import time

from common import installation, percentile, supervisor, until

from supervisor import Queue
from supervisor.system.scoreboard import Scoreboard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    options = parser.parse_args()
    with installation('[pools.once]\nhandler = "jobs:once"\nworkers = 2\n') as folder:
        queue = Queue(f"sqlite:///{folder}/app.db")
        queue.enqueue("once", delay="1d")
        with supervisor(folder):
            until(lambda: any(folder.rglob("scoreboard-*")))
            board = Scoreboard.open(next(folder.rglob("scoreboard-*")))
            assert board is not None
            waits = [one_kill(queue, board) for _ in range(options.count)]
        queue.close()
    print(
        f"worker killed → its job runs again: median {percentile(waits, 0.5):.1f} ms   "
        f"p99 {percentile(waits, 0.99):.1f} ms   max {max(waits):.1f} ms   ({len(waits)} kills)"
    )


def one_kill(queue: Queue, board: Scoreboard) -> float:
    """Milliseconds from one kill to the next run."""
    job = queue.enqueue("once")

    def pids() -> list[int]:
        slots = [board.slot(number).read() for number in range(1, board.highest + 1)]
        return [slot.pid for slot in slots if slot.job == job]

    until(lambda: pids())
    killed = time.time()
    os.kill(pids()[0], signal.SIGKILL)
    again: float = queue.wait(job, timeout=10).result
    time.sleep(0.05)  # both workers are idle again
    return (again - killed) * 1000


if __name__ == "__main__":
    main()
