"""Requests over the queue to a real admin process: many at once, clients that go away, a service that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from supervisor import Status
from supervisor.admin.answers import AGAIN
from tests.postgres_server import Server
from tests.samples import sampled
from tests.site_under_test import Site, kill, pool, wait_for
from tests.stopwatch import Stopwatch
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


class Clients:
    """Each asks until it has its result: by its key, or by the id of its job where it did not wait for it.

    `admin` is where the service is now, None while there is none.
    """

    def __init__(self, admin: Admin) -> None:
        self.admin: Admin | None = admin
        self.answers: Counter[int | str] = Counter()

    async def ask(self, client: httpx.AsyncClient, number: int) -> int:
        """The id of its job, once that is done."""
        job, wait = 0, 0 if number % 5 == 0 else 60
        while True:
            answer = await self._once(client, number, job, wait)
            self.answers["cut" if answer is None else answer.status_code] += 1
            if answer is None:
                await asyncio.sleep(0.1)
            elif answer.status_code == 202:
                job = answer.json()["id"]
            elif answer.status_code == 429:
                await asyncio.sleep(float(answer.headers["Retry-After"]))
            else:
                assert answer.status_code == 200, answer.text
                told = answer.json()
                if job == 0 or told["status"] == "done":
                    assert job or told["result"]["pid"]
                    return int(told["id"])
                await asyncio.sleep(0.2)

    async def _once(self, client: httpx.AsyncClient, number: int, job: int, wait: int) -> httpx.Response | None:
        """None if the connection was cut, or there is no service."""
        if self.admin is None:
            return None
        try:
            if job:
                return await client.get(f"{self.admin.listen}/api/admin/jobs/{job}")
            headers = {"Idempotency-Key": f"k{number}"}
            url, payload = f"{self.admin.listen}/run/work", {"seconds": 0.05, "n": number}
            return await client.post(url, json=payload, params={"wait": wait}, headers=headers)
        except httpx.TransportError:
            return None


async def met(condition: Callable[[], bool], patience: float = 30.0) -> None:
    async with asyncio.timeout(patience):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.each_engine
@pytest.mark.timeout(120)
@pytest.mark.parametrize("clients", sampled([200, 500], quick=1))
def test_of_many_clients_at_once_as_many_are_served_as_may_wait_and_the_others_refused_at_once(
    make_site: MakeSite, clients: int
) -> None:
    site = make_site(FEW + ADMIN)
    site.command("scale", "work", "0")
    admin = admin_of(site, site.start())

    async def ask() -> list[httpx.Response]:
        async with client_of(admin) as client:
            asking = [asyncio.create_task(post(client, {"n": n}, wait=60)) for n in range(clients)]
            await met(lambda: sum(one.done() for one in asking) >= clients - 100)
            refused = [one.result() for one in asking if one.done()]
            assert {answer.status_code for answer in refused} == {429}
            assert {answer.headers["Retry-After"] for answer in refused} == {AGAIN["Retry-After"]}
            assert (await post(client, {}, wait=60)).status_code == 429
            await asyncio.to_thread(site.command, "scale", "work", "auto")
            return await asyncio.gather(*asking)

    answers = asyncio.run(ask())
    assert Counter(answer.status_code for answer in answers) == {429: clients - 100, 200: 100}
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
    # An admin process that outlives its supervisor for a moment still tells those who wait that their jobs are there.
    answered = {one.status_code for one in lost if not isinstance(one, httpx.TransportError)}
    assert answered <= ({202} if killed == "supervisor" else set())
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


@pytest.mark.long
@pytest.mark.fault(7)
@pytest.mark.timeout(240)
def test_each_of_500_clients_of_a_service_that_is_killed_gets_its_result_and_no_job_succeeds_twice(
    make_site: MakeSite,
) -> None:
    site = make_site(FEW + ADMIN)
    supervisors = [site.start()]
    clients = Clients(admin_of(site, supervisors[0]))
    hit: list[int] = []

    def killed_in_the_middle(least: int) -> None:
        """All of it, while jobs run and wait; then it is started again."""
        wait_for(lambda: site.count("done") >= least and site.count("running"), "some to be done", 60)
        kill(supervisors[-1].pid)
        supervisors[-1].wait()
        wait_for(lambda: not site.survivors(supervisors[-1]), "every process to end")
        clients.admin = None
        hit.extend(id_ for (id_,) in site.rows("SELECT id FROM jobs WHERE status = 'running'"))
        supervisors.append(site.start())
        clients.admin = admin_of(site, supervisors[-1])

    async def ask() -> list[int]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(headers=first.bearer, timeout=90, limits=limits) as client:
            asking = [asyncio.create_task(clients.ask(client, number)) for number in range(500)]
            for least in (40, 250):
                await asyncio.to_thread(killed_in_the_middle, least)
            return await asyncio.gather(*asking)

    assert clients.admin is not None
    first = clients.admin
    found = asyncio.run(ask())
    # An admin process that outlives its supervisor for a moment still tells some that their jobs are there.
    assert clients.answers["cut"] + clients.answers[202] >= 100
    assert clients.answers[429] >= 100
    jobs = [id_ for (id_,) in site.rows("SELECT id FROM jobs WHERE type = 'work'")]
    assert sorted(found) == sorted(jobs)
    assert len(jobs) == 500
    site.verdict(hit=hit, others=jobs)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_running_job_whose_client_goes_away_is_cancelled_if_that_was_asked_for(
    make_site: MakeSite, wanted: bool
) -> None:
    site = make_site(pool("patient") + ADMIN, handlers=PATIENT)
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


@contextlib.contextmanager
def begun(site: Site, admin: Admin, path: str, seconds: float = 1) -> Iterator[http.client.HTTPConnection]:
    """A request that waits for a job that has begun: one that is only claimed goes back to the queue."""
    with contextlib.closing(http.client.HTTPConnection(*admin.address, timeout=20)) as connection:
        headers = admin.bearer | {"Content-Type": "application/json"}
        connection.request("POST", path, json.dumps({"seconds": seconds}), headers)
        [number] = wait_for(lambda: site.rows("SELECT id FROM jobs WHERE type = 'work'"), "the job")[0]
        site.running_pid(number)
        yield connection


def test_a_client_that_waits_during_a_reload_gets_its_result(make_site: MakeSite) -> None:
    site = make_site(FEW + ADMIN)
    supervisor = site.start()
    admin = admin_of(site, supervisor)
    with begun(site, admin, "/run/work", seconds=3) as connection:  # longer than a process that is replaced waits
        with (site.folder / "jobs.py").open("a") as handlers:
            handlers.write("\nADDED = 1\n")
        supervisor.send_signal(signal.SIGHUP)
        wait_for(lambda: site.event("reloaded"), "the reload")
        watch = Stopwatch()
        assert admin.get("/healthz") == 200
        assert watch.seconds() < 1
        assert connection.getresponse().status == 200
    assert admin_of(site, supervisor).pid == admin.pid  # for other code alone it is not replaced
    site.rows("DELETE FROM jobs WHERE type = 'work'")
    with begun(site, admin, "/run/work") as connection:
        site.configure(FEW + ADMIN + "show_payloads = true\n")
        supervisor.send_signal(signal.SIGHUP)
        assert connection.getresponse().status == 200
    assert admin_of(site, supervisor, other_than=admin.pid).get("/healthz") == 200


@pytest.mark.each_engine
def test_a_client_whose_job_is_there_is_not_told_to_ask_again_when_the_database_cannot_be_read(
    make_site: MakeSite,
) -> None:
    site = make_site(FEW + ADMIN)
    point = "admin:job_events.before=fail:error*3"
    supervisor = site.start(env=site.failpoints(point))
    admin = admin_of(site, supervisor)
    with begun(site, admin, "/run/work") as connection:
        answer = connection.getresponse()
        told = json.loads(answer.read())
    assert answer.status == 200, told
    assert site.hit(point) == admin.pid
    site.verdict(others=[told["id"]])


@pytest.mark.postgres
def test_a_client_that_waits_while_the_server_is_restarted_gets_its_result(
    own_postgres: Callable[..., Server],
    make_site: MakeSite,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    server = own_postgres(fsync="on")
    site = make_site(FEW + ADMIN, url=server.fresh_database())
    admin = admin_of(site, site.start())
    with begun(site, admin, "/run/work", seconds=2) as connection:
        server.restart("fast")
        answer = connection.getresponse()
        told = json.loads(answer.read())
    assert answer.status == 200, told
    assert site.rows("SELECT count(*) FROM jobs WHERE type = 'work'") == [(1,)]
    site.verdict(hit=[told["id"]], others=[told["id"]])


def test_a_client_that_waits_while_the_service_is_stopped_is_told_where_to_look(make_site: MakeSite) -> None:
    site = make_site(FEW + ADMIN)
    supervisor = site.start()
    admin = admin_of(site, supervisor)
    with begun(site, admin, "/run/work?cancel=true") as connection:
        assert site.stop(supervisor, signal.SIGTERM) == 0
        answer = connection.getresponse()
        assert answer.status in (200, 202)
        job = json.loads(answer.read())["id"]
    assert site.job(job).status is Status.DONE
    site.verdict(others=[job])
