"""Requests whose jobs nobody would run are refused at once, and none that somebody might run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from supervisor.admin import requests
from supervisor.domain.errors import StoreUnavailable
from supervisor.ops import serving
from supervisor.system.slot import State
from tests.stopwatch import Stopwatch
from tests.store.kit import supervisor_record
from tests.web.api.conftest import BULLETIN, POOL, Site, checked, supervise

BROKEN = POOL | {"problem": "ImportError: no module tagger", "broken": True}
SENTENCE = "the pool tag of supervisor 1 cannot start its workers: ImportError: no module tagger"
FIX = "fix the cause, then run `supervisor reload`; the set-up is also retried automatically"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(requests, "PATIENCE", 60.0)


def asked(site: Site, type_: str = "tag", key: str = "", **more: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    more = more or {"json": {}}
    return site.client.ask(
        "POST", f"/run/{type_}", params={"wait": 0}, headers=headers | more.pop("headers", {}), **more
    )


def unavailable(answer: httpx.Response) -> tuple[str, str]:
    problem = checked(answer, 503)
    assert int(answer.headers["retry-after"]) >= 1
    return problem["error"], problem["hint"]


def status(**pools: Any) -> dict[str, Any]:
    return BULLETIN | {"pools": pools}


class TestATypeThatNoPoolTakes:
    def test_is_refused_at_once_with_the_one_that_is_meant(self, site: Site) -> None:
        watch = Stopwatch()
        answer = site.client.ask("POST", "/run/captoin", params={"wait": 30}, json={})
        assert checked(answer, 404)["error"] == "no pool takes the type captoin; did you mean caption?"
        assert watch.seconds() < 10
        assert site.rows() == []

    def test_takes_no_file(self, site: Site) -> None:
        answer = asked(site, "captoin", content=b"cat", headers={"Content-Type": "image/jpeg"})
        assert checked(answer, 404)["error"].startswith("no pool takes the type captoin")
        assert not [*site.path.parent.glob("spool/*")]

    def test_is_not_refused_if_a_running_supervisor_takes_it(self, make_site: Callable[..., Site]) -> None:
        site = make_site(supervisor_status=status(resize=POOL | {"types": ["resize"]}))
        assert asked(site, "resize").status_code == 202

    def test_is_not_refused_while_the_pools_of_a_supervisor_are_not_known(self, site: Site) -> None:
        site.desk.maintenance.registry.register(supervisor_record("s2", site.engine, "/nowhere", scoreboard="/nowhere"))
        checked(asked(site, "captoin"), 404)  # it is known to be dead
        supervise(site.engine, site.desk, site.path.parent, status(), name="s3").path.unlink()
        assert asked(site, "captoin").status_code == 202

    def test_is_not_refused_within_an_hour_after_a_host_has_gone(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checked(asked(site, "captoin"), 404)
        site.rows("INSERT INTO job_meta (key, value) VALUES ('gone:gpu-1', ?)", f"{time.time()!r} 7 stopped")
        assert asked(site, "captoin").status_code == 202
        monkeypatch.setattr(serving, "LATELY", -1.0)
        checked(asked(site, "captoin"), 404)

    def test_is_not_refused_to_whom_an_earlier_request_with_the_key_was_not(
        self, make_site: Callable[..., Site]
    ) -> None:
        site = make_site(supervised=False)
        board = supervise(site.engine, site.desk, site.path.parent, status(resize=POOL | {"types": ["resize"]}))
        assert asked(site, "resize", key="k").status_code == 202
        board.post(status())
        site.state.requests._seen_at = 0.0  # as if a second had passed
        assert checked(asked(site, "resize", key="k"), 202) == {"id": 1, "status": "pending"}
        checked(asked(site, "resize", key="other"), 404)


class TestAPoolThatCannotStartItsWorkers:
    def test_takes_no_requests(self, make_site: Callable[..., Site]) -> None:
        site = make_site(supervisor_status=status(tag=BROKEN))
        assert unavailable(asked(site)) == (SENTENCE, FIX)
        assert site.get("/readyz", 503)["reasons"] == [SENTENCE]
        assert unavailable(asked(site, content=b"cat", headers={"Content-Type": "image/jpeg"})) == (SENTENCE, FIX)
        assert site.rows() == []
        assert not [*site.path.parent.glob("spool/*")]
        assert asked(site, "mail").status_code == 202

    @pytest.mark.parametrize(
        "other",
        [
            POOL,
            BROKEN | {"broken": False},  # the old code runs
            BROKEN | {"target": 0},  # only a job makes it try again
        ],
    )
    def test_is_no_obstacle_beside_one_that_may_serve(
        self, make_site: Callable[..., Site], other: dict[str, Any]
    ) -> None:
        site = make_site(supervisor_status=status(tag=BROKEN, other=other))
        assert asked(site).status_code == 202

    def test_but_has_a_worker_that_is_ready_takes_requests(self, make_site: Callable[..., Site]) -> None:
        site = make_site(supervised=False)
        board = supervise(site.engine, site.desk, site.path.parent, status(tag=BROKEN))
        board.use_up_to(1)
        slot = board.slot(1)
        slot.assign("incarnation", "tag-1")
        unavailable(asked(site))
        slot.state(State.IDLE)
        site.state.requests._seen_at = 0.0
        assert asked(site).status_code == 202


class TestAPausedType:
    def test_takes_no_requests_until_it_is_resumed(self, site: Site) -> None:
        assert asked(site).status_code == 202
        site.put("/api/admin/types/tag", {"paused": True})
        site.state.requests._seen_at = 0.0  # as if a second had passed
        assert unavailable(asked(site)) == ("the type tag is paused", "`supervisor resume tag` resumes it")
        assert asked(site, "caption").status_code == 202
        site.put("/api/admin/types/tag", {"paused": False})
        assert asked(site).status_code == 202  # a refusal is never older than the request

    def test_answers_an_earlier_request_with_the_key(self, site: Site) -> None:
        assert asked(site, key="k").status_code == 202
        site.put("/api/admin/types/tag", {"paused": True})
        site.state.requests._seen_at = 0.0
        assert checked(asked(site, key="k"), 202) == {"id": 1, "status": "pending"}
        unavailable(asked(site, key="other"))


class TestSeveralHosts:
    @pytest.fixture
    def site(self, make_site: Callable[..., Site]) -> Site:
        site = make_site(supervised=False)
        for number, host in enumerate(("alpha", "beta")):
            supervise(site.engine, site.desk, site.path.parent, status(tag=POOL), name=f"s{number}", host=host)
        return site

    def test_a_pool_is_in_no_ones_way_while_that_of_another_host_may_serve(self, site: Site) -> None:
        drain(site, "beta")
        assert asked(site).status_code == 202
        drain(site, "alpha")
        assert unavailable(asked(site)) == (
            "supervisor 1 on alpha claims no jobs: its host is drained",
            "`supervisor undrain alpha` lets it claim jobs again",
        )

    def test_a_host_that_is_drained_alone_takes_no_type_away(self, site: Site) -> None:
        drain(site, "alpha")
        assert asked(site).status_code == 202


def drain(site: Site, host: str) -> None:
    site.rows("INSERT INTO job_meta (key, value) VALUES (?, '1')", f"drained:{host}")
    site.state.requests._seen_at = 0.0  # as if a second had passed


class TestALook:
    @pytest.fixture
    def looks(self, monkeypatch: pytest.MonkeyPatch) -> list[object]:
        made: list[object] = []

        def look(operations: Any) -> Any:
            made.append(operations)
            return serving.serving(operations)

        monkeypatch.setattr(requests, "serving", look)
        return made

    def test_serves_all_requests_of_a_second(self, site: Site, looks: list[object]) -> None:
        for _ in range(20):
            assert asked(site).status_code == 202
            site.state.requests._seen_at = time.monotonic() + 60  # however long that took
        assert len(looks) == 1
        site.state.requests._seen_at = 0.0
        assert asked(site).status_code == 202
        assert len(looks) == 2

    def test_that_fails_or_takes_long_refuses_nothing(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(operations: Any) -> Any:
            raise StoreUnavailable("no")

        monkeypatch.setattr(requests, "serving", fail)
        assert asked(site).status_code == 202
        monkeypatch.setattr(requests, "PATIENCE", 0.01)
        monkeypatch.setattr(requests, "serving", lambda operations: time.sleep(0.5))
        assert asked(site).status_code == 202
