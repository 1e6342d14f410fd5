"""Requests over the queue to a real admin process: many at once, clients that go away, a service that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from supervisor import Status
from tests.site_under_test import Site, kill, wait_for
from tests.web.client import ADMIN, Admin, admin_of

MakeSite = Callable[..., Site]

FEW = '[pools.work]\nhandler = "jobs:work"\nworkers = 2\nmax_waiting = 100\n'
PATIENT = """
import time

def patient(payload, ctx):
    while not ctx.cancelled:
        time.sleep(0.01)
    raise RuntimeError("nobody waits")
"""


async def post(client: httpx.AsyncClient, payload: Any, key: str = "", **params: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    return await client.post("/run/work", json=payload, params=params, headers=headers)


def client_of(admin: Admin) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=admin.listen, headers=admin.bearer, timeout=60, limits=limits)


async def met(condition: Callable[[], bool], patience: float = 30.0) -> None:
    async with asyncio.timeout(patience):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.each_engine
@pytest.mark.timeout(120)
def test_of_500_clients_at_once_as_many_are_served_as_may_wait_and_the_others_refused_at_once(
    make_site: MakeSite,
) -> None:
    site = make_site(FEW + ADMIN)
    site.queue.pause("work", force=True)
    admin = admin_of(site, site.start())

    async def ask() -> list[httpx.Response]:
        async with client_of(admin) as client:
            asking = [asyncio.create_task(post(client, {"n": n}, wait=60)) for n in range(500)]
            await met(lambda: sum(one.done() for one in asking) >= 400)
            assert {one.result().status_code for one in asking if one.done()} == {429}
            await asyncio.to_thread(site.queue.resume, "work")
            return await asyncio.gather(*asking)

    answers = asyncio.run(ask())
    assert Counter(answer.status_code for answer in answers) == {429: 400, 200: 100}
    assert len({answer.json()["id"] for answer in answers if answer.status_code == 200}) == 100
    jobs = [id_ for (id_,) in site.rows("SELECT id FROM jobs WHERE type = 'work'")]
    assert len(jobs) == 100
    site.verdict(others=jobs)


@pytest.mark.each_engine
@pytest.mark.fault(7)
@pytest.mark.parametrize("killed", ["admin process", "supervisor"])
def test_clients_of_a_killed_service_ask_again_by_their_key_and_get_the_result_of_the_first_request(
    make_site: MakeSite, killed: str
) -> None:
    site = make_site(FEW + ADMIN)
    supervisor = site.start()
    admin = admin_of(site, supervisor)
    go = site.folder / "go"
    payloads = [{"n": n, "until": str(go)} for n in range(20)]

    async def ask(admin: Admin, asked: Callable[[], object] | None = None) -> list[httpx.Response | BaseException]:
        async with client_of(admin) as client:
            asking = [asyncio.create_task(post(client, one, key=f"k{one['n']}", wait=60)) for one in payloads]
            if asked is not None:
                await asyncio.to_thread(asked)
            return await asyncio.gather(*asking, return_exceptions=True)

    def all_there() -> None:
        wait_for(lambda: site.rows("SELECT count(*) FROM jobs WHERE type = 'work'") == [(20,)], "the jobs")
        wait_for(lambda: site.rows("SELECT count(*) FROM jobs WHERE status = 'running'") == [(2,)], "two to run")
        kill(admin.pid if killed == "admin process" else supervisor.pid)

    lost = asyncio.run(ask(admin, all_there))
    assert all(isinstance(one, httpx.TransportError) for one in lost)
    hit = [id_ for (id_,) in site.rows("SELECT id FROM jobs WHERE status = 'running'")]
    go.touch()
    if killed == "supervisor":
        supervisor.wait()
        wait_for(lambda: not site.survivors(supervisor), "every process to end")
        again = admin_of(site, site.start())
    else:
        hit = []
        again = admin_of(site, supervisor, other_than=admin.pid)

    answers = asyncio.run(ask(again))
    found = [one.json() for one in answers if isinstance(one, httpx.Response) and one.status_code == 200]
    jobs = [id_ for (id_,) in site.rows("SELECT id FROM jobs WHERE type = 'work'")]
    assert sorted(one["id"] for one in found) == sorted(jobs)
    assert len(jobs) == 20
    site.verdict(hit=hit, others=jobs)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_running_job_whose_client_goes_away_is_cancelled_if_that_was_asked_for(
    make_site: MakeSite, wanted: bool
) -> None:
    site = make_site('[pools.patient]\nhandler = "jobs:patient"\nworkers = 1\n' + ADMIN, handlers=PATIENT)
    admin = admin_of(site, site.start())
    connection = http.client.HTTPConnection(*admin.address, timeout=20)
    headers = admin.bearer | {"Content-Type": "application/json"}
    connection.request("POST", f"/run/patient?cancel={str(wanted).lower()}", "{}", headers)
    [job] = wait_for(lambda: site.rows("SELECT id FROM jobs WHERE status = 'running'"), "it to run")[0]
    connection.close()
    if wanted:
        assert site.queue.wait(job, timeout=20).status is Status.CANCELLED
    else:
        assert admin.get("/healthz") == 200
        assert site.job(job).cancel_requested_at is None
        site.queue.cancel(job)
        site.queue.wait(job, timeout=20)


def test_a_client_that_waits_while_the_service_is_stopped_is_told_where_to_look(make_site: MakeSite) -> None:
    site = make_site(FEW + ADMIN)
    supervisor = site.start()
    admin = admin_of(site, supervisor)
    with contextlib.closing(http.client.HTTPConnection(*admin.address, timeout=20)) as connection:
        headers = admin.bearer | {"Content-Type": "application/json"}
        connection.request("POST", "/run/work?cancel=true", json.dumps({"seconds": 1}), headers)
        wait_for(lambda: site.rows("SELECT id FROM jobs WHERE status = 'running'"), "it to run")
        assert site.stop(supervisor, signal.SIGTERM) == 0
        answer = connection.getresponse()
        assert answer.status in (200, 202)
        job = json.loads(answer.read())["id"]
    assert site.job(job).status is Status.DONE
    site.verdict(others=[job])
