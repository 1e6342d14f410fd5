"""Random faults for a while, then the ledger: `python -m tests.soak.soak --seconds 600 [--seed N] [--engine postgres]`.

Two supervisors work on one database while programs that know nothing of us insert, hold the write lock, claim and
settle by plain SQL. Workers, templates, maintainers, admin processes, supervisors and those programs are killed and
stopped, configurations reloaded, pools scaled, jobs cancelled; the wall clock of all of ours leaps by up to two
hours. Three pools with models share a memory in which two of them fit; clients of `POST /run` wait for their
results. Statements and messages fail now and then, and some handlers misbehave in every way that is known, see
misbehaviour.py; `--calm` leaves these two out. On PostgreSQL sessions are ended, too, and the server restarts and
crashes.
At the end everything is drained and compared: no acknowledged job lost, none unexpected, every recorded
outcome backed by a run of that very claim, no run after it, repeats only where a fault was, no innocent job charged
more often than a run of it was cut short.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil

from supervisor.domain.errors import StoreBusy, StoreError, StoreUnavailable
from tests import postgres_server
from tests.faults.shifted_clock import Clock
from tests.postgres_server import Server
from tests.site_under_test import HANDLERS, Site, site, wait_for
from tests.soak import misbehaviour
from tests.soak.misbehaviour import Misbehaviour
from tests.soak.verdict import wrong
from tests.watch import Used, used

POOLS = """
[defaults]
max_crashes = 100000
lock_time = "3s"
heartbeat_timeout = "2s"
shutdown_grace = "5s"
retry = { max_attempts = 1000, base = "20ms", max = "200ms" }
[pools.work]
handler = "jobs:work"
workers = 3
[pools.quick]
types = ["quick"]
handler = "jobs:work"
min_workers = 0
max_workers = 3
scale_down_delay = "500ms"
[pools.batch]
handler = "jobs:Batch"
workers = 2
batch_size = 8
[admin]
listen = "127.0.0.1:PORT"
token_file = "token"
"""
# Two of them fit into the memory, and without spares three.
MODELS = """
[machine]
memory = "MEMORYMiB"
min_residency = "1s"
max_wait = "2s"
[pools.caption]
handler = "jobs:Model"
options = { mib = 30 }
spares = 1
cancel_grace = "100ms"
kill_grace = "100ms"
max_waiting = 50
warmup = { payload = {} }
canary = { payload = {}, expect = { mib = 30 } }
[pools.embed]
handler = "jobs:Model"
options = { mib = 50 }
min_workers = 0
max_workers = 2
scale_down_delay = "300ms"
batch_size = "auto"
batch_key = "size"
latency_target = "100ms"
[pools.tag]
handler = "jobs:Model"
options = { mib = 30 }
max_jobs_per_worker = 200
max_waiting = 50
canary = { payload = {}, expect = { mib = 30 } }
"""
BATCH = """
class Batch:
    def handle_batch(self, payloads, ctx):
        for job in ctx.jobs:
            record("start", job)
        time.sleep(sum(payload.get("seconds", 0) for payload in payloads))
        for job in ctx.jobs:
            record("end", job)
        return [None] * len(payloads)
"""
# With batches, `ctx.jobs` has the jobs; warm-ups and canaries are no jobs.
MODEL = """
class Model:
    def setup(self, ctx):
        time.sleep(0.1)
        self.mib = ctx.options["mib"]
        self.model = b"m" * (self.mib << 20)
    def handle(self, payload, ctx):
        if ctx.job_id:
            record("start", ctx)
        time.sleep(payload.get("seconds", 0))
        if payload.get("grows"):
            self.more = b"m" * (payload["grows"] << 20)
        if ctx.job_id:
            record("end", ctx)
        return {"mib": self.mib}
    def handle_batch(self, payloads, ctx):
        assert len({payload.get("size") for payload in payloads}) == 1, payloads
        for job in ctx.jobs:
            record("start", job)
        time.sleep(sum(payload.get("seconds", 0) for payload in payloads))
        for job in ctx.jobs:
            record("end", job)
        return [{"mib": self.mib}] * len(payloads)
