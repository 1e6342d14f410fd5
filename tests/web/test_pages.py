"""What pages say, looked at without a browser: the application in this process, on a real database."""

from __future__ import annotations

import asyncio
import contextlib
import html
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from supervisor import Queue
from supervisor.admin.access import AccessMiddleware
from supervisor.admin.keys import Keys
from supervisor.admin.rendering import with_code
from supervisor.admin.streams import OverviewWatch
from supervisor.config.settings import AdminSettings
from supervisor.domain.errors import StoreBusy
from supervisor.domain.history import Hour
from supervisor.domain.job import Attempt, Run
from supervisor.ops.job_details import trials
from supervisor.testing import run_due
from tests.cli import test_top_screen as some
from tests.fresh import make_tables
from tests.web import client
from tests.web.application import Application, state_for

SETTINGS = client.SETTINGS._replace(listen="127.0.0.1:8787")
TOKEN, READ_TOKEN = "the-token-of-admins", "the-token-of-readers"
KEYS = Keys(TOKEN, READ_TOKEN, "supervisor_8787")
HOSTILE = "<img src=x onerror=alert(1)>"


class Reader:
    """Opens pages as a browser asks for them."""

    def __init__(self, url: str, settings: AdminSettings) -> None:
        self._loop = asyncio.Runner()
        state = state_for(url, settings, KEYS, "tag")
        self.desk = state.executor
        self.app = Application(state)
        gate = AccessMiddleware(self.app, KEYS, settings)
        self._http = httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="http://localhost")

    def get(self, path: str, *, token: str | None = TOKEN, accept: str = "text/html") -> httpx.Response:
        headers = {"Accept": accept} | ({"Authorization": f"Bearer {token}"} if token else {})
        return self._loop.run(self._http.get(path, headers=headers))

    def text(self, path: str, **more: Any) -> str:
        """What a page says, without its tags."""
        answer = self.get(path, **more)
        assert answer.status_code == 200, answer.text
        return words(answer.text)

    def close(self) -> None:
        self._loop.run(self._http.aclose())
        self._loop.close()
        self.desk.close()


def words(page: str) -> str:
    body = page.partition("<body")[2] or page
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    make_tables(tmp_path / "jobs.db")
    with Queue(f"sqlite:///{tmp_path}/jobs.db") as made:
        yield made


@pytest.fixture
def read(queue: Queue) -> Iterator[Callable[..., Reader]]:
    with contextlib.ExitStack() as stack:

        def make(**settings: Any) -> Reader:
            reader = Reader(queue.url, SETTINGS._replace(**settings))
            stack.callback(reader.close)
            return reader

        yield make


def write(queue: Queue, sql: str, *values: object) -> None:
    path = queue.url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path, timeout=20)) as connection, connection:
        connection.execute(sql, values)


def broken(payload: dict[str, Any], ctx: Any) -> None:
    raise ValueError(f"cannot open {payload['path']!r}")


def test_an_empty_system_without_a_supervisor_says_how_to_begin(read: Callable[..., Reader]) -> None:
    reader = read()

    first = reader.text("/")
    assert "No supervisor is running" in first
    assert "supervisor run" in first
    assert "There are no jobs yet" in first
    assert "supervisor enqueue greet" in first
    assert "INSERT INTO jobs" in first
    assert "There are no jobs yet" in reader.text("/jobs")
    assert "No supervisor is running, so there are no workers" in reader.text("/workers")
    assert "Nothing is scheduled" in reader.text("/schedules")
    assert "No failures" in reader.text("/failures")


def test_the_page_of_a_batch_has_its_numbers_and_leads_to_its_jobs(queue: Queue, read: Callable[..., Reader]) -> None:
    with queue.batch(on_done="mail") as batch:
        batch.enqueue_many("tag", [{}] * 1200)
        assert f'data-url="/api/admin/batches/{batch.id}/close"' in read().get(f"/batches/{batch.id}").text
    queue.enqueue("tag", unique_key="other")
    reader = read()
    page = reader.get(f"/batches/{batch.id}").text
    assert "Waits for its last job" in words(page)
    assert f'<a href="/jobs?batch={batch.id}&amp;status=pending">1,200</a>' in page
    assert "/close" not in page
    assert f'<a href="/batches/{batch.id}">' in reader.get(f"/jobs?batch={batch.id}&status=pending").text
    assert "#1201" not in reader.text(f"/jobs?batch={batch.id}")
    assert "“x” is not a valid batch" in reader.text("/jobs?batch=x")
    assert reader.get("/batches/7").status_code == 404


