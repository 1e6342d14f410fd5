"""The start of a worker in a fresh interpreter, for `start = "spawn"`.

Run by the template as `python -m supervisor.template.spawned FD LINE ADDRESS`: the descriptors of the start data, and
of what tells the supervisor's end; and, in hexadecimal digits, where the admin process is told that jobs were settled.
"""

from __future__ import annotations

import os
import pickle
import sys
from contextlib import suppress

from supervisor.system import child, failpoints, settled_notice
from supervisor.system.scoreboard import Scoreboard
from supervisor.template.image import prepare
from supervisor.template.worker_start import work


def main() -> int:
    """Read what the template left in an anonymous file, and run the worker."""
    with suppress(OSError):
        os.set_inheritable(int(sys.argv[2]), False)
    settled_notice.take_over(bytes.fromhex(sys.argv[3]))
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        # Written by our own parent into memory that no other process can reach.
        spec, path = pickle.load(file)  # noqa: S301
    board = Scoreboard.open(path, writable=True)
    if board is None:
        return 1
    prepare(spec.template.any_pool, spec.template.folder, board.path, spec.engine.url)
    failpoints.become("worker")
    return work(spec, board)


if __name__ == "__main__":
    child.leave(main())
