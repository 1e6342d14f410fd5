"""A handler harms what it shares with other processes, or those can open nothing more: its neighbours go on."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import time

import pytest

from supervisor.system.slot import SLOT_BYTES, Cancel, Slot
from tests.faults.test_no_resources import no_more_files
from tests.site_under_test import MakeSite, wait_for
from tests.web.client import ADMIN, Admin, admin_of

POOLS = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\n[pools.evil]\nhandler = "jobs:evil"\nworkers = 1\n'
EVIL = """
import os, socket

def evil(payload, ctx):
    for name in os.listdir("/proc/self/fd"):
        try:
            stream = socket.socket(fileno=os.dup(int(name)))
            stream.shutdown(socket.SHUT_RDWR)
            stream.close()
        except OSError:
            pass
"""


def seconds_of_a_quick_one(admin: Admin, times: int) -> float:
    """A quarter of the requests take less: this machine may be busy."""
    took = []
    with contextlib.closing(http.client.HTTPConnection(*admin.address, timeout=20)) as connection:
        for _ in range(times):
            began = time.monotonic()
            connection.request("POST", "/run/work", json.dumps({}), admin.bearer | {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
            took.append(time.monotonic() - began)
    return sorted(took)[times // 4]


@pytest.mark.sqlite
@pytest.mark.fault(45)
def test_a_handler_that_shuts_down_every_socket_delays_no_answer_to_others(make_site: MakeSite) -> None:
    """Without notices of settled jobs, each takes until the next look, 50 ms later."""
    site = make_site(POOLS + ADMIN)
    with (site.folder / "jobs.py").open("a") as module:
        module.write(EVIL)
    admin = admin_of(site, site.start())
    for _ in range(2):
        site.queue.wait(site.queue.enqueue("evil"), timeout=20)
    assert seconds_of_a_quick_one(admin, 40) < 0.04


POOL = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\n'
READS_NEWS = """
import os
from ledger import record

def work(payload, ctx):
    '''Takes what is in every eventfd of its process, the supervisor's among them.'''
    record("start", ctx)
    for name in os.listdir("/proc/self/fd"):
        try:
            if "eventfd" in os.readlink(f"/proc/self/fd/{name}"):
                for _ in range(payload["times"]):
                    try:
                        os.eventfd_write(int(name), 1)
                        os.eventfd_read(int(name))
                    except BlockingIOError:
                        pass
        except OSError:
            continue
    record("end", ctx)
"""


@pytest.mark.fault(45)
def test_a_handler_that_reads_the_supervisors_news_ends_nobody(make_site: MakeSite) -> None:
    site = make_site(POOL, READS_NEWS)
    supervisor = site.start()
    for _ in range(3):
        site.done(site.queue.enqueue("work", {"times": 30_000}))
    assert supervisor.poll() is None, site.log.read_text()[-2000:]
    site.verdict()


@pytest.mark.fault(30)
def test_a_reload_with_a_new_pool_but_no_descriptor_is_refused_and_changes_nothing(make_site: MakeSite) -> None:
    site = make_site(POOL)
    supervisor = site.start()
    before = site.done(site.queue.enqueue("work")).result["pid"]
    more = "".join(f'[pools.more{number}]\nhandler = "jobs:work"\nworkers = 1\n' for number in range(4))
    site.configure(POOL + more)
    with no_more_files(supervisor.pid, room=2):  # enough to read the configuration
        supervisor.send_signal(signal.SIGHUP)
        wait_for(lambda: site.event("reload_refused") or supervisor.poll() is not None, "the refusal")
    assert supervisor.poll() is None, site.log.read_text()[-2000:]
    assert site.done(site.queue.enqueue("work")).result["pid"] == before
    supervisor.send_signal(signal.SIGHUP)
    wait_for(lambda: site.event("reloaded"), "the next reload")
    site.done(site.queue.enqueue("more3"))
    assert site.stop(supervisor) == 0


@pytest.mark.fault(69)
def test_a_garbled_count_of_cancels_is_no_error_of_who_cancels() -> None:
    slot = Slot(memoryview(bytearray(SLOT_BYTES)))
    for written in ((1 << 63) - 1, -5):
        slot.page.cancels = written
        slot.cancel(7, 1, Cancel.REQUESTED)
        assert slot.page.cancel_requested(7, 1) is Cancel.REQUESTED