def test_batches_are_listed_in_pages_and_unfinished_ones_alone(queue: Queue, read: Callable[..., Reader]) -> None:
    reader = read()
    assert "There are no batches" in reader.text("/batches")
    with queue.batch(on_done="mail") as half:
        half.enqueue_many("tag", [{}] * 4)
    write(queue, "UPDATE jobs SET status = 'failed', completed_at = 1 WHERE id = 1")
    row = f"{half.id} closed 25 % 25 % 1 of 4 ended 1 mail when it has ended"
    assert row in reader.text("/batches")
    opened = [queue.batches.open() for _ in range(50)]
    write(queue, "UPDATE job_batches SET closed = 1, ended_at = 2 WHERE id = ?", opened[-1])

    first, unfinished = (reader.get(path).text for path in ("/batches", "/batches?unfinished=1"))
    assert re.findall(r'id="batch-(\d+)"', first) == [*map(str, opened[::-1])]
    assert re.findall(r'id="batch-(\d+)"', unfinished) == [*map(str, opened[-2::-1]), str(half.id)]
    [older] = re.findall(r'rel="next" href="([^"]*)"', first)
    assert row in reader.text(html.unescape(older))


def test_a_run_takes_equally_long_in_the_list_and_on_its_page(queue: Queue, read: Callable[..., Reader]) -> None:
    queue.enqueue_many("tag", [{}, {}])
    run_due(queue, {"tag": lambda payload, ctx: None})
    write(queue, "UPDATE jobs SET started_at = 10, completed_at = 17")  # settled two seconds after its end
    row = "INSERT INTO job_runs (job_id, token, attempt, outcome, started_at, duration)"
    write(queue, f"{row} SELECT id, claim_token + 1 - id, 1, 'done', 10, 5 FROM jobs")
    reader = read()
    assert "took 5.0 s" in reader.text("/jobs?type=tag").partition("#1 ")[2]
    assert "Took 5.0 s" in reader.text("/jobs/1")
    assert "took 7.0 s" in reader.text("/jobs").partition("#2 ")[2]  # an earlier run's record is not this one's


def test_what_is_wrong_is_said_for_a_page_and_not_for_a_terminal(queue: Queue, read: Callable[..., Reader]) -> None:
    write(queue, "INSERT INTO jobs(type, status) VALUES ('tag', 'quarantined')")

    page = read().get("/").text

    assert "<code>supervisor run</code> starts one" in page
    assert "`" not in words(page)
    assert "jobs list --status" not in page
    assert '<a class="button" href="/jobs?status=quarantined">Show them</a>' in page
    assert "Done in the last hour 0 no run has ended" in words(page)


def test_the_page_of_a_job_says_why_it_does_not_run_and_held_ones_are_counted_apart(
    queue: Queue, read: Callable[..., Reader]
) -> None:
    waiting = queue.enqueue("tag", delay="1h")
    assert "Held" not in read().text("/").partition("Types")[2]
    write(queue, "INSERT INTO jobs (type, status, hold, concurrency_key) VALUES ('tag', 'held', 'key', 'user:42')")
    reader = read()

    page = reader.text(f"/jobs/{waiting}")
    assert "Why it does not run It is not due until " in page
    assert "No supervisor is running. supervisor run starts one." in page
    page = reader.text(f"/jobs/{waiting + 1}")
    assert "Its concurrency key user:42 has room, and a supervisor has to let it through" in page
    assert "Run now… Cancel…" in page
    assert "Delete…" not in page
    assert "waits for its key user:42" in reader.text("/jobs")
    batch = queue.batches.open()
    after = queue.enqueue("tag", after=[waiting], batch=batch, fair_key="ada")
    page = reader.get(f"/jobs/{after}").text
    assert f'<a href="/jobs/{waiting}">#{waiting}</a>' in page
    assert f'<a href="/batches/{batch}">' in page
    assert "It waits for 1 job (1) to end. Job 1" in words(page)
    assert "Fair key ada" in words(page)
    error = f"cancelled: job {waiting}, before it, ended failed"
    write(queue, "UPDATE jobs SET status = 'cancelled', completed_at = 9, last_error = ? WHERE id = ?", error, after)
    assert f"it was to run after job {waiting}, which ended failed. Job {waiting}" in reader.text(f"/jobs/{after}")
    overview = reader.get("/").text
    assert '<a href="/jobs?status=held">1 held</a>' in overview
    assert '<a href="/jobs?status=held&amp;type=tag">1</a>' in overview
    assert "Held 1" in reader.text("/jobs")
    assert '<span class="badge is-held">held</span>' in reader.get("/jobs?status=held").text


