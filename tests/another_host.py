"""The command `supervisor` as another machine would run it: with a boot of its own, so that pids and locks here tell it
nothing of the others. Arguments: the boot's id, and those of the command.
"""

from __future__ import annotations

import sys

from supervisor.store import ownership

if __name__ == "__main__":
    boot = sys.argv.pop(1)
    ownership._read = lambda path: boot  # type: ignore[assignment]
    from supervisor.__main__ import main

    sys.exit(main())
