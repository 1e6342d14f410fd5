"""What a handler writes into memory or descriptors that it shares with the supervisor, and what that cannot open."""

from __future__ import annotations

import signal

import pytest

from supervisor.system.slot import SLOT_BYTES, Cancel, Slot
from tests.faults.test_no_resources import no_more_files
from tests.site_under_test import MakeSite, wait_for

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
        slot._ints[10] = written
        slot.requests.cancel(7, 1, Cancel.REQUESTED)
        assert slot.requests.cancel_requested(7, 1) is Cancel.REQUESTED
