"""Nothing that a handler, a row or an error does harms its neighbours: what is promised as a whole, with the numbers.

Each of these crosses several parts of the system. Times are of an idle machine; on a loaded one they are stretched by
how many processes wait for each CPU.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress

import psutil
import pytest

from supervisor import Queue
from supervisor.domain.errors import StoreError
from tests.site_under_test import MakeSite, kill, wait_for
from tests.web.client import ADMIN, admin_of

HANDLERS = """
import os, signal, sqlite3, subprocess, sys, threading, time
from ledger import record

def note(ctx):
    fd = os.open("LEDGER", os.O_WRONLY | os.O_APPEND | os.O_CREAT)  # without waiting for the disk
    os.write(fd, f"start {ctx.job_id} {ctx.token} {os.getpid()} {time.time()}\\n".encode())
    os.close(fd)

def work(payload, ctx):
    note(ctx)
    time.sleep(payload if isinstance(payload, float) else 0)

def fork(payload, ctx):
    note(ctx)
    if os.fork():
        return
    if payload == "raises":
        raise ValueError("in the child")
    if payload == "exits":
        sys.exit(3)
    if payload == "a thread":
        threading.Thread(target=time.sleep, args=(0.2,)).start()
    if payload == "twice":
        os.fork()

def close_all(payload, ctx):
    note(ctx)
    os.closerange(0, 4096)

GROUP = {
    "kill 0": lambda: os.kill(0, signal.SIGTERM),
    "trap": lambda: subprocess.run(["sh", "-c", 'trap "kill 0" EXIT; true']),
    "killpg": lambda: os.killpg(os.getpgid(subprocess.Popen(["sleep", "60"]).pid), signal.SIGTERM),
}

def group(payload, ctx):
    note(ctx)
    GROUP[payload]()

def forget(payload, ctx):
    note(ctx)
    global kept
    kept = sqlite3.connect(payload, isolation_level=None)
    kept.execute("BEGIN IMMEDIATE")
    time.sleep(60 if ctx.crashes == 0 else 0)
"""


def on_this_machine(seconds: float) -> float:
    """So many seconds of an idle machine, here and now."""
    return seconds * min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), 6.0)


@pytest.mark.fault(44)
def test_of_1800_jobs_none_runs_twice_when_five_others_fork(make_site: MakeSite) -> None:
    site = make_site(
        '[pools.work]\nhandler = "jobs:work"\nworkers = 2\n[pools.fork]\nhandler = "jobs:fork"\nworkers = 1\n'
        'types = ["fork", "beside"]\n',
        HANDLERS.replace(
            "def fork(payload, ctx):",
            "def fork(payload, ctx):\n    if ctx.type == 'beside':\n        return work(payload, ctx)",
        ),
    )
    jobs = site.queue.enqueue_many("work", [None] * 900) + site.queue.enqueue_many("beside", [None] * 450)
    forks = site.queue.enqueue_many("fork", ["returns", "raises", "exits", "a thread", "twice"])
    jobs += site.queue.enqueue_many("beside", [None] * 450)
    assert site.start("--burst", wait=False).wait(60) == 0
    assert site.count("done") == 1805
    runs: dict[int, int] = {}
    for line in site.ledger.read_text().splitlines():
        runs[int(line.split()[1])] = runs.get(int(line.split()[1]), 0) + 1
    assert runs == dict.fromkeys([*jobs, *forks], 1)
    assert site.rows("SELECT count(*) FROM jobs WHERE attempts <> 1 OR crashes <> 0 OR type = 'never'") == [(1,)]


@pytest.mark.fault(45)
def test_a_job_that_closes_all_descriptors_is_quarantined_and_fifty_others_are_done_within_seconds(
    make_site: MakeSite,
) -> None:
    site = make_site(
        '[pools.work]\nhandler = "jobs:either"\nworkers = 1\nmax_crashes = 2\n',
        HANDLERS
        + """
def either(payload, ctx):
    return close_all(payload, ctx) if payload == "close" else work(payload, ctx)
