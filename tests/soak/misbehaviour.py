"""What handlers and statements do wrong in a soak: jobs of the type `bad`, each in one of these ways, beside innocent
jobs of the type `beside` on the same workers; and every statement and message that fails now and then.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Mapping
from pathlib import Path

from supervisor.system.failpoints import VARIABLE

POOL = """
[pools.mixed]
types = ["bad", "beside"]
handler = "jobs:mixed"
workers = 2
timeout = "3s"
max_crashes = 4
max_jobs_per_worker = 200
"""
MOST_ATTEMPTS = 2  # of a bad job; innocent ones have as many as they like

HANDLERS = """
import json, resource, signal, sqlite3, subprocess, sys, threading

kept = []

def fork(end):
    if os.fork() == 0:
        end()

def raises():
    raise ValueError("in the child")

def lock():
    kept.append(sqlite3.connect("DATABASE", isolation_level=None, timeout=1))
    kept[-1].execute("BEGIN IMMEDIATE")

def replace(module, name):
    setattr(module, name, None)

def deaf():
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))

def stay():
    os.umask(0o777)
    os.chdir("/")
    os.nice(5)
    os.environ.clear()
    sys.setrecursionlimit(80)

WAYS = {
    "forks, and the child returns": lambda: fork(lambda: None),
    "forks, and the child raises": lambda: fork(raises),
    "forks, and the child exits": lambda: fork(sys.exit),
    "kills its group": lambda: os.kill(0, signal.SIGKILL),
    "ends its group from a shell": lambda: subprocess.run(["sh", "-c", 'trap "kill 0" EXIT; true']),
    "kills its child's group": lambda: os.killpg(os.getpgid(subprocess.Popen(["sleep", "60"]).pid), signal.SIGTERM),
    "leaks descriptors": lambda: kept.extend(os.open("/", os.O_RDONLY) for _ in range(200)),
    "leaks threads": lambda: [threading.Thread(target=time.sleep, args=(60,), daemon=True).start() for _ in range(9)],
    "leaks memory": lambda: kept.append(bytearray(5_000_000)),
    "leaks a process": lambda: kept.append(subprocess.Popen(["sleep", "600"], start_new_session=True)),
    "closes all descriptors": lambda: os.closerange(0, 4096),
    "replaces time.time": lambda: replace(time, "time"),
    "replaces json.dumps": lambda: replace(json, "dumps"),
    "keeps the write lock": lock,
    "floods stdout": lambda: print("x" * 3_000_000),
    "floods stderr": lambda: [sys.stderr.write("y" * 99 + "\\n") for _ in range(20_000)],
    "ignores every signal": deaf,
    "changes its process": stay,
    "limits files": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)),
    "kills its template": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "hangs": lambda: time.sleep(600),
    "exits": lambda: sys.exit(3),
    "ends its process": lambda: os._exit(0),
}

def mixed(payload, ctx):
    if ctx.type == "beside":
        return work(payload, ctx)
    record("start", ctx)
    WAYS[payload["way"]]()
"""

# What is another thing on a server: a row of the application's stays locked, and nobody else is held up.
LOCK_ON_A_SERVER = """
def lock():
    import psycopg
    kept.append(psycopg.connect("URL", connect_timeout=5))
    kept[-1].execute("SELECT id FROM jobs WHERE status = 'pending' LIMIT 1 FOR UPDATE")
"""


def handlers(engine: str) -> str:
    return HANDLERS if engine == "sqlite" else HANDLERS.replace("\nWAYS = {", f"{LOCK_ON_A_SERVER}\nWAYS = {{")


# The names of the ways, as HANDLERS has them; few of those that hold everybody up for seconds.
SELDOM = {"keeps the write lock": 0.2, "kills its template": 0.3, "ignores every signal": 0.3, "hangs": 0.3}
WAYS = [line.split('"')[1] for line in HANDLERS.partition("WAYS = {")[2].partition("\n}")[0].splitlines()[1:]]

# Each time one of so many statements or messages is passed.
CHANCES = {
    "maintainer:*=fail:busy": 0.002,
    "maintainer:*=fail:full": 0.0005,
    "maintainer:*=fail:error": 0.0005,
    "worker:*=fail:busy": 0.0005,
    "worker:*=fail:full": 0.0002,
    "worker:*=fail:error": 0.0002,
    "admin:*=fail:busy": 0.001,
    "channel.*=fail:EAGAIN": 0.01,
    "channel.*=fail:EINTR": 0.01,
    "channel.send.*=fail:ENOBUFS": 0.002,
    "template:fork_worker.before=fail:EAGAIN": 0.02,
}
ON_A_SERVER = {
    "maintainer:*=fail:lost": 0.001,
    "maintainer:*=fail:shutdown": 0.0005,
    "maintainer:*=fail:deadlock": 0.001,
    "worker:*=fail:lost": 0.0005,
    "worker:*=fail:shutdown": 0.0002,
    "worker:*=fail:deadlock": 0.0005,
    "worker:*=fail:connections": 0.0002,
    "admin:*=fail:lost": 0.001,
}


class Misbehaviour:
    """Off, it adds nothing at all."""

    def __init__(self, on: bool, folder: Path, seed: int, dice: random.Random, engine: str = "sqlite") -> None:
        self._on = on
        self._chances = CHANCES if engine == "sqlite" else CHANCES | ON_A_SERVER
        self._folder = folder
        self._seed = seed
        self._dice = dice
        self.ways: collections.Counter[str] = collections.Counter()
        folder.mkdir()

    def environment(self, before: Mapping[str, str]) -> dict[str, str]:
        """Of the next supervisor; each fails otherwise."""
        if not self._on:
            return dict(before)
        points = [f"{point}%{chance:.4f}" for point, chance in self._chances.items()]
        points += [f"once={self._folder}", f"seed={self._seed}"]
        return {**before, VARIABLE: ";".join(points)}

    def jobs(self) -> list[dict[str, str]]:
        """The payloads of the bad jobs of one round."""
        if not self._on or self._dice.random() > 0.3:
            return []
        way = self._dice.choices(WAYS, weights=[SELDOM.get(way, 1.0) for way in WAYS])[0]
        self.ways[way] += 1
        return [{"way": way}]

    def failed(self) -> dict[str, int]:
        """How often each point has come, by its role and kind."""
        return {
            path.name.partition("%")[0]: len(path.read_text().splitlines()) for path in sorted(self._folder.iterdir())
        }
