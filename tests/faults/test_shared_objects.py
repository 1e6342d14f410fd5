"""A handler harms what several processes share; its neighbours go on as before."""

from __future__ import annotations

import contextlib
import http.client
import json
import time

import pytest

from tests.site_under_test import MakeSite
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
