"""job-supervisor: what enqueues; its workers are those of `supervisor run`."""

import os
import sys

from driver import drive

from supervisor import Queue
from supervisor.engine import open_engine

if sys.argv[1] == "setup":
    open_engine(os.environ["BENCH_POSTGRES"]).database.migrate()
else:
    queue = Queue(os.environ["BENCH_POSTGRES"])
    drive(
        lambda: queue.enqueue("noop"),
        lambda number: queue.enqueue("arrive", {"number": number}),
        lambda count: [queue.enqueue_many("noop", [{}] * min(1000, count - at)) for at in range(0, count, 1000)],
        lambda: queue.enqueue("slow"),
    )
