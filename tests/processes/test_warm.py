"""Set-up before the fork: workers share what it has made, and what cannot be shared breaks only its own pool."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.system.slot import Snapshot, State
from tests.site_under_test import Site, descendants, kill, pool, wait_for

MakeSite = Callable[..., Site]

MODEL = """
import os
from ledger import record

class Model:
    def setup(self, ctx):
        record("setup", ctx)
        self.made_in, self.name = os.getpid(), ctx.options.get("name")
        self.weights = b"w" * ctx.options.get("bytes", 0)
    def handle(self, payload, ctx):
        record("start", ctx)
        record("end", ctx)
        return [os.getpid(), self.made_in, self.name, len(self.weights)]
    def teardown(self, ctx):
        record("teardown", ctx)
"""


def warm(handler: str = "Model", name: str = "warm", **keys: object) -> str:
    """A pool that is set up before the fork."""
    return pool(name, handler=f"jobs:{handler}", preload_setup=True, **keys)


def ready(site: Site, pool: str, count: int) -> list[Snapshot]:
    """That many workers of a pool, all of them set up."""

    def idle() -> list[Snapshot]:
        return [worker for worker in site.workers(f"{pool}-") if worker.state is State.IDLE]

    return wait_for(lambda: len(found := idle()) == count and found, f"{count} workers of {pool}")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def shares(workers: list[Snapshot]) -> int:
    """What all of them take together, in bytes: of a shared page each has its part."""
    lines = [line for w in workers for line in Path(f"/proc/{w.pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def problems(site: Site) -> dict[str, str]:
    """What `status` says is wrong with the pools."""
    shown = json.loads(site.command("status", "--json").stdout)
    return {pool["name"]: pool["problem"] for pool in shown["pools"] if pool["problem"]}


def test_workers_share_a_model_that_was_loaded_before_the_fork(make_site: MakeSite) -> None:
    large = {"handler": "jobs:Model", "workers": 4, "options": {"bytes": 100_000_000}}
    site = make_site(pool("warm", preload_setup=True, **large) + pool("cold", **large), MODEL)
    site.start()
    warm, cold = ready(site, "warm", 4), ready(site, "cold", 4)
    assert shares(cold) > 400_000_000
    assert shares(warm) <= 0.6 * shares(cold)
    template = parent(warm[0].pid)
    for _ in range(3):
        worker, made_in, _, size = site.done(site.queue.enqueue("warm")).result
        assert (made_in, size) == (template, 100_000_000)
        kill(worker)
        wait_for(lambda pid=worker: pid not in [w.pid for w in ready(site, "warm", 4)], "another in its place")
    assert len(site.runs("setup", 0)) == 1 + 4
    site.verdict()


def test_the_handler_is_set_up_once_and_torn_down_in_each_worker(make_site: MakeSite) -> None:
    site = make_site(warm(workers=2), MODEL)
    supervisor = site.start()
    pids = {worker.pid for worker in ready(site, "warm", 2)}
    [(token, template, _)] = site.runs("setup", 0)
    assert (token, {parent(pid) for pid in pids}) == (0, {template})
    site.done(site.queue.enqueue("warm"))
    assert site.stop(supervisor) == 0
    assert {pid for _, pid, _ in site.runs("teardown", 0)} == pids


def test_pools_share_a_set_up_only_if_it_was_told_the_same(make_site: MakeSite) -> None:
    told = (("a", "x", "cpu"), ("b", "x", "cpu"), ("c", "y", "cpu"), ("d", "x", "gpu"))
    site = make_site(
        "".join(warm(name=name, options={"name": option}, capabilities=[word]) for name, option, word in told), MODEL
    )
    site.start()
    results = {name: site.done(site.queue.enqueue(name)).result for name in "abcd"}
    assert {name: result[2] for name, result in results.items()} == {"a": "x", "b": "x", "c": "y", "d": "x"}
    made_in = {name: result[1] for name, result in results.items()}
    assert made_in["a"] == made_in["b"]
    assert len(set(made_in.values())) == 3


UNFIT = """
import asyncio, os, socket, sqlite3, subprocess, threading, time
kept = []

def handle(payload, ctx):
    return os.getpid()

class Base:
    def handle(self, payload, ctx): return os.getpid()

class Good(Base):
    pass

class Threads(Base):
    def setup(self, ctx):
        kept.append(threading.Thread(target=time.sleep, args=(600,), daemon=True)); kept[0].start()

class Database(Base):
    def setup(self, ctx):
        kept.append(sqlite3.connect("app.db")); kept[0].execute("SELECT count(*) FROM jobs").fetchall()

class Network(Base):
    def setup(self, ctx):
        kept.append(socket.create_server(("127.0.0.1", 0)))
        kept.append(socket.create_connection(kept[0].getsockname()))

class Child(Base):
    def setup(self, ctx): kept.append(subprocess.Popen(["sleep", "600"]))

class Asynchronous(Base):
    async def setup(self, ctx): await asyncio.sleep(0)

class Raises(Base):
    def setup(self, ctx): raise RuntimeError("no model here")

class Leaves(Base):
    def setup(self, ctx): os._exit(3)

class Slow(Base):
    def setup(self, ctx): time.sleep(600)
