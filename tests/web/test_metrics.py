"""What a scraper gets: the contract's names, and numbers that agree with the table, whoever has died."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import httpx
import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from supervisor.admin.app import make_app
from supervisor.admin.keys import keys_of
from supervisor.admin.metrics import OTHERS
from supervisor.engine import open_engine
from supervisor.ops.views import MOST_TYPES
from supervisor.system.counters import BOUNDS, shared
from supervisor.system.scoreboard import counters_of
from tests.processes.test_history import HANDLERS, POOLS, counted, happened, work_off
from tests.site_under_test import Site, kill, wait_for
from tests.store.kit import Desk, supervisor_record
from tests.web.application import state_for
from tests.web.client import ADMIN, SETTINGS, admin_of

MakeSite = Callable[..., Site]
T = TypeVar("T")


class Scraper:
    """Asks one admin process's application, again and again, until the test is over."""

    made: ClassVar[list[Scraper]] = []

    def __init__(self, url: str) -> None:
        state = state_for(url, SETTINGS, keys_of(SETTINGS))
        self._desk = state.executor
        self._app = make_app(state)
        self.made.append(self)

    def close(self) -> None:
        self._desk.close()

    def get(self, **headers: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.get("/metrics", headers=headers)

        return run(ask())

    def samples(self) -> dict[str, dict[tuple[str, ...], float]]:
        """{name: {label values: value}}, labels by their names."""
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self.get().text):
            for sample in family.samples:
                values = tuple(value for _, value in sorted(sample.labels.items()))
                found.setdefault(sample.name, {})[values] = sample.value
        return found


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while Scraper.made:
        Scraper.made.pop().close()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def put_up(store: Desk, folder: Path, name: str, **types: int) -> Path:
    """A supervisor that was there once: registered, with counters of so many runs of each type."""
    board = folder / f"scoreboard-{name}"
    store.maintenance.registry.register(supervisor_record(name, store.engine, "/nowhere", scoreboard=str(board)))
    row = shared(counters_of(board), 1)
    for type_, count in types.items():
        for _ in range(count):
            row.ran(type_, 0.5, 2.0)
    return board


@pytest.fixture
def store(tmp_path: Path) -> Any:
    opened = Desk.at(open_engine(f"sqlite:///{tmp_path}/jobs.db"))
    with contextlib.closing(opened):
        yield opened


def test_the_numbers_are_those_of_the_table_also_after_workers_and_maintainers_were_killed(make_site: MakeSite) -> None:
    site = make_site(POOLS, HANDLERS)
    supervisor = site.start()
    scraper = Scraper(site.url)
    for _ in range(2):
        work_off(site)
        job = site.queue.enqueue("once")
        pid = site.running_pid(job)
        kill(site.maintainer(supervisor))  # not while it settles the death: a run that is not counted yet is lost then
        kill(pid)
        site.done(job)
    wait_for(lambda: counted(site) == happened(site), "the last ones to be counted")
    site.queue.enqueue_many("unheard.of", [{}] * 3)

    wait_for(lambda: ("pending", "unheard.of") in scraper.samples()["supervisor_jobs"], "a look at all of them")
    found = scraper.samples()

    assert happened(site) == {"work": (34, 22), "once": (2, 2), "unheard.of": (0, 0)}
    assert found["supervisor_job_runs_total"] == {
        ("done", "once"): 2,
        ("failed", "once"): 2,
        ("done", "work"): 34,
        ("failed", "work"): 22,
    }
    for name in ("supervisor_job_run_seconds", "supervisor_job_wait_seconds"):
        assert found[f"{name}_count"] == {("once",): 4, ("work",): 56}
        assert found[f"{name}_bucket"]["+Inf", "work"] == 56
    rows = {(status, type_): count for status, type_, count in site.rows(
        "SELECT status, type, count(*) FROM jobs GROUP BY 1, 2"
    )}  # fmt: skip
    assert {labels: count for labels, count in found["supervisor_jobs"].items() if count} == rows
    assert found["supervisor_oldest_due_seconds"]["unheard.of",] > 0
    assert found["supervisor_unhandled_types"][()] == 1
    # The supervisor tells of its pools once a second.
    wait_for(lambda: sum(scraper.samples()["supervisor_worker_restarts_total"].values()) == 2, "both restarts")
    assert scraper.samples()["supervisor_worker_restarts_total"] == {("once", "signal"): 2}
    assert found["supervisor_workers"]["work", "idle"] == 2
    assert found["supervisor_worker_memory_bytes"]["work",] > 1 << 20
    assert found["supervisor_wal_bytes"][()] == Path(f"{site.database}-wal").stat().st_size
    assert (found["supervisor_up"][()], found["supervisor_pool_target_workers"]["work",]) == (1, 2)

    site.stop(supervisor)
    left = Scraper(site.url).samples()
    assert left["supervisor_up"][()] == 0
    assert scraper.samples()["supervisor_job_runs_total"] == found["supervisor_job_runs_total"]