""",
    )
    bad = site.queue.enqueue("work", "close")
    others = site.queue.enqueue_many("work", [None] * 50)
    began = time.monotonic()
    site.start()
    wait_for(lambda: site.count("done") == 50, "the others", patience=on_this_machine(5.0) + 1.0)
    took = time.monotonic() - began
    wait_for(lambda: site.job(bad).status == "quarantined", "its quarantine", patience=60)
    assert site.job(bad).crashes == 2
    assert all(site.job(job).crashes == 0 for job in others)
    assert took < on_this_machine(5.0) + 1.0


@pytest.mark.fault(47)
def test_the_service_outlives_handlers_that_end_their_process_group(make_site: MakeSite) -> None:
    site = make_site(
        '[pools.group]\nhandler = "jobs:group"\nworkers = 1\n[pools.work]\nhandler = "jobs:work"\n', HANDLERS
    )
    supervisor = site.start()
    beside = site.queue.enqueue("work", 1.0)
    ways = site.queue.enqueue_many("group", ["kill 0", "trap", "killpg"])
    for job in ways:
        site.queue.wait(job, timeout=30)
    site.done(beside)
    assert site.job(beside).attempts == 1
    site.done(site.queue.enqueue("work"))
    assert supervisor.poll() is None
    assert not site.event("stopping")


@pytest.mark.sqlite
@pytest.mark.fault(48)
def test_writers_go_on_after_a_handler_that_forgot_its_commit(make_site: MakeSite) -> None:
    """It hangs with the lock in hand beyond its time limit; nobody else can write until it is gone."""
    site = make_site(
        '[pools.forget]\nhandler = "jobs:forget"\nworkers = 1\ntimeout = "1s"\n'
        'retry = { max_attempts = 1 }\n[pools.work]\nhandler = "jobs:work"\nworkers = 1\n',
        HANDLERS,
    )
    site.start()
    forgetting = site.queue.enqueue("forget", str(site.database))
    wait_for(lambda: site.runs("start", forgetting), "it to start")
    deadline = time.monotonic() + 1.0 + on_this_machine(10.0)
    written = 0
    while not written:
        assert time.monotonic() < deadline, "nobody can write"
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(site.database, timeout=1.0)) as other, other:
            written = other.execute("INSERT INTO jobs(type) VALUES ('work') RETURNING id").fetchone()[0]
    site.done(written)
    wait_for(lambda: site.job(forgetting).status in ("failed", "quarantined"), "it to be charged")


@pytest.mark.fault(49)
def test_nothing_is_left_a_second_after_a_supervisor_was_killed_with_its_template_stopped(make_site: MakeSite) -> None:
    site = make_site('[pools.work]\nhandler = "jobs:work"\nworkers = 2\n', HANDLERS)
    supervisor = site.start()
    jobs = site.queue.enqueue_many("work", [30.0, 30.0])
    for job in jobs:
        site.running_pid(job)
    [template] = [child for child in psutil.Process(supervisor.pid).children() if child.children()]
    template.suspend()
    kill(supervisor.pid)
    supervisor.wait()
    wait_for(lambda: not site.survivors(supervisor), "all of them to end", patience=on_this_machine(1.0))


@pytest.mark.fault(64)
def test_a_failing_duty_keeps_no_other_from_its_work_and_is_named(make_site: MakeSite) -> None:
    site = make_site(
        '[pools.work]\nhandler = "jobs:work"\nworkers = 1\nlock_time = "1s"\n'
        '[pools.good]\nhandler = "jobs:work"\nworkers = 1\n'
        '[[schedules]]\nname = "refused"\ntype = "refused"\nevery = "1s"\n'
        '[[schedules]]\nname = "good"\ntype = "good"\nevery = "1s"\n',
        HANDLERS,
    )
    site.refuse("INSERT", "NEW.type = 'refused'", "not in this application")
    site.start()
    long = site.queue.enqueue("work", 4.0)
    site.running_pid(long)
    late = 0.0
    while site.job(long).status == "running":
        [(expires,)] = site.rows("SELECT coalesce(lock_expires_at, 9e9) FROM jobs WHERE id = ?", long)
        late = max(late, time.time() - expires)
        wait_for(lambda: True)
        time.sleep(0.05)
    assert late <= on_this_machine(0.2), "its lock had run out"
    assert site.done(long).attempts == 1
    wait_for(lambda: len(site.rows("SELECT id FROM jobs WHERE type = 'good'")) >= 3, "the other schedule")
    said = site.command("status")
    assert "not in this application" in said.stdout + said.stderr


@pytest.mark.sqlite
@pytest.mark.fault(56)
def test_threads_that_share_a_queue_are_never_refused_and_wait_for_no_call_for_a_second(make_site: MakeSite) -> None:
    """One of them enqueues in a transaction of its own, with the write lock in hand."""
    site = make_site('[pools.work]\nhandler = "jobs:work"\nworkers = 1\n', HANDLERS)
    end = time.monotonic() + 2.0
    took: list[float] = []
    refused: list[BaseException] = []

    def again(act: Callable[[], object]) -> None:
        while time.monotonic() < end and not refused:
            began = time.monotonic()
            try:
                act()
            except (StoreError, sqlite3.Error) as error:
                refused.append(error)
            took.append(time.monotonic() - began)

    def own() -> None:
        with closing(sqlite3.connect(site.database, timeout=5.0, isolation_level=None)) as connection:

            def act() -> None:
                connection.execute("BEGIN IMMEDIATE")
                site.queue.enqueue("work", connection=connection)
                connection.execute("COMMIT")

            again(act)

    threads = [
        threading.Thread(target=own),
        threading.Thread(target=again, args=(lambda: site.queue.enqueue("work"),)),
        threading.Thread(target=again, args=(lambda: site.queue.job(1),)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert not refused
    assert max(took) < on_this_machine(1.0)
    assert len(took) > 100


@pytest.mark.fault(57)
def test_none_of_a_hundred_forked_children_hangs_in_a_queue_that_its_parent_was_using(tmp_path: object) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    program = f"""
import os, threading, time
from supervisor import Queue
queue = Queue({url!r})
queue.enqueue("tag")
over = False
def busily():
    while not over:
        queue.enqueue("tag")
