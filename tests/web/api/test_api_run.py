"""A request over the queue: the result of a job in one answer, and never a second run for the same key."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from supervisor.domain.job import NewJob
from supervisor.system import failpoints
from tests.stopwatch import Stopwatch
from tests.store.kit import until
from tests.web.api.conftest import Client, Site, as_reader, checked
from tests.web.application import http_scope

END = "UPDATE jobs SET status = ?, result = ?, last_error = ? WHERE status = 'running'"
CLAIM = "UPDATE jobs SET status = 'running' WHERE status = 'pending'"
ERROR = "INSERT INTO job_errors (job_id, attempt, kind, message, created_at) VALUES"
PENDING = {"id": 1, "status": "pending"}
ENDS: dict[str, tuple[str | None, str | None]] = {"done": ('{"n": 1}', None)}


@pytest.fixture
def work(site: Site) -> Iterator[Callable[[str], None]]:
    """Ends the next job in a state, beside the request."""
    threads = []

    def work(status: str = "done") -> None:
        def wait_and_end() -> None:
            until(lambda: site.rows("SELECT 1 FROM jobs WHERE status = 'pending'"))
            site.rows(CLAIM)
            site.rows(END, status, *ENDS.get(status, (None, "no")))

        threads.append(threading.Thread(target=wait_and_end))
        threads[-1].start()

    yield work
    for thread in threads:
        thread.join(20)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """These statements fail, so many times."""

    def fail(*statements: str, times: int = 10_000) -> None:
        points = (f"{statement}.before=fail:error*{times}" for statement in statements)
        monkeypatch.setenv(failpoints.VARIABLE, ";".join(points))
        failpoints._armed.cache_clear()

    yield fail
    failpoints._armed.cache_clear()


def asked(site: Site, path: str = "/run/tag", payload: Any = None, key: str = "", **params: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    body = {} if payload is None else {"json": payload}
    return site.client.ask("POST", path, params=params, headers=headers, **body)


def states(site: Site) -> list[str]:
    return [row[0].decode() for row in site.rows("SELECT status FROM jobs ORDER BY id")]


def test_the_answer_is_the_result(site: Site, work: Callable[..., None]) -> None:
    work()
    answer = asked(site, payload={"path": "cat.jpg"}, priority=7, requires=["cpu", "gpu"], max_attempts=2)

    assert checked(answer, 200) == {"id": 1, "result": {"n": 1}}
    assert answer.headers["location"] == "/run/tag/1"
    assert site.get(answer.headers["location"]) == {"id": 1, "result": {"n": 1}}
    assert site.get("/api/admin/jobs/1")["redacted"]  # shown although payloads are hidden
    columns = "type, payload, priority, requires, max_attempts, unique_key"
    assert site.rows(f"SELECT {columns} FROM jobs") == [(b"tag", b'{"path":"cat.jpg"}', 7, b"cpu gpu", 2, None)]


@pytest.mark.parametrize(
    ("status", "kinds", "code", "kind"),
    [
        ("failed", ["exception", "permanent"], 422, "permanent"),  # the handler has raised Fail
        ("failed", ["payload"], 422, "payload"),
        ("failed", ["permanent", "exception"], 500, "exception"),
        ("failed", ["timeout"], 500, "timeout"),
        ("failed", ["exit"], 500, "exit"),
        ("failed", [], 500, "failed"),
        ("cancelled", ["exception"], 409, "cancelled"),
        ("quarantined", ["crash"], 500, "crash"),
        ("quarantined", ["payload"], 500, "payload"),
        ("quarantined", [], 500, "quarantined"),
    ],
)
def test_a_job_without_a_result_is_a_problem_that_names_it_and_whose_fault_it_is(
    site: Site, work: Callable[..., None], status: str, kinds: list[str], code: int, kind: str
) -> None:
    rows = ", ".join(f"(new.id, {number}, '{one}', 'no', {number})" for number, one in enumerate(kinds, 1))
    if kinds:
        site.rows(f"CREATE TRIGGER had_errors AFTER INSERT ON jobs BEGIN {ERROR} {rows}; END")
    work(status)
    problem = checked(asked(site), code)
    assert (problem["job"], problem["status"], problem["kind"]) == (1, status, kind)
    assert problem["error"].startswith("job 1 ")
    assert problem["error"].endswith(": no")


def test_when_the_time_is_up_the_answer_says_where_to_look(site: Site) -> None:
    answer = asked(site, wait=0.05, cancel=True)
    assert checked(answer, 202) == PENDING
    assert answer.headers["location"] == "/run/tag/1"


def test_the_same_key_again_is_answered_with_the_same_job(site: Site, work: Callable[..., None]) -> None:
    assert checked(asked(site, payload={"n": 1}, key="k", wait=0), 202) == PENDING
    assert checked(asked(site, payload={"n": 1}, key="k", wait=0), 202) == PENDING
    work()
    for _ in range(2):
        assert checked(asked(site, payload={"n": 1}, key="k"), 200)["id"] == 1
    assert states(site) == ["done"]


def test_the_key_of_another_request_is_refused(site: Site) -> None:
    asked(site, payload={"n": 1}, key="k", wait=0)
    problem = checked(asked(site, payload={"n": 2}, key="k"), 422)
    assert problem == {"error": "idempotency_key: job 1 has it, with another payload", "field": "idempotency_key"}


def test_a_request_with_a_key_is_not_cancelled_with_its_client(site: Site) -> None:
    problem = checked(asked(site, key="k", cancel=True), 422)
    assert (problem["field"], states(site)) == ("cancel", [])


def test_who_has_waited_in_vain_is_told_what_has_become_of_the_job(site: Site) -> None:
    answer = asked(site, wait=0)
    error = "supervisor.InvalidJob: result: it has no JSON"
    site.rows("UPDATE jobs SET attempts = 2, last_error = ?", error)
    told = {"id": 1, "status": "pending", "attempts": 2, "last_error": "result: it has no JSON"}
    assert site.get(answer.headers["location"], 202, wait=0) == told
    site.rows("UPDATE jobs SET last_error = 'ValueError: no'")
    assert site.get(answer.headers["location"], 202, wait=0) == told | {"last_error": "ValueError: no"}
    site.rows(CLAIM)
    site.rows(END, "failed", None, error)
    assert site.get(answer.headers["location"], 500)["error"] == "job 1 has failed: result: it has no JSON"


class TestADatabaseThatCannotBeUsedAnyMore:
    """Once the job is there, nothing invites the client to ask for it again."""

    def test_for_a_moment_is_waited_for(
        self, site: Site, work: Callable[..., None], failing: Callable[..., None]
    ) -> None:
        failing("job_events", times=3)
        work()
        assert checked(asked(site), 200) == {"id": 1, "result": {"n": 1}}

    def test_while_it_says_why_a_job_has_failed_is_waited_for(
        self, site: Site, work: Callable[..., None], failing: Callable[..., None]
    ) -> None:
        failing("job_errors", times=1)
        work("failed")
        assert checked(asked(site), 500)["job"] == 1

    @pytest.mark.parametrize(
        ("statements", "known"),
        [(["job_events"], {"status": "pending"}), (["job_events", "job"], {})],
    )
    def test_until_the_time_is_up_is_answered_with_the_id(
        self, site: Site, failing: Callable[..., None], statements: list[str], known: dict[str, str]
    ) -> None:
        failing(*statements)
        answer = asked(site, wait=0.3)
        assert checked(answer, 202) == {"id": 1} | known
        assert answer.headers["location"] == "/run/tag/1"

    def test_is_told_so_to_who_asks_for_a_result_later(self, site: Site, failing: Callable[..., None]) -> None:
        site.rows("INSERT INTO jobs (type) VALUES ('tag')")
        failing("job_events")
        assert site.get("/run/tag/1", 202, wait=0.3) == PENDING

    def test_when_the_job_is_to_be_made_durable_is_told_with_the_job(self, site: Site) -> None:
        log, kept = site.path.with_name(f"{site.path.name}-wal"), site.path.with_name("kept")

        def take_away() -> None:
            until(lambda: states(site))
            log.rename(kept)
            log.symlink_to(log)  # it cannot be opened

        thread = threading.Thread(target=take_away)
        thread.start()
        try:
            answer = asked(site, wait=0.5)
        finally:
            thread.join(20)
            kept.rename(log)
        problem = checked(answer, 503)
        assert problem["error"].startswith("job 1 was enqueued, and its result is not known: ")
        assert problem["job"] == 1
        assert "would make another one" in problem["hint"]
        assert answer.headers["location"] == "/run/tag/1"
        assert "retry-after" not in answer.headers
        assert states(site) == ["pending"]


def test_workers_that_cannot_be_woken_are_no_reason_to_refuse_what_is_enqueued(
    make_site: Callable[..., Site],
) -> None:
    def fail(jobs: list[NewJob]) -> None:
        raise OSError("no eventfd")

    site = make_site(wake=fail)
    assert checked(asked(site, wait=0), 202)["id"] == 1


class TestTheResultLater:
    """At the `Location` that a 202 names."""

    @pytest.fixture
    def location(self, site: Site) -> str:
        return asked(site, wait=0).headers["location"]

    def test_is_waited_for_as_by_the_request(self, site: Site, location: str, work: Callable[..., None]) -> None:
        answer = site.client.ask("GET", location, params={"wait": 0})
        assert checked(answer, 202) == PENDING
        assert answer.headers["location"] == location
        work()
        for wait in (20, 0):
            assert site.get(location, wait=wait) == {"id": 1, "result": {"n": 1}}

    @pytest.mark.parametrize(("status", "code"), [("failed", 500), ("cancelled", 409), ("quarantined", 500)])
    def test_that_never_comes_is_the_same_problem(
        self, site: Site, location: str, work: Callable[..., None], status: str, code: int
    ) -> None:
        work(status)
        problem = site.get(location, code)
        assert (problem["job"], problem["status"], problem["kind"]) == (1, status, status)

    def test_of_a_type_with_slashes_has_an_address_too(self, site: Site) -> None:
        location = asked(site, "/run/App%2FJobs:Send", wait=0).headers["location"]
        assert location == "/run/App%2FJobs%3ASend/1"
        assert site.get(location, 202, wait=0) == PENDING

    @pytest.mark.parametrize("path", ["/run/caption/1", "/run/tag/2", "/run/tag%2F1/1"])
    def test_is_that_of_a_job_of_the_type(self, site: Site, location: str, path: str) -> None:
        assert site.get(path, 404)["error"] == f"no job has the id {path[-1]}"

    def test_of_a_job_that_is_deleted_meanwhile_does_not_come(self, site: Site, location: str) -> None:
        deleting = threading.Timer(0.2, site.rows, ["DELETE FROM jobs"])
        deleting.start()
        assert site.get(location, 404, wait=20)["error"] == "job 1 was deleted before it had finished"
        deleting.join()

    @pytest.mark.parametrize("wait", ["-1", "301", "nan", "inf", ""])
    def test_wants_a_time_to_wait_that_is_one(self, site: Site, location: str, wait: str) -> None:
        for method, path in (("GET", location), ("POST", "/run/tag")):
            assert checked(site.client.ask(method, f"{path}?wait={wait}"), 422)["field"] == "wait"
        assert states(site) == ["pending"]

    def test_is_not_for_who_may_only_read(self, site: Site, location: str) -> None:
        client = Client(as_reader(site.client.app))
        assert "the full token is needed" in checked(client.ask("GET", location), 403)["error"]
        client.close()


def test_a_full_queue_answers_at_once(site: Site) -> None:
    for _ in range(2):
        assert asked(site, "/run/few", wait=0).status_code == 202
    watch = Stopwatch()
    answer = asked(site, "/run/few", wait=30)

    assert "2 jobs of type 'few' are waiting" in checked(answer, 429)["error"]
    assert int(answer.headers["retry-after"]) >= 1
    assert watch.seconds() < 10
    assert asked(site, "/run/other", wait=0).status_code == 202
    assert site.post("/api/admin/jobs", {"type": "few"}, 201)["id"] == 4
    assert asked(site, "/run/few", wait=0, priority=10).status_code == 202  # it runs before those that wait


@pytest.mark.parametrize(
    ("path", "options", "field", "error"),
    [
        ("/run/Bad%20Type", {}, "type", "string should match pattern"),
        ("/run/tag", {"wait": -1}, "wait", "must be greater than or equal to 0"),
        ("/run/tag", {"wait": 301}, "wait", "must be less than or equal to 300"),
        ("/run/tag", {"priority": 101}, "priority", "must be less than or equal to 100"),
        ("/run/tag", {"unique_key": "k"}, "unique_key", "unknown field"),
        ("/run/tag", {"key": "a b"}, "idempotency-key", "string should match pattern '^[!-~]{1,200}$'"),
    ],
)
def test_invalid_requests_are_refused_in_words_and_nothing_is_written(
    site: Site, path: str, options: dict[str, Any], field: str, error: str
) -> None:
    problem = checked(asked(site, path, **options), 422)
    assert problem["field"] == field
    assert problem["error"].startswith(f"{field}: {error}")
    assert states(site) == []


def test_who_waits_when_the_process_ends_is_told_where_to_look(site: Site) -> None:
    def leave() -> None:
        until(lambda: states(site))
        site.client.loop.call_soon_threadsafe(site.state.requests.leave)

    thread = threading.Thread(target=leave)
    thread.start()
    assert checked(asked(site, cancel=True), 202) == PENDING
    thread.join(20)
    assert states(site) == ["pending"]
    assert checked(asked(site), 202) == {"id": 2, "status": "pending"}


class TestTheClientGoesAway:
    def go(self, site: Site, *, early: bool = False, **params: str) -> None:
        """Ask, and go away once the job is there, or `early`, before it is inserted."""

        async def ask() -> None:
            body = [{"type": "http.request", "body": b"{}", "more_body": False}]

            async def receive() -> dict[str, Any]:
                if body:
                    return body.pop()
                while not (early or states(site)):
                    await asyncio.sleep(0.005)
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                pass

            query = "&".join(f"{name}={value}" for name, value in params.items())
            headers = {"content-type": "application/json", "host": "localhost"}
            scope = http_scope(f"/run/tag?{query}", headers, method="POST")
            await asyncio.wait_for(site.client.app(scope, receive, send), 20)  # type: ignore[arg-type]

        site.client.run(ask())

    def test_its_job_continues(self, site: Site) -> None:
        self.go(site)
        assert states(site) == ["pending"]

    @pytest.mark.parametrize("early", [False, True])
    def test_its_job_is_cancelled_if_it_asked_for_that(self, site: Site, early: bool) -> None:
        self.go(site, cancel="true", early=early)
        until(lambda: states(site) == ["cancelled"])