def test_what_stands_between_backticks_is_code_and_stays_escaped() -> None:
    assert with_code("run `a <b>` & `c`") == "run <code>a &lt;b&gt;</code> &amp; <code>c</code>"
    assert with_code("it's a ` <b>") == "it&#39;s a ` &lt;b&gt;"


def test_an_unknown_address_has_a_page_for_people_and_a_sentence_for_programs(read: Callable[..., Reader]) -> None:
    reader = read()

    for path in ("/nothing", f"/{HOSTILE}", "/jobs/abc", "/jobs/99", "/jobs/99999999999999999999999"):
        page = reader.get(path)
        assert (page.status_code, "Page not found" in page.text) == (404, True), path
        assert "<img" not in page.text
    assert "No job has the id 99" in words(reader.get("/jobs/99").text)
    assert reader.get("/nothing", accept="*/*").headers["content-type"] == "application/json"


def test_a_database_that_cannot_be_used_has_a_page_of_its_own(
    queue: Queue, read: Callable[..., Reader], tmp_path: Path
) -> None:
    reader = read()
    queue.close()
    for path in tmp_path.glob("jobs.db*"):
        if path.is_file():
            path.rename(path.with_name(f"away-{path.name}"))

    page = reader.get("/jobs")

    assert page.status_code == 503
    assert "The database cannot be used" in page.text
    assert "jobs.db" in page.text


def test_a_busy_database_and_a_mistake_of_ours_are_told_apart(
    queue: Queue, read: Callable[..., Reader], capsys: pytest.CaptureFixture[str]
) -> None:
    reader = read()

    async def fails(error: Exception) -> None:
        raise error

    cases = [(StoreBusy("it is busy"), 503, "It is busy"), (KeyError("secret"), 500, "Internal error")]
    for error, status, said in cases:
        reader.app.state.watch.overview = lambda error=error: fails(error)
        page = reader.get("/")
        assert (page.status_code, said in page.text) == (status, True)
        assert "secret" not in page.text
    assert "request_failed" in "".join(capsys.readouterr())


def test_charts_go_back_as_far_as_chosen(queue: Queue, read: Callable[..., Reader]) -> None:
    now = time.time()
    for ago, type_ in ((300, "tag"), (7200, "tag"), (7300, "mail"), (5 * 86400, "tag"), (40 * 86400, "tag")):
        minute = now // 60 * 60 - ago
        write(queue, "INSERT INTO job_history VALUES (?, ?, 1, 2, 7, 0, 5.0, 0.5)", minute, type_)
    reader = read()

    for since, runs, period in (("", 3, "hour"), ("1h", 3, "hour"), ("1d", 9, "day"), ("30d", 12, "30 days")):
        page = reader.get(f"/?since={since}").text
        assert f"The last {period} by state done {runs // 3} failed {2 * runs // 3}" in words(page)
        assert re.search(rf'<a href="/\?since={since or "1h"}" aria-current="true">Last {period}</a>', page)
        assert len(re.findall('aria-label="Runs that ended', page)) == 2  # what the pictures say without eyes
        history = reader.text(f"/history?type=tag&since={since}")
        assert f"in the last {period}" in history
        assert "Waiting jobs waiting at most 7" in history
    assert "Done 3 in the last 30 days Failed attempts 6" in reader.text("/history?type=tag&since=30d")
    assert "Done 4 in the last 30 days" in reader.text("/history?type=tag&type=mail&since=30d")
    assert "Done 4 in the last 30 days" in reader.text("/history?since=30d")
    assert "No run has ended in the last hour" in reader.text("/history?type=mail")
    assert "The last hour by state" in reader.text("/?since=forever")
    assert "<img" not in reader.get(f"/history?type={HOSTILE}&since={HOSTILE}").text
    page = reader.get("/history?type=a%20b&type=c%26since%3D1h").text
    [link] = re.findall(r'<a href="([^"]*)">Last day</a>', page)  # it keeps the types
    assert html.unescape(link) == "/history?since=1d&type=a%20b&type=c%26since%3D1h"
    assert "History of a b, c&since=1h" in reader.text(html.unescape(link))


