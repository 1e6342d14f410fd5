"""Processes that are stopped, stuck, slow, greedy or locked out: judged fairly, and nothing is lost."""

from __future__ import annotations

import os
import signal
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

from supervisor import Status
from supervisor.system.slot import State
from tests import forkserver
from tests.site_under_test import Site, descendants, pool, wait_for

MakeSite = Callable[..., Site]


def test_a_job_of_a_pool_that_a_reload_took_away_keeps_its_lock_and_ends(make_site: MakeSite) -> None:
    stays = pool(lock_time="1s")
    site = make_site(stays + pool("gone", handler="jobs:work", lock_time="1s"))
    supervisor = site.start()
    job = site.queue.enqueue("gone", {"seconds": 3})
    site.running_pid(job)
    site.configure(stays)
    supervisor.send_signal(signal.SIGHUP)
    wait_for(lambda: site.event("reloaded", pools=["work"]), "the reload")
    done = site.done(job)
    assert (done.crashes, len(site.runs("start", job))) == (0, 1)
    assert not site.event("lock_reclaimed")


def test_a_worker_without_beat_and_without_cpu_is_stuck_and_killed(make_site: MakeSite) -> None:
    site = make_site(
        pool("stuck", heartbeat_timeout="1s", max_crashes=1),
        "import ctypes\n"
        "def stuck(payload, ctx):\n"
        "    mutex = ctypes.create_string_buffer(64)\n"
        "    for _ in range(2):  # the second call never returns and never lets go of the interpreter\n"
        "        ctypes.PyDLL(None).pthread_mutex_lock(mutex)\n",
    )
    site.start()
    job = site.queue.wait(site.queue.enqueue("stuck"), timeout=20)
    assert job.status is Status.QUARANTINED
    assert site.rows("SELECT kind FROM job_errors WHERE job_id = ?", job.id) == [("stuck",)]


def test_a_set_up_that_takes_too_long_is_given_up_and_tried_again(make_site: MakeSite) -> None:
    site = make_site(
        pool("slow", handler="jobs:Slow", startup_timeout="500ms"),
        "import os, time\n"
        "class Slow:\n"
        "    def setup(self, ctx):\n"
        "        if not os.path.exists('LEDGER'):\n"
        "            open('LEDGER', 'w').close(); time.sleep(60)\n"
        "    def handle(self, payload, ctx):\n        return 'at last'\n",
    )
    site.start()
    assert site.done(site.queue.enqueue("slow")).result == "at last"
    assert site.told("worker_died", reason="startup_timeout")


def test_a_worker_over_its_memory_is_replaced_between_its_jobs_and_none_is_charged(make_site: MakeSite) -> None:
    site = make_site(
        pool("hoard", max_memory="130MiB"),
        "import os\nfrom ledger import record\nkept = []\n"
        "def hoard(payload, ctx):\n    record('start', ctx)\n    kept.append(os.urandom(50 << 20))\n"
        "    record('end', ctx)\n    return os.getpid()\n",
    )
    site.start()
    jobs = []
    for _ in range(8):
        jobs.append(site.done(site.queue.enqueue("hoard")))
        # Until its successor is there, one that is over the limit may still take a job.
        wait_for(
            lambda: (found := site.workers()) and all(w.state is State.IDLE and not w.recycle_reason for w in found),
            "nobody but one below its limit",
        )
    site.verdict()
    shares = Counter(job.result for job in jobs)
    assert max(shares.values()) <= 3  # 150 MiB
    assert len(shares) >= 3
    assert not site.event("worker_died")


def test_a_template_that_nobody_needs_gives_its_memory_back(make_site: MakeSite) -> None:
    site = make_site(pool(min_workers=0, max_workers=1, scale_down_delay="100ms", idle_timeout="100ms"))
    supervisor = site.start()
    first = site.done(site.queue.enqueue("work")).result["pid"]
    wait_for(lambda: len(descendants(supervisor.pid)) == 1, "the maintainer to be alone")
    assert site.done(site.queue.enqueue("work")).result["pid"] != first
    assert not site.event("template_died")


def test_systemd_hears_when_the_supervisor_is_ready_alive_and_stopping(make_site: MakeSite, tmp_path: Path) -> None:
    site = make_site(pool())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        address = str(tmp_path / "notify")
        systemd.bind(address)
        systemd.settimeout(20)
        supervisor = site.start(env=os.environ | {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "400000"})
        heard = []
        while heard.count("WATCHDOG=1") < 3:
            heard += systemd.recv(4096).decode().splitlines()
        supervisor.send_signal(signal.SIGHUP)
        while "RELOADING=1" not in heard:
            heard += systemd.recv(4096).decode().splitlines()
        wait_for(lambda: site.event("reloaded"), "the reload")
        supervisor.terminate()
        while "STOPPING=1" not in heard:
            heard += systemd.recv(4096).decode().splitlines()
    assert heard.index("READY=1") < heard.index("RELOADING=1") < heard.index("STOPPING=1")
    assert supervisor.wait(20) == 0


def test_a_template_that_does_not_answer_is_replaced(make_site: MakeSite) -> None:
    site = make_site(pool(min_workers=1, max_workers=2))
    site.start()
    [worker] = wait_for(lambda: site.workers("work"), "a worker")
    template = psutil.Process(worker.pid).parent()
    assert template is not None
    template.suspend()
    os.kill(worker.pid, signal.SIGKILL)
    job = site.queue.enqueue("work")
    assert site.done(job, patience=40).crashes == 0
    assert site.told("template_stuck")


def test_a_free_threaded_build_is_told(make_site: MakeSite) -> None:
    site = make_site(pool())
    (site.folder / "sitecustomize.py").write_text(
        "import sysconfig\nusual = sysconfig.get_config_var\n"
        "sysconfig.get_config_var = lambda name: 1 if name == 'Py_GIL_DISABLED' else usual(name)\n"
    )
    env = os.environ | {"PYTHONPATH": str(site.folder)}
    site.start(env=env)
    assert "workers are processes" in site.told("untested_python")["hint"]  # type: ignore[index]
    ran = forkserver.run(["doctor", "-c", str(site.config)], cwd=site.folder, env=env)
    assert "is free-threaded" in " ".join(ran.stdout.split())  # a long path breaks the line anywhere
    assert site.done(site.queue.enqueue("work")).status is Status.DONE