def test_a_scraper_with_a_token_gets_them_from_the_admin_process_and_nobody_else_does(make_site: MakeSite) -> None:
    site = make_site(ADMIN + POOLS, HANDLERS)
    admin = admin_of(site, site.start())
    work_off(site)

    def ask(**headers: str) -> httpx.Response:
        return httpx.get(f"{admin.listen.rstrip('/')}/metrics", headers=headers, timeout=20)

    wait_for(lambda: 'supervisor_job_runs_total{outcome="done",type="work"} 17.0' in ask(**admin.bearer).text, "them")
    assert (ask().status_code, ask(Authorization="Bearer wrong").status_code) == (401, 401)


def test_a_reload_is_a_restart_of_every_worker_and_a_smaller_pool_is_none(make_site: MakeSite) -> None:
    site = make_site('[pools.work]\nhandler = "jobs:work"\nworkers = 2\nmax_jobs_per_worker = 1000\n', HANDLERS)
    supervisor = site.start()
    wait_for(lambda: len(site.workers()) == 2, "two workers")
    before = {worker.pid for worker in site.workers()}
    supervisor.send_signal(1)
    wait_for(lambda: len(site.workers()) == 2 and not before & {worker.pid for worker in site.workers()}, "new ones")
    site.rows("INSERT INTO job_controls VALUES ('workers', 'work', 1, 0)")

    def shrunk() -> bool:
        news = site.supervisor_status(supervisor)["pools"]["work"]
        return bool(news["size"] == news["target"] == 1)

    wait_for(shrunk, "the bulletin")
    assert Scraper(site.url).samples()["supervisor_worker_restarts_total"] == {("work", "reload"): 2}


def test_whoever_asks_for_openmetrics_gets_it_and_it_is_valid(store: Desk, tmp_path: Path) -> None:
    put_up(store, tmp_path, "s1", tag=3)
    store.put("tag")
    scraper = Scraper(store.engine.url)

    plain = scraper.get()
    assert (plain.status_code, plain.headers["content-type"].partition(";")[0]) == (200, "text/plain")
    answer = scraper.get(accept="application/openmetrics-text; version=1.0.0")
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in openmetrics.text_string_to_metric_families(answer.text)}
    assert families["supervisor_job_runs"].type == "counter"
    assert families["supervisor_job_wait_seconds"].type == "histogram"
    bounds = {sample.labels["le"] for sample in families["supervisor_job_run_seconds"].samples if "le" in sample.labels}
    assert bounds == {*map(str, BOUNDS), "+Inf"}
    for name, family in families.items():  # the labels in docs/metrics.md are made from them
        assert (name.startswith("supervisor_"), family.documentation.endswith(".")) == (True, True), name


def test_a_sum_never_goes_down_because_a_supervisor_has_gone(store: Desk, tmp_path: Path) -> None:
    scraper = Scraper(store.engine.url)
    first = put_up(store, tmp_path, "s1", tag=3, mail=1)
    put_up(store, tmp_path, "s2", tag=5)
    assert scraper.samples()["supervisor_job_runs_total"]["done", "tag"] == 8

    counters_of(first).unlink()
    assert scraper.samples()["supervisor_job_runs_total"]["done", "tag"] == 8
    store.maintenance.registry.forget("s1", 0.0)
    put_up(store, tmp_path, "s3", tag=1)
    found = scraper.samples()
    assert found["supervisor_job_runs_total"] == {
        ("done", "tag"): 9, ("failed", "tag"): 0, ("done", "mail"): 1, ("failed", "mail"): 0,
    }  # fmt: skip
    assert found["supervisor_job_wait_seconds_sum"]["tag",] == 18.0


def test_however_many_types_there_are_the_labels_are_bounded_and_no_job_is_missing(store: Desk, tmp_path: Path) -> None:
    put_up(store, tmp_path, "s1", zz=2)
    for number in range(MOST_TYPES + 50):
        store.put(f"type-{number:03}")

    found = Scraper(store.engine.url).samples()

    types = {labels[1] for labels in found["supervisor_jobs"]}
    assert len(types) <= MOST_TYPES + 1
    assert {OTHERS} <= types
    assert sum(found["supervisor_jobs"].values()) == MOST_TYPES + 50
    assert found["supervisor_job_runs_total"]["done", "zz"] == 2


def test_a_type_of_an_adopted_table_cannot_break_the_format(store: Desk, tmp_path: Path) -> None:
    odd = 'a"b\\c\nd{e="f"} ä'
    board = put_up(store, tmp_path, "s1")
    shared(counters_of(board), 1).ran(odd, 0.5, 0.5)

    assert Scraper(store.engine.url).samples()["supervisor_job_runs_total"]["done", odd] == 1


def test_a_database_that_cannot_be_used_is_said_and_not_hidden_behind_old_numbers(store: Desk, tmp_path: Path) -> None:
    scraper = Scraper(store.engine.url)
    assert scraper.get().status_code == 200
    for path in tmp_path.glob("jobs.db*"):
        if path.is_file():
            path.unlink()

    def refused() -> bool:
        return scraper.get().status_code == 503

    wait_for(refused, "the overview to be looked at again")
    assert "jobs.db" in scraper.get().text