def test_payloads_and_results_are_shown_and_found_only_where_that_is_allowed(
    queue: Queue, read: Callable[..., Reader]
) -> None:
    queue.enqueue("tag", {"path": "secret-cat.jpg"})
    [job] = run_due(queue, {"tag": lambda payload, ctx: {"tags": ["secret-tag"]}})
    queue.enqueue("tag", {"path": "secret-dog.jpg"})

    closed, opened = read(), read(show_payloads=True)

    for path in (f"/jobs/{job.id}", "/jobs", "/"):
        assert "secret" not in closed.get(path).text
    assert "show_payloads = true" in closed.text(f"/jobs/{job.id}")
    assert '"secret-cat.jpg"' in opened.text(f"/jobs/{job.id}")
    assert '"secret-tag"' in opened.text(f"/jobs/{job.id}")
    assert '{"path": "secret-cat.jpg"}' in opened.text("/jobs")
    found = opened.get("/jobs?text=SECRET-CAT").text
    assert ("dog" in found, "job-1" in found) == (False, True)
    assert "cannot be searched" in closed.text("/jobs?text=secret-cat")
    assert "job-1" not in closed.get("/jobs?text=secret-cat").text
    assert 'name="text"' not in closed.get("/jobs").text


def test_a_list_is_sorted_by_its_columns(queue: Queue, read: Callable[..., Reader]) -> None:
    for type_ in ("b", "c", "a"):
        queue.enqueue(type_)
    reader = read()

    def listed(path: str) -> list[int]:
        return [int(number) for number in re.findall(r'id="job-(\d+)"', reader.get(path).text)]

    assert listed("/jobs") == [3, 2, 1]
    by_type = html.unescape(re.search(r'href="([^"]*sort=type[^"]*)"', reader.get("/jobs").text)[1])  # type: ignore[index]  # it is there
    assert listed(by_type) == [3, 1, 2]
    assert 'aria-sort="ascending"' in reader.get(by_type).text
    assert listed(by_type.replace("type", "-type")) == [2, 1, 3]
    assert "is not a valid sort" in reader.text("/jobs?sort=payload")


def test_a_failed_job_shows_what_happened_to_it(queue: Queue, read: Callable[..., Reader]) -> None:
    queue.enqueue("tag", {"path": "cat.jpg"}, max_attempts=1)
    [job] = run_due(queue, {"tag": broken})

    shown = read().text(f"/jobs/{job.id}")

    for part in ("failed", "Attempt 1", "exception", "cannot open 'cat.jpg'", "Traceback", "CPU"):
        assert part in shown, part
    timeline = shown.partition("Timeline")[2]
    assert re.search(r"created .* attempt 1 started .* attempt 1 ended: exception .* failed", timeline), timeline