thread = threading.Thread(target=busily)
thread.start()
failed = 0
for number in range(100):
    child = os.fork()
    if not child:
        try:
            queue.enqueue("child")
        finally:
            os._exit(0)
    end = time.monotonic() + 20
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, 9)
            os.waitpid(child, 0)
            failed += 1
            break
        time.sleep(0.001)
    if failed:
        break
over = True
thread.join()
print(failed)
"""
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=100)
    assert (ended.stdout, ended.stderr) == ("0\n", "")
    with Queue(url) as queue, closing(sqlite3.connect(f"{tmp_path}/jobs.db")) as connection:
        assert connection.execute("SELECT count(*) FROM jobs WHERE type = 'child'").fetchone() == (100,)
        assert queue.enqueue("tag")


HOSTILE = [
    *(
        f"INSERT INTO jobs(type, {c}) VALUES ('work', 9223372036854775807)"
        for c in ("claim_token", "attempts", "crashes")
    ),
    "INSERT INTO jobs(id, type) VALUES (9223372036854775807, 'work')",
    "INSERT INTO jobs(id, type) VALUES (0, 'work')",
    "INSERT INTO jobs(id, type) VALUES (-5, 'work')",
    "INSERT INTO jobs(type) VALUES (CAST(x'6200ff' AS TEXT))",
    "INSERT INTO jobs(type) VALUES ('b' || char(0) || '/../../pools/x?')",
    "INSERT INTO jobs(type) VALUES (CAST('c' || char(0) || hex(zeroblob(5000000)) AS TEXT))",
    "INSERT INTO jobs(type, payload) VALUES ('work', '\"' || hex(zeroblob(15000000)) || '\"')",
    "INSERT INTO jobs(type, requires) VALUES ('work', hex(zeroblob(5000000)))",
    "INSERT INTO jobs(type, unique_key) VALUES ('work', hex(zeroblob(5000000)))",
    "INSERT INTO jobs(type, status, result) VALUES ('work', 'done', hex(zeroblob(5000000)))",
    "INSERT INTO jobs(type, status, last_error) VALUES ('work', 'failed', hex(zeroblob(5000000)))",
    "INSERT INTO jobs(type, status, last_error) VALUES ('work', 'failed', CAST(x'ff00' AS TEXT))",
    "INSERT INTO jobs(type, payload) VALUES ('work', CAST(x'ff' AS TEXT))",
    "INSERT INTO jobs(type, status, completed_at) VALUES ('work', 'done', 1e308)",
    "INSERT INTO jobs(type, status, started_at) VALUES ('work', 'running', -1e308)",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) "
    "INSERT INTO jobs(type) SELECT 'type-' || i FROM n",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) "
    "INSERT INTO jobs(type, requires) SELECT 'work', 'cap' || i FROM n",
]
ADDRESSES = ("/", "/jobs", "/workers", "/schedules", "/failures", "/metrics", "/api/admin/jobs", "/healthz", "/readyz")


@pytest.mark.sqlite
@pytest.mark.fault(58, 59, 60, 61)
def test_hostile_rows_hold_up_neither_the_other_jobs_nor_status_nor_any_page(make_site: MakeSite) -> None:
    site = make_site('[pools.work]\nhandler = "jobs:work"\nworkers = 2\n' + ADMIN, HANDLERS)
    for sql in HOSTILE:
        with closing(sqlite3.connect(site.database)) as foreign, foreign:
            try:
                foreign.execute(sql)
            except sqlite3.DatabaseError:
                foreign.rollback()  # what the table refuses harms nobody
    supervisor = site.start()
    jobs = site.queue.enqueue_many("work", [None] * 10, priority=1)
    enqueued = time.monotonic()
    for job in jobs:
        site.done(job)
    assert time.monotonic() - enqueued < on_this_machine(1.0) + 1.0  # a second for the start of the workers
    site.done(site.queue.enqueue("work", priority=1))
    admin = admin_of(site, supervisor)
    answers = {path: admin.get(path) for path in ADDRESSES}
    assert answers == dict.fromkeys(ADDRESSES, 200)
    assert len(site.command("status").stdout) < 100_000
    assert site.stop(supervisor, signal.SIGTERM) == 0