"""
MEMORY = {"sqlite": "240", "postgres": "400"}  # in MiB; with a server, each worker has its libraries, too
PROGRAMS = Path(__file__).parent / "programs"
SUPERVISORS = 2
MOST_LEAPT = 7200  # seconds


class Soak:
    """One soak in one folder; everything random comes from one seed."""

    def __init__(self, place: Site, seed: int, address: str, *, calm: bool, server: Server | None = None) -> None:
        self.site = place
        self.server = server
        self.address = address
        self.random = random.Random(seed)
        self.counts: collections.Counter[str] = collections.Counter()
        self.jobs: list[int] = []
        self.acknowledged = place.folder / "acknowledged"
        self.wrong_answers = place.folder / "wrong-answers"
        self._token = place.folder / "token"
        self.stopped: list[tuple[float, psutil.Process]] = []
        self.foreign: dict[str, subprocess.Popen[bytes]] = {}
        self.clock = Clock(place.folder)
        engine = "postgres" if server else "sqlite"
        self.misbehaviour = Misbehaviour(not calm, place.folder / "failed", seed, self.random, engine)
        self.used: dict[int, tuple[Used, Used]] = {}  # by each supervisor, first and last seen
        self._refusals = (StoreBusy,) if server is None else (StoreUnavailable,)

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        faults = self._faults()
        while time.monotonic() < end:
            self._keep_alive()
            self._enqueue()
            self._continue()
            self._measure()
            fault = self.random.choices(list(faults), weights=list(faults.values()))[0]
            with contextlib.suppress(psutil.NoSuchProcess, IndexError, ProcessLookupError):
                fault()
            time.sleep(self.random.uniform(0.02, 0.3))
        for _, process in self.stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        self._keep_alive()

    def _faults(self) -> dict[Callable[[], None], float]:
        of_server = {self._end_sessions: 1.0, self._restart: 0.3} if self.server else {}
        return of_server | {
            lambda: self._kill("worker", self._worker()): 8,
            lambda: self._kill("template", self._template()): 2,
            lambda: self._kill("maintainer", self._child("maintainer")): 2,
            lambda: self._kill("admin process", self._child("admin")): 1,
            lambda: self._kill("supervisor", self._supervisor()): 1.5,
            lambda: self._kill("foreign program", self._foreign()): 1,
            lambda: self._stop("worker", self._worker()): 1.5,
            lambda: self._stop("template", self._template()): 0.5,
            lambda: self._stop("maintainer", self._child("maintainer")): 0.5,
            lambda: self._stop("admin process", self._child("admin")): 0.3,
            lambda: self._stop("supervisor", self._supervisor()): 0.7,
            self._stop_tree: 0.3,
            lambda: self._stop("foreign program", self._foreign()): 0.5,
            self._reload: 1,
            self._scale: 1,
            self._pause: 0.5,
            self._cancel: 1,
            self._leap: 0.5,
            self._terminate: 0.5,
        }

    # Whom it hits

    def _living(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self.site.supervisors if process.poll() is None]

    def _supervisor(self) -> psutil.Process:
        return psutil.Process(self.random.choice(self._living()).pid)

    def _child(self, role: str) -> psutil.Process:
        """The maintainer or the admin process of some supervisor, as that says. Raises IndexError if it has none."""
        supervisor = self.random.choice(self._living())
        said = self.site.supervisor_status(supervisor) if self._is_registered(supervisor) else {}
        pid = said.get("maintainer") if role == "maintainer" else (said.get("admin") or {}).get("pid")
        children = psutil.Process(supervisor.pid).children()
        return [child for child in children if child.pid == pid][0]  # noqa: RUF015 - an IndexError is meant

    def _is_registered(self, supervisor: subprocess.Popen[bytes]) -> bool:
        rows = self.site.rows("SELECT scoreboard FROM job_supervisors WHERE pid = ?", supervisor.pid)
        return bool(rows) and Path(rows[0][0]).exists()

    def _template(self) -> psutil.Process:
        children = self._supervisor().children()
        return self.random.choice([child for child in children if child.children()])

    def _worker(self) -> psutil.Process:
        return self.random.choice(self._template().children())

    def _foreign(self) -> psutil.Process:
        return psutil.Process(self.random.choice(list(self.foreign.values())).pid)

    # What it does

    def _kill(self, what: str, process: psutil.Process) -> None:
        process.kill()
        self.counts[f"killed {what}"] += 1

    def _stop(self, what: str, process: psutil.Process) -> None:
        process.suspend()
        self.stopped.append((time.monotonic() + self.random.uniform(0.1, 6), process))
        self.counts[f"stopped {what}"] += 1

    def _stop_tree(self) -> None:
        supervisor = self._supervisor()
        until = time.monotonic() + self.random.uniform(1, 8)
        for process in (supervisor, *supervisor.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
                self.stopped.append((until, process))
        self.counts["stopped whole tree"] += 1

    def _continue(self) -> None:
        now = time.monotonic()
        for at, process in [entry for entry in self.stopped if entry[0] <= now]:
            self.stopped.remove((at, process))
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def _reload(self) -> None:
        self._supervisor().send_signal(signal.SIGHUP)
        self.counts["reloads"] += 1

    def _terminate(self) -> None:
        self._supervisor().send_signal(signal.SIGTERM)
        self.counts["terminated"] += 1

    def _scale(self) -> None:
        self._command(
            "scale", self.random.choice(["work", "tag", "embed"]), self.random.choice(["0", "1", "4", "auto"])
        )
        self.counts["scaled"] += 1

    def _pause(self) -> None:
        self._command(self.random.choice(["pause", "resume", "resume"]), self.random.choice(["caption", "embed"]))
        self.counts["paused or resumed"] += 1

    def _cancel(self) -> None:
        job = self.random.choice(self.jobs[-200:])
        self._command("jobs", "cancel", str(job))
        self.counts["cancels"] += 1

    def _leap(self) -> None:
        self.clock.leap_to(self.random.choice([0, 0, 60, -60, MOST_LEAPT, -MOST_LEAPT]))
        self.counts["clock leaps"] += 1

    def _end_sessions(self) -> None:
        assert self.server is not None
        self.server.kill_backends(self.site.url)
        self.counts["sessions ended"] += 1

    def _restart(self) -> None:
        assert self.server is not None
        mode = self.random.choice(["fast", "immediate"])
        self.server.restart(mode)
        self.counts["server crashed" if mode == "immediate" else "server restarted"] += 1

    def _command(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "supervisor", *arguments, "-c", str(self.site.config)]
        subprocess.run(command, check=False, capture_output=True, cwd=self.site.folder)

    # Whom it keeps alive

    def _keep_alive(self) -> None:
        living = [p for p in self.site.supervisors if p.poll() is None]
        for _ in range(SUPERVISORS - len(living)):
            self.site.start(wait=False, env=self.misbehaviour.environment(self.clock.environment))
            self.counts["supervisors started"] += 1
        programs = {"poller": [], "writer": [str(self.acknowledged), str(self.random.randrange(1 << 30))]}
        for name, arguments in programs.items():
            self._keep_program(name, str(self.site.where), *arguments)
        if self._token.exists():
            answers = (str(self._token), str(self.acknowledged), str(self.wrong_answers))
            self._keep_program("requester", self.address, *answers, str(self.random.randrange(1 << 30)))

    def _keep_program(self, name: str, *arguments: str) -> None:
        if name not in self.foreign or self.foreign[name].poll() is not None:
            self.foreign[name] = subprocess.Popen([sys.executable, str(PROGRAMS / f"{name}.py"), *arguments])

    def _enqueue(self) -> None:
        if self.site.count("pending") > 400:
            return
        for kind, count in (("work", 4), ("quick", 30), ("batch", 12), ("beside", 4), ("foreign", 2)):
            payloads = [{"seconds": self.random.choice([0, 0, 0, 0.01, 0.2 if kind == "work" else 0])}] * count
            try:
                self.jobs += self.site.queue.enqueue_many(kind, payloads)
                if self.random.random() < 0.2:
                    self.jobs += self.site.queue.enqueue_many(*self._of_a_model())
            except self._refusals:  # whoever was stopped with SQLite's lock in hand: nothing was written
                self.counts["refused enqueues"] += 1
        with contextlib.suppress(*self._refusals):
            bad = self.misbehaviour.jobs()
            self.jobs += self.site.queue.enqueue_many("bad", bad, max_attempts=misbehaviour.MOST_ATTEMPTS)

    def _of_a_model(self) -> tuple[str, list[dict[str, float]]]:
        """A burst of jobs of one model."""
        seconds, size, grows = self.random.choice([0, 0, 0.02]), self.random.choice([1, 2]), self.random.random() < 0.1
        payload = {"seconds": seconds, "size": size} | ({"grows": 40} if grows else {})
        return self.random.choice(["caption", "embed", "tag"]), [payload] * self.random.choice([1, 10, 30])

    def _measure(self) -> None:
        for process in self._living():
            now = used(process.pid)
            if now is not None:
                self.used[process.pid] = (self.used.get(process.pid, (now, now))[0], now)

    # The end

    def settle(self) -> list[str]:
        """Drain, stop everything, then all that is wrong."""
        for program in {"writer", "requester"} & self.foreign.keys():
            self._end(self.foreign.pop(program))
        for pool in ("work", "tag", "embed"):
            self._command("scale", pool, "auto")
        for kind in ("caption", "embed"):
            self._command("resume", kind)
        self.clock.leap_to(MOST_LEAPT + 60)  # what was put off by a clock that was ahead is due now, too
        # A foreign claim whose poller was killed expires after its hour; nobody waits for that here.
        self.site.rows("UPDATE jobs SET lock_expires_at = 1 WHERE locked_by = 'foreign'")
        wait_for(lambda: self._unfinished() == 0, "the queue to drain", patience=120)
        wait_for(self._is_answered, "the admin process to answer", patience=60)
        self._end(self.foreign.pop("poller"))
        for process in self.site.supervisors:
            if process.poll() is None:
                process.terminate()
        for process in self.site.supervisors:
            process.wait(30)
        faults = sum(self.counts.values()) + self.misbehaviour.ways.total()
        found = wrong(self.site, [*self.jobs, *self._acknowledged()], faults) + self._unpaired()
        found += self.wrong_answers.read_text().splitlines() if self.wrong_answers.exists() else []
        return found + (
            [f"the supervisors used {self.cpu_share():.0%} of a core each"] if self.cpu_share() > 0.3 else []
        )

    def cpu_share(self) -> float:
        """Of one core, by a supervisor's own process, while it lived."""
        lived = sum(last.at - first.at for first, last in self.used.values())
        return sum(last.cpu - first.cpu for first, last in self.used.values()) / max(lived, 1.0)

    def summary(self) -> list[str]:
        named = {
            "faults": self.counts,
            "fails": self.misbehaviour.failed(),
            "misbehaviours": self.misbehaviour.ways,
        }
        lines = [
            f"{what}: " + (", ".join(f"{n} {name}" for name, n in sorted(some.items())) or "none")
            for what, some in named.items()
        ]
        return [*lines, f"CPU: {self.cpu_share():.1%} of a core by each supervisor's own process"]

    def _is_answered(self) -> bool:
        """Whether an admin process serves: whichever supervisor has the address."""
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://{self.address}/healthz", timeout=5) as answer,
        ):
            return answer.status == 200
        return False

    def _end(self, program: subprocess.Popen[bytes]) -> None:
        program.kill()
        program.wait()

    def _unfinished(self) -> int:
        [(count,)] = self.site.rows(
            "SELECT count(*) FROM jobs WHERE status IN ('pending', 'running') AND type <> 'never'"
        )
        return int(count)

    def _acknowledged(self) -> list[int]:
        return [int(line) for line in self.acknowledged.read_text().split()] if self.acknowledged.exists() else []

    def _unpaired(self) -> list[str]:
        """A job enqueued in an application's own transaction exists if and only if that was committed."""
        unpaired = self.site.rows("SELECT job FROM pictures WHERE job NOT IN (SELECT id FROM jobs)")
        return [f"{len(unpaired)} of the application's rows have no job"] if unpaired else []


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--calm", action="store_true", help="no handler misbehaves and no statement fails")
    parser.add_argument("--engine", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(4), "little")
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"seed {seed}, {options.seconds:g} s, in {folder}", flush=True)
    port = free_port()
    bad = misbehaviour.handlers(options.engine).replace("DATABASE", str(folder / "app.db"))
    pools = (
        POOLS.replace("[admin]", f"{misbehaviour.POOL}{MODELS}[admin]")
        .replace("PORT", str(port))
        .replace("MEMORY", MEMORY[options.engine])
    )
    with contextlib.ExitStack() as stack:
        server = None
        if options.engine == "postgres":
            os.environ["XDG_STATE_HOME"] = str(folder / "state")
            server = stack.enter_context(postgres_server.server())
            bad = bad.replace("URL", url := server.fresh_database())
        place = stack.enter_context(site(folder, pools, HANDLERS + BATCH + MODEL + bad, url if server else ""))
        soak = Soak(place, seed, f"127.0.0.1:{port}", calm=options.calm, server=server)
        try:
            soak.run(options.seconds)
            found = soak.settle()
        except (AssertionError, sqlite3.Error, StoreError) as error:
            found = [str(error)]
        finally:
            for program in soak.foreign.values():
                program.kill()
                program.wait()
        print(*soak.summary(), sep="\n")
    found += [words for words in place.wrong if "outlived" in words]
    for line in found[:20]:
        print(f"WRONG: {line}")
    if found or options.keep:
        print(f"the folder with database, ledger and log is kept: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
        print("clean: nothing lost, nothing unexpected, one recorded outcome a job")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