@pytest.mark.parametrize("more", [0, 6], ids=["cards", "table"])
def test_a_pool_shows_its_spares_and_no_figures_that_belong_to_others(
    read: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    pools = [
        some.pool("slow", types=["tag"]),
        some.pool("urgent", types=["tag"], min_priority=10, spares=1, spares_wanted=1),
        some.pool("mail", spares=1, spares_wanted=2),
    ] + [some.pool(f"more-{n}") for n in range(more)]
    types = [some.type_("tag", last_hour=Hour(9, 0, 77.0, 88.0)), some.type_("mail", last_hour=Hour(9, 0, 55.0, 66.0))]
    failures, jobs = {"tag": 4321, "mail": 1234}, {"failed": 0, "quarantined": 0, "pending": 0, "running": 0}
    seen = some.overview(pools=pools, types=types, failures_last_hour=failures, jobs=jobs)

    async def asked(watch: OverviewWatch) -> Any:
        return seen

    monkeypatch.setattr(OverviewWatch, "overview", asked)
    page = read().get("/").text.partition('<section id="pools"')[2].partition("</section>")[0]
    slow, urgent, mail = (part.partition("</li>" if not more else "</tr>")[0] for part in page.split('id="pool-')[1:4])

    for shared in (slow, urgent):
        assert shared.count("Known only by type") == 3
        assert not re.search("77 s|88 s|4,321", words(shared))
    assert "1 spare" in words(urgent)
    assert "1 of 2 spare" in words(mail)
    assert re.search("66 s.* 55 s.* 1,234", words(mail))


def test_failures_of_one_cause_are_one_line_that_leads_to_their_jobs(queue: Queue, read: Callable[..., Reader]) -> None:
    for number in range(3):
        queue.enqueue("tag", {"path": f"/srv/{number}.jpg"}, max_attempts=1)
    queue.enqueue("tag", {}, max_attempts=1)
    run_due(queue, {"tag": broken})
    reader = read()

    page = reader.get("/failures").text
    [address] = {html.unescape(found) for found in re.findall(r'href="([^"]*error=[^"]*open[^"]*)"', page)}

    assert "3 times ValueError: cannot open" in words(page)
    assert [int(number) for number in re.findall(r'id="job-(\d+)"', reader.get(address).text)] == [3, 2, 1]


def test_a_filter_with_a_mistake_in_it_means_no_job_at_all(queue: Queue, read: Callable[..., Reader]) -> None:
    queue.enqueue("tag", {})

    page = read().get("/jobs?priority=high&type=tag").text

    assert "“high” is not a valid priority" in page
    assert "job-1" not in page
    assert 'data-url="/api/admin/jobs/' not in page


def test_a_reader_is_shown_no_button_and_no_script_for_one(queue: Queue, read: Callable[..., Reader]) -> None:
    queue.enqueue("tag", {"path": "x"}, max_attempts=1)
    run_due(queue, {"tag": broken})
    reader = read()

    for path in ("/", "/jobs?status=failed", "/jobs/1", "/failures"):
        for_admins, for_readers = reader.get(path), reader.get(path, token=READ_TOKEN)
        assert 'class="action' in for_admins.text, path
        assert 'class="action' not in for_readers.text
        assert "actions.js" not in for_readers.text


def test_pages_hold_nothing_that_their_policy_forbids(queue: Queue, read: Callable[..., Reader]) -> None:
    queue.enqueue("tag", {"path": HOSTILE}, max_attempts=1, unique_key=HOSTILE)
    run_due(queue, {"tag": broken})
    reader = read(show_payloads=True)

    for path in ("/", "/jobs", "/jobs/1", "/failures", "/workers", "/schedules", "/nothing"):
        page = reader.get(path)
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert not re.search(r"<script(?![^>]*\ssrc=)|\sstyle=|\son[a-z]+=[\"']|javascript:|<img", page.text), path
        for address in re.findall(r'(?:src|href|action)="([^"]*)"', page.text):
            assert address.startswith(("/", "#")), address


def test_whoever_is_not_logged_in_sees_the_form_and_nothing_else(read: Callable[..., Reader]) -> None:
    reader = read()

    asked = reader.get("/jobs?status=failed", token=None)
    assert (asked.status_code, asked.headers["location"]) == (303, "/login?next=/jobs%3Fstatus%3Dfailed")
    form = reader.get("/login?next=/jobs", token=None)
    assert 'type="password"' in form.text
    assert "Overview" not in words(form.text)
    for path in ("/static/style.css", "/static/live.js", "/static/favicon.svg"):
        assert reader.get(path, token=None).status_code == 200


def run(token: int, attempt: int, outcome: str, started_at: float) -> Run:
    return Run(1, token, attempt, outcome, "tag-1", started_at, 1.0, 0.5, 1 << 20, "said")


def error(attempt: int, kind: str, created_at: float) -> Attempt:
    return Attempt(1, attempt, kind, "text", None, None, None, None, 1 << 20, "tag-1", 1.0, created_at)


def test_runs_and_errors_that_belong_together_are_one() -> None:
    """A crash gives its attempt back, so two runs may have the same number."""
    runs = [run(1, 1, "crash", 10.0), run(2, 1, "exception", 20.0), run(3, 2, "done", 30.0)]
    errors = [error(1, "crash", 11.0), error(1, "exception", 21.0), error(2, "timeout", 26.0)]

    together = trials(runs, errors)

    assert [(trial.outcome, trial.began, trial.run is not None, trial.error is not None) for trial in together] == [
        ("done", 30.0, True, False),
        ("timeout", 25.0, False, True),
        ("exception", 20.0, True, True),
        ("crash", 10.0, True, True),
    ]
