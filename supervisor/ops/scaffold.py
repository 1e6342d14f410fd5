"""What `supervisor init` writes: a commented configuration and a module with an example task beside it."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.domain.errors import ConfigError, Conflict

CONFIGURATION = """\
# Configuration of job-supervisor. `supervisor check` reports mistakes with their line and key.
# A commented key shows its default.

# The database with the jobs, relative to this file. It may be your application's own SQLite file.
database = "sqlite:///./jobs.db"

# A pool is a set of identical worker processes. This one runs every task of jobs.py. Try it:
#
#     supervisor enqueue greet '{"name": "Ada"}'
#     supervisor run --burst
#     supervisor jobs show 1
#
[pools.default]
tasks = ["jobs"]                # the module jobs.py, beside this file
workers = 2                     # or let the pool follow the load: min_workers = 0, max_workers = 4
# types = ["greet"]             # only these tasks; default: all of the module
# timeout = "2m"                # a job that runs longer is stopped and retried
# max_memory = "2GiB"           # a larger worker is replaced after its job; default: no limit
# retry = { max_attempts = 5, backoff = "exponential", base = "2s", max = "10m", jitter = 0.1 }
# env = {}                      # environment variables of the workers
# options = {}                  # values of your own: ctx.options

# Defaults for all pools.
# [defaults]
# shutdown_grace = "30s"        # how long a stop waits for running jobs

# How long finished jobs are kept; "forever" keeps them.
# [retention]
# done = "7d"
# failed = "30d"

# A dashboard, an HTTP API and metrics; needs `pip install './job-supervisor[admin]'`. The login token is created at
# the first start, in the folder jobs.db-supervisor.
# [admin]
# listen = "127.0.0.1:8787"     # or a Unix socket: "unix:admin.sock"

# [log]
# format = "auto"               # "console" on a terminal, "json" elsewhere
# level = "info"
"""

TASKS = '''\
"""The tasks of this folder's supervisor.toml."""

from supervisor import Context, Fail, task


@task
def greet(ctx: Context, name: str = "world") -> dict:
    """Runs once for each job of the type `greet`; what it returns is stored as the job's result.

    After a crash or a power loss a job runs again, so make the work safe to repeat: `ctx.job_id` stays
    the same.
    """
    if not name:
        raise Fail("name is empty")  # no further attempt: a retry could not succeed
    ctx.progress(0.5, "thinking of a greeting")
    return {"greeting": f"Hello, {name}!"}
'''

FILES = {"supervisor.toml": CONFIGURATION, "jobs.py": TASKS}


def write_starter(folder: Path) -> list[Path]:
    """Write the starter files into `folder`, which is created if necessary, and return their paths.

    Raises Conflict if one of them exists, and ConfigError if they cannot be written; in both cases the
    folder is unchanged.
    """
    files = {folder / name: text for name, text in FILES.items()}
    for path in files:
        if os.path.lexists(path):
            raise Conflict(f"{path} already exists; nothing was written")
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise ConfigError([f"{folder}: the starter files cannot be written: {error.strerror or error}"]) from None
    return written
