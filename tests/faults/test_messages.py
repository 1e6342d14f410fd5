"""What the processes say to each other: too much, or garbage, costs the message and never the supervisor."""

from __future__ import annotations

import pytest

from tests.site_under_test import MakeSite, Site, wait_for

POOLS = """
[pools.bad]
handler = "bad:handle"
workers = 1
[pools.work]
handler = "jobs:work"
workers = 1
"""
RAISES = "raise RuntimeError('x' * {size})\n"
IN_SET_UP = "class handle:\n    def setup(self, ctx): {raises}    def handle(self, payload, ctx): pass\n"
# It finds the template's end of the channel among its descriptors, as any code there could.
GARBLES = """
import os, socket, stat

def channels():
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found = socket.socket(fileno=os.dup(int(name)))
                if found.type == socket.SOCK_SEQPACKET:
                    yield found
        except OSError:
            pass

for channel in channels():
    for garbage in (
        b"{", b"\\xff", b"\\x03[]", b'\\x03{"forked": []}', b'\\x03{"forked": "x", "pid": "y"}', b'\\x03{"exited": 1}',
        b'\\x03{"unforked": {}}', b'\\x03{"broken": null}'[:3], b"\\x01{", b'\\x03{"broken' + b"x" * 60000,
    ):
        socket.send_fds(channel, [garbage], [0, 1, 2])

def handle(payload, ctx):
    return None
"""


def bad_site(make_site: MakeSite, text: str) -> Site:
    site = make_site(POOLS)
    (site.folder / "bad.py").write_text(text)
    return site


@pytest.mark.fault(63)
@pytest.mark.parametrize(("size", "text"), [(140_000, IN_SET_UP), (200_000, "{raises}"), (10_000_000, "{raises}")])
def test_a_huge_error_of_one_pool_harms_no_other_and_is_shown(make_site: MakeSite, size: int, text: str) -> None:
    site = bad_site(make_site, text.format(raises=RAISES.format(size=size)))
    supervisor = site.start()
    site.done(site.queue.enqueue("work"))
    problem = wait_for(lambda: site.supervisor_status(supervisor)["pools"]["bad"]["problem"], "the problem to be shown")
    assert "xxx" in problem
    assert len(problem) < 10_000
    assert supervisor.poll() is None
    assert site.stop(supervisor) == 0


@pytest.mark.fault(63)
def test_garbage_in_the_channel_costs_nobody_anything(make_site: MakeSite) -> None:
    site = bad_site(make_site, GARBLES)
    supervisor = site.start()
    for type_ in ("work", "bad"):
        site.done(site.queue.enqueue(type_))
    assert site.told("message_garbled")
    assert supervisor.poll() is None
    assert site.stop(supervisor) == 0