"""
WHY = {
    "threads": ("Threads", "jobs:Threads: its set-up left a thread (", "make the library single-threaded"),
    "database": ("Database", "left an open database (", "open connections in the worker"),
    "network": ("Network", "left a network connection (127.0.0.1:", "or write preload_setup = false"),
    "child": ("Child", "left a process that it has started (", "start it in the worker"),
    "async": ("Asynchronous", "async setup cannot be run before the fork", "preload_setup = false"),
    "raises": ("Raises", "set-up failed: RuntimeError: no model here", ""),
    "leaves": ("Leaves", "the template ended while it was loading the handler", ""),
    "slow": ("Slow", "did not end within startup_timeout, 1s", ""),
}


def test_a_set_up_that_cannot_be_shared_breaks_only_its_own_pool_and_is_told_in_status(make_site: MakeSite) -> None:
    pools = {name: warm(handler, name=name) for name, (handler, _, _) in WHY.items()}
    site = make_site(warm("Good", name="good") + "".join(pools.values()) + 'startup_timeout = "1s"\n', UNFIT)
    site.start()
    site.done(site.queue.enqueue("good"))
    waiting = [site.queue.enqueue(pool) for pool in WHY]
    found: dict[str, str] = {}

    def all_told() -> bool:
        found.update(problems(site))
        return found.keys() >= WHY.keys()

    wait_for(all_told, "each to be told", patience=60)
    assert found.keys() == WHY.keys()
    for name, (_, what, advice) in WHY.items():
        assert what in found[name]
        assert advice in found[name]
    tries = [e for e in site.events() if e.get("event") == "pool_broken" and e["pool"] == "slow"]
    assert len(tries) <= 10  # slowly
    site.done(site.queue.enqueue("good"))
    for job in waiting:
        assert site.job(job).attempts == 0


def test_a_thread_that_an_import_leaves_breaks_a_pool_with_set_up_before_the_fork_and_no_other(
    make_site: MakeSite,
) -> None:
    threads = UNFIT + "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    site = make_site(pool("plain", handler="jobs:handle") + warm("handle"), threads)
    site.start()
    problem = wait_for(lambda: site.event("pool_broken", pool="warm"), "it to be refused")["problem"]
    assert problem.startswith("jobs:handle: importing it left a thread (")
    assert problem.endswith('or write start = "spawn" and preload_setup = false')
    site.done(site.queue.enqueue("plain"))
    warning = site.event("unsafe_to_fork")
    assert warning is not None
    assert warning["found"].startswith("a thread (")
    assert warning["hint"] == 'make the library single-threaded, or write start = "spawn"'


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_nobody_waits_for_a_set_up_that_still_goes_on(make_site: MakeSite, how: int) -> None:
    site = make_site(warm("Slow"), UNFIT)
    supervisor = site.start()
    job = site.queue.enqueue("warm")
    wait_for(lambda: len(descendants(supervisor.pid)) == 2, "the template beside the maintainer")
    if how == signal.SIGHUP:
        site.configure(warm("Good"))
        supervisor.send_signal(how)
        site.done(job)
    assert site.stop(supervisor) == 0
    assert site.survivors(supervisor) == []


def test_a_library_that_takes_our_signals_does_not_hide_how_workers_end(make_site: MakeSite) -> None:
    site = make_site(
        warm(),
        MODEL + "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_DFL)\nsignal.set_wakeup_fd(-1)\n",
    )
    site.start()
    [worker] = ready(site, "warm", 1)
    kill(worker.pid)
    assert wait_for(lambda: site.event("worker_died", pid=worker.pid), "its death")["detail"].endswith("by SIGKILL")


SLOW = """
import ctypes, os
from ledger import record

class Disk:
    def setup(self, ctx):
        record("setup", ctx)
        ctypes.PyDLL(None).sleep(ctx.options["seconds"])  # with the interpreter's lock, and no CPU used
    def handle(self, payload, ctx):
        return os.getpid()
"""


def disk(seconds: int) -> str:
    return pool("disk", handler="jobs:Disk", heartbeat_timeout="1s", options={"seconds": seconds})


def test_a_slow_set_up_in_native_code_is_no_hang(make_site: MakeSite) -> None:
    site = make_site(disk(4), SLOW)
    site.start()
    worker = site.done(site.queue.enqueue("disk")).result
    assert [pid for _, pid, _ in site.runs("setup", 0)] == [worker]
    assert not site.event("worker_died")


def test_a_worker_that_is_stopped_in_its_set_up_is_killed_and_replaced(make_site: MakeSite) -> None:
    site = make_site(disk(30), SLOW)
    site.start()
    [(_, pid, _)] = wait_for(lambda: site.runs("setup", 0), "its set-up to begin")
    os.kill(pid, signal.SIGSTOP)
    died: dict[str, Any] = wait_for(lambda: site.event("worker_died", pid=pid), "it to be killed")
    assert died["reason"] == "stopped"


AUDITED = """
import os, sys

template, late = os.getpid(), []

def note(event, args):
    if event == "import" and os.getpid() != template and args[0].startswith("supervisor"):
        late.append(args[0])

sys.addaudithook(note)

class Work:
    def handle(self, payload, ctx):
        return late

    def handle_batch(self, payloads, ctx):
        return [late for _ in payloads]
"""


@pytest.mark.parametrize("more", ["", "batch_size = 4", "concurrency = 4"])
def test_a_worker_imports_none_of_our_modules_itself(make_site: MakeSite, more: str) -> None:
    """They come with the template: each import would cost time at its start, and memory that is not shared."""
    site = make_site(f'[pools.work]\nhandler = "jobs:Work"\nworkers = 1\n{more}\n', AUDITED)
    site.start()
    assert site.done(site.queue.enqueue("work")).result == []
