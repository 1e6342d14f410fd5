"""A small installation for tests: a folder with a configuration, handlers, a database and real processes.

The oracle is a ledger outside the system, see tests/ledger.py; `Site.verdict` compares.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from supervisor import Job, Queue, Status
from supervisor.engine import open_engine
from supervisor.system.failpoints import VARIABLE
from supervisor.system.scoreboard import MAINTAINER_SLOT, Scoreboard
from supervisor.system.slot import Slot, Snapshot
from tests import forkserver
from tests.forkserver import MARK, can_fork
from tests.fresh import make_tables
from tests.ledger import RECORDER, Ledger, Remembering, query, wrongs
from tests.stopwatch import Stopwatch
from tests.watch import Watch, family, left_behind, look_around, watches

T = TypeVar("T")
PATIENCE = 20.0  # seconds until a condition that should hold at once counts as broken

HANDLERS = '''
import os, time
from ledger import record

def noop(payload, ctx):
    return None

def work(payload, ctx):
    """Sleeps payload["seconds"], and until the file payload["until"] is there."""
    record("start", ctx)
    end = time.monotonic() + payload.get("seconds", 0)
    while time.monotonic() < end or ("until" in payload and not os.path.exists(payload["until"])):
        time.sleep(0.005)
    record("end", ctx)
    return {"pid": os.getpid()}

def once(payload, ctx):
    """Hangs in its first run, returns in the second."""
    record("start", ctx)
    if ctx.token == 1:
        time.sleep(60)
    record("end", ctx)
    return {"pid": os.getpid()}
'''


def pool(name: str = "work", **keys: object) -> str:
    """The text of a pool, with one worker unless the keys say how many; `handler` is jobs:NAME."""
    usual: dict[str, object] = {} if keys.keys() & {"tasks", "command"} else {"handler": f"jobs:{name}"}
    usual |= {} if keys.keys() & {"min_workers", "max_workers"} else {"workers": 1}
    return f"[pools.{name}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in (usual | keys).items())


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


def wait_for(condition: Callable[[], T], what: str = "", patience: float = PATIENCE) -> T:
    """Wait until `condition` returns something true, and return that. A short patience is a promise of ours, so what
    others keep the machine busy does not count; see `stopwatch`.
    """
    begun, watch = time.monotonic(), Stopwatch()
    while True:
        value = condition()
        if value:
            return value
        look_around()
        waited = time.monotonic() - begun
        if waited > patience and (patience >= PATIENCE or watch.seconds() > patience):
            raise AssertionError(f"not within {patience:g} s: {what or condition}")
        # Whoever asks all the time takes the CPU from what it waits for.
        time.sleep(min(max(0.002, waited / 10), 0.1))


class Site:
    """One folder with everything a supervisor needs. `handlers` is the text of its jobs.py.

    With the `url` of a server its database is there, not in the folder.
    """

    def __init__(self, folder: Path, config: str, handlers: str = HANDLERS, url: str = "") -> None:
        self.folder = folder
        self.database = folder / "app.db"
        self.where: Path | str = url or self.database
        self.url = url or f"sqlite:///{self.database}"
        self.ledger = folder / "ledger"
        self.patience_at_end = 5.0  # seconds for the last processes of a supervisor that has ended
        self.once = folder / "once"
        self.once.mkdir()
        self.config = folder / "supervisor.toml"
        self.log = folder / "log"
        self.configure(config)
        (folder / "jobs.py").write_text(handlers.replace("LEDGER", str(self.ledger)))
        (folder / "ledger.py").write_text(RECORDER.replace("LEDGER", str(self.ledger)))
        if not url:
            make_tables(self.database)
        with Queue(self.url) as queue:
            queue.enqueue("never", {}, delay="7d")
        self.queue = Remembering(self.url)
        Ledger(self.ledger, self.where).watch_outcomes()
        self.supervisors: list[subprocess.Popen[bytes]] = []
        self._events: list[dict[str, Any]] = []
        self._read = 0  # bytes of the log
        self._marks: dict[int, bytes] = {}
        self._watched: dict[int, Watch] = {}
        self.wrong: list[str] = []  # what supervisors used or left behind that they should not have

    def configure(self, config: str) -> None:
        database = self.where if isinstance(self.where, str) else "sqlite:///./app.db"
        self.config.write_text(f'database = "{database}"\n{config}\n[log]\nformat = "json"\nlevel = "debug"\n')

    # Processes

    def start(
        self,
        *arguments: str,
        wait: bool = True,
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = (),
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        """Start `supervisor run` and wait until it is in the registry with its pools running. `program` runs the
        command, if that is a special one.
        """
        mark = f"{self.folder}#{len(self.supervisors)}"
        words = ["run", "-c", str(self.config), *arguments]
        environment = {**(os.environ if env is None else env), MARK: mark}
        with self.log.open("ab") as log:
            process: Any
            if not program and can_fork(environment, options):
                web = "[admin]" in self.config.read_text()
                both = log.fileno()
                process = forkserver.start(words, env=environment, cwd=self.folder, out=both, err=both, web=web)
            else:
                command = [*(program or (sys.executable, "-m", "supervisor")), *words]
                process = subprocess.Popen(command, stderr=log, stdout=log, cwd=self.folder, env=environment, **options)
        self.supervisors.append(process)
        self._marks[process.pid] = f"{MARK}={mark}".encode()
        if wait:
            wait_for(lambda: self.event("recovered", pid_of=process) or process.poll() is not None, "a supervisor")
            assert process.poll() is None, self.log.read_text()
            self._watched[process.pid] = watch = Watch(process.pid)
            watches.append(watch)
        return process

    def command(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run another command on this installation; it ends with that code, None for whatever code."""
        ended = forkserver.run([*words, "-c", str(self.config)], cwd=self.folder)
        assert code in (None, ended.returncode), ended.stdout + ended.stderr
        return ended

    def stop(self, process: subprocess.Popen[bytes], how: int = signal.SIGTERM) -> int:
        self._look_at(process)
        process.send_signal(how)
        return process.wait(PATIENCE)

    def survivors(self, supervisor: subprocess.Popen[bytes]) -> list[int]:
        """Every process that a supervisor has brought about, in whatever session, and that has not ended."""
        found = []
        mark = self._marks[supervisor.pid]
        for name in os.listdir("/proc"):  # noqa: PTH208 - every supervisor's end looks at every process: it must be quick
            if not name.isdecimal() or int(name) == supervisor.pid:
                continue
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb", buffering=0) as file:  # noqa: PTH123
                environment = file.read()
                if mark in environment and mark in environment.split(b"\0"):
                    found.append(int(name))
        return found

    def close(self) -> None:
        for process in self.supervisors:
            if process.poll() is None:
                for child in family(process.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child, signal.SIGCONT)
                process.send_signal(signal.SIGCONT)
                self._look_at(process)
                process.terminate()
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                if process.returncode not in (0, -signal.SIGKILL):
                    self.wrong.append(f"supervisor {process.pid} ended with {process.returncode} when it was told to")
            self._end_survivors(process)
        # Whoever is killed while it tidies up leaves that to the next recovery.
        killed = any(process.returncode == -signal.SIGKILL for process in self.supervisors)
        if not killed and not list(self.once.glob("*=kill")):
            folder = open_engine(self.url).database.folder
            self.wrong += [f"{name} is left in {folder}" for name in left_behind(folder)]
        self.queue.close()

    def _look_at(self, process: subprocess.Popen[bytes]) -> None:
        """At its end: what it has used, and keeps open."""
        watch = self._watched.pop(process.pid, None)
        if watch is not None:
            watches.remove(watch)
            if process.poll() is None:
                self.wrong += watch.end()

    def _end_survivors(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not self.survivors(process), patience=self.patience_at_end)
            return
        for pid in self.survivors(process):
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                self.wrong.append(f"process {pid} has outlived its supervisor: {command[:120]}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # What is to be seen

    def events(self) -> list[dict[str, Any]]:
        """The log's events so far."""
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as log:
            log.seek(self._read)
            for line in log:
                if not line.endswith(b"\n"):
                    break  # it is being written
                self._read += len(line)
                with contextlib.suppress(ValueError):
                    # A killed worker may have begun a line.
                    event = json.loads(line[max(0, line.find(b'{"')) :].decode(errors="replace"))
                    if isinstance(event, dict):
                        self._events.append(event)
        return list(self._events)

    def event(
        self, name: str, *, pid_of: subprocess.Popen[bytes] | None = None, **fields: Any
    ) -> dict[str, Any] | None:
        """The first event of that name with these fields; after a given supervisor's start."""
        events = self.events()
        if pid_of is not None:
            starts = [
                n for n, e in enumerate(events) if e.get("event") == "supervisor_started" and e["pid"] == pid_of.pid
            ]
            events = events[starts[0] :] if starts else []
        for event in events:
            if event.get("event") == name and all(event.get(key) == value for key, value in fields.items()):
                return event
        return None

    def told(self, name: str, **fields: Any) -> dict[str, Any] | None:
        """The same, once it is there: what has been committed is logged a moment later."""
        return wait_for(lambda: self.event(name, **fields), f"the event {name}")

    def workers(self, pool: str = "") -> list[Snapshot]:
        """What the scoreboards of all registered supervisors show of living workers."""
        found = []
        for path in self.scoreboards():
            board = Scoreboard.open(path)
            if board is not None:
                slots = [board.slot(number).read() for number in range(1, board.highest + 1)]
                found += [s for s in slots if 1 <= s.state <= 4 and s.pid and s.name.startswith(pool)]
        return found

    def slot(self, worker: Snapshot) -> Slot:
        """The living slot of a worker that was seen."""
        for path in self.scoreboards():
            board = Scoreboard.open(path)
            for number in range(1, board.highest + 1 if board is not None else 0):
                slot = board.slot(number)
                if slot.read().incarnation == worker.incarnation:
                    return slot
        raise AssertionError(f"{worker.name} has no slot any more")

    def maintainer(self, supervisor: subprocess.Popen[bytes]) -> int:
        """The pid of a supervisor's maintainer."""
        return self._board(supervisor).slot(MAINTAINER_SLOT).read().pid

    def supervisor_status(self, supervisor: subprocess.Popen[bytes]) -> dict[str, Any]:
        """What a supervisor shows of its pools."""
        return self._board(supervisor).supervisor_status()

    def _board(self, supervisor: subprocess.Popen[bytes]) -> Scoreboard:
        [(path,)] = self.rows("SELECT scoreboard FROM job_supervisors WHERE pid = ?", supervisor.pid)
        board = Scoreboard.open(Path(path))
        assert board is not None
        return board

    def scoreboards(self) -> list[Path]:
        return [Path(row[0]) for row in self.rows("SELECT scoreboard FROM job_supervisors")]

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return query(self.where, sql, *parameters)

    def refuse(self, event: str, when: str, words: str) -> None:
        """A trigger of the application's refuses an INSERT, an UPDATE, or an UPDATE OF a column of some jobs."""
        if isinstance(self.where, Path):
            raised = f"BEGIN SELECT raise(ABORT, '{words}'); END"
            self.rows(f"CREATE TRIGGER refuse BEFORE {event} ON jobs WHEN {when} {raised}")
            return
        self.rows(
            "CREATE FUNCTION refused() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN RAISE EXCEPTION '{words}'; END $$;"
            f" CREATE TRIGGER refuse BEFORE {event} ON jobs FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION refused()"
        )

    def refuse_no_more(self) -> None:
        self.rows("DROP TRIGGER refuse" if isinstance(self.where, Path) else "DROP TRIGGER refuse ON jobs")

    def job(self, job_id: int) -> Job:
        return self.queue.job(job_id)

    def count(self, status: str) -> int:
        return int(self.rows("SELECT count(*) FROM jobs WHERE status = ?", status)[0][0])

    def runs(self, what: str, job_id: int) -> list[tuple[int, int, float]]:
        """(token, pid, time) of each start or end of a job in the ledger."""
        lines = Ledger(self.ledger, self.where).lines()
        return [(line.token, line.pid, line.at) for line in lines if line.what == what and line.job == job_id]

    def held(self, type_: str = "work", count: int = 1) -> tuple[list[int], Path]:
        """Enqueue so many jobs that run until a file is there; the jobs, and that file."""
        gate = self.folder / "gate"
        return self.queue.enqueue_many(type_, [{"until": str(gate)}] * count), gate

    def running_pid(self, job_id: int) -> int:
        """The pid in which a job's handler is running; waits until it has begun."""
        return wait_for(lambda: self.runs("start", job_id), f"job {job_id} to start")[-1][1]

    def done(self, job_id: int, patience: float = PATIENCE) -> Job:
        job = self.queue.wait(job_id, timeout=patience)
        assert job.status is Status.DONE, (job, self.log.read_text()[-4000:])
        return job

    # Faults

    def failpoints(self, *points: str) -> dict[str, str]:
        """The environment for a supervisor in which each of these happens once: `ROLE:PLACE=ACTION`.

        The role (supervisor, maintainer, admin, template, worker, else program) is optional; `*` in a place matches
        anything. Each named statement of the store is a place, see supervisor/store/failing.py. So are
        `channel.send.MESSAGE`, before a message between processes is sent, and `channel.receive.MESSAGE`, when one has
        arrived, with the first key of the message, such as `death`. The other places are where `reach` is called.

        `kill` and `stop` are SIGKILL and SIGSTOP. `fail:KIND` raises an error: at places of the store one of the kinds
        in supervisor/store/failing.py, and on PostgreSQL in supervisor/store/postgres/failing.py; elsewhere an OSError,
        such as `fail:EPIPE`. `@3` is the third time that a process passes the point, `*2` is twice in a row, and
        `%0.01` is one time in a hundred at random, from `seed=N`. With `once=FOLDER`, each point takes effect in one
        process only, and a file there with its name contains the pid.
        """
        return os.environ | {VARIABLE: ";".join([*points, f"once={self.once}"])}

    def hit(self, point: str) -> int:
        """Wait until a fail-point has happened; the pid of the process that it hit."""
        path = self.once / point
        pid = int(wait_for(lambda: path.exists() and path.read_text(), f"{point} to happen"))
        if "=stop" in point:
            wait_for(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, f"{point} to stop {pid}")
        return pid

    def verdict(self, *, hit: Iterable[int] = (), others: Iterable[int] = (), **ended: Iterable[int]) -> None:
        """What must hold after any fault: nothing lost, nothing unexpected, at most one recorded outcome a job,
        repeats and charges only for the jobs that the fault `hit`, the file undamaged.

        Waits until every job enqueued through `queue`, and `others` put in by SQL, has ended: `done`, unless
        it is named under another status (`failed=[3]`, `pending=[4]`, or `gone=[5]` for a deleted row).
        """
        expected = dict.fromkeys([*self.queue.acknowledged, *others], "done")
        expected |= {job: status for status, jobs in ended.items() for job in jobs}
        ledger = Ledger(self.ledger, self.where)

        def settled() -> bool:
            jobs = ledger.jobs()
            return all(jobs.get(job, ("gone",))[0] == status for job, status in expected.items())

        with contextlib.suppress(AssertionError):  # what is missing then is told below
            wait_for(settled)
        assert wrongs(ledger, expected, set(hit), recorded=self.queue.acknowledged) == []


MakeSite = Callable[..., Site]  # the fixture `make_site`


@contextlib.contextmanager
def site(folder: Path, config: str, handlers: str = HANDLERS, url: str = "") -> Iterator[Site]:
    made = Site(folder, config, handlers, url)
    try:
        yield made
    finally:
        made.close()


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def kill(pid: int) -> float:
    """KILL, and the time of it."""
    at = time.time()
    os.kill(pid, signal.SIGKILL)
    return at
