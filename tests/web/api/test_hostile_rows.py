"""Rows that no program of ours would write: every page and every endpoint answers all the same."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

import pytest

from tests.hostile import ADDRESS, fill

from .conftest import Site

MakeSite = Callable[..., Site]
PAGES = ("/", "/jobs", "/jobs?status=failed&status=done", "/jobs?error=FORGED", "/failures", "/failures?since=30d")
PAGES += (
    "/workers",
    "/schedules",
    "/batches",
    "/?since=30d",
    "/history",
    "/history?since=1d&type=%FF%00&type=<script>alert(1)",
)
API = (
    "overview",
    "jobs?limit=500",
    "stats",
    "pools",
    "types",
    "workers",
    "schedules",
    "failures?since=0",
    "history?since=0",
    "history/hours?since=0",
)


@pytest.fixture
def odd(make_site: MakeSite) -> Site:
    site = make_site(show_payloads=True)
    fill(site.path)
    return site


def page(site: Site, path: str) -> str:
    answer = site.client.ask("GET", path, headers={"accept": "text/html"})
    assert answer.status_code == 200, (path, answer.text[:2000])
    assert answer.headers["content-type"].startswith("text/html")
    return answer.text


@pytest.mark.fault(76)
def test_every_page_answers_whatever_the_rows_hold(odd: Site) -> None:
    for path in PAGES:
        assert "<script>alert" not in page(odd, path)
        assert "<b>" not in page(odd, path)
    for (job,) in odd.rows("SELECT id FROM jobs"):
        assert "<script>alert" not in page(odd, f"/jobs/{job}")


@pytest.mark.fault(76)
def test_every_endpoint_answers_whatever_the_rows_hold(odd: Site) -> None:
    for path in API:
        odd.get(f"/api/admin/{path}")
    for (job,) in odd.rows("SELECT id FROM jobs"):
        assert odd.get(f"/api/admin/jobs/{job}")["id"] == job
    odd.get("/readyz", 200 if odd.client.ask("GET", "/readyz").status_code == 200 else 503)
    metrics = odd.client.ask("GET", "/metrics")
    assert metrics.status_code == 200
    assert "supervisor_jobs{" in metrics.text


def test_the_state_is_told_to_listeners(odd: Site) -> None:
    async def first() -> bytes:
        return await anext(odd.state.watch._events())

    assert odd.client.run(first()).startswith(b"event: overview\n")


@pytest.mark.fault(60)
def test_no_address_of_a_page_is_bent_by_what_a_row_holds(odd: Site) -> None:
    """Every button and link leads where it would for a harmless row."""
    pattern = re.compile(r'(?:data-url|href|action)="([^"]*)"')
    known = re.compile(
        r"/(api/admin/(jobs/\d+(/retry|/cancel)?|jobs/(retry|cancel|delete)|pools/[^/]+|(types|limits)/.+|schedules/[a-z0-9_.-]+(/run)?)"
        r"|(jobs|batches)(/-?\d+)?|enqueue|failures|history|workers|schedules|static/[\w.-]+|)"
    )
    for path in (*PAGES, "/jobs/1", "/%2F/evil.example", "//evil.example/x", "/\\evil.example"):
        text = odd.client.ask("GET", path, headers={"accept": "text/html"}).text
        for found in pattern.findall(text):
            address = html.unescape(found)
            if address.startswith(("#", "data:")):
                continue
            assert address.startswith("/"), (path, address)
            assert not address.startswith(("//", "/\\")), (path, address)
            parts = urlsplit(address)
            assert not parts.netloc, (path, address)
            assert path not in PAGES or known.fullmatch(parts.path), (path, address)
            assert ".." not in parts.path.split("/"), (path, address)


@pytest.mark.fault(76)
def test_the_page_for_nothing_never_leads_to_another_site(odd: Site) -> None:
    for path in ("//evil.example", "//evil.example/a?b", "/\\evil.example", "/%5Cevil.example", "/%2Fevil.example"):
        answer = odd.client.ask("GET", f"http://localhost{path}", headers={"accept": "text/html"})
        assert answer.status_code == 404
        for address in re.findall(r'href="([^"]*)"', answer.text):
            assert re.match(r"/(?![/\\])", html.unescape(address)), (path, address)


@pytest.mark.fault(60)
def test_a_type_that_looks_like_a_way_elsewhere_pauses_no_pool(odd: Site) -> None:
    before = odd.rows("SELECT kind, name FROM job_controls ORDER BY 1, 2")
    text = page(odd, "/")
    urls = {html.unescape(found) for found in re.findall(r'data-url="([^"]*)"', text)}
    bent = [url for url in urls if unquote(url).startswith("/api/admin/types/b")]
    for url in bent:
        answer = odd.client.ask("PUT", url, json={"paused": True})
        assert answer.status_code in (404, 409, 422), (url, answer.text)
    assert odd.rows("SELECT kind, name FROM job_controls ORDER BY 1, 2") == before
    assert ADDRESS


@pytest.mark.fault(60)
def test_a_type_with_capitals_colons_and_slashes_is_meant_by_its_address(site: Site) -> None:
    name = "App/Jobs:Send"
    site.rows("INSERT INTO jobs (type) VALUES (?)", name)
    for url in ("/api/admin/types/App%2FJobs%3ASend", "/api/admin/types/App/Jobs:Send"):
        answer = site.client.ask("PUT", url, json={"paused": False})
        assert answer.status_code in (200, 422), answer.text  # whether it is a type is not the address's to say
        assert answer.json().get("field", "type") == "type"


@pytest.mark.fault(61)
def test_eight_thousand_types_are_told_briefly_and_counted_in_whole(site: Site) -> None:
    numbers = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 7999)"
    site.rows(f"INSERT INTO jobs (type) {numbers} SELECT 't' || i FROM n UNION ALL SELECT ?", "x" * 3_000_000)
    for path in PAGES:
        assert len(page(site, path)) < 600_000, path
    assert "more types" in page(site, "/")
    for path in ("overview", "stats", "types"):
        assert len(site.client.ask("GET", f"/api/admin/{path}").content) < 600_000, path
    metrics = site.client.ask("GET", "/metrics").text
    assert len(metrics) < 600_000
    pending = [
        float(line.split()[-1]) for line in metrics.splitlines() if re.match(r'supervisor_jobs\{.*"pending"', line)
    ]
    assert sum(pending) == 8001
