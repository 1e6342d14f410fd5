"""Every page opens for everybody: wide and narrow, light and dark, with and without scripts, and stays text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.site_under_test import Site, site
from tests.web.browser.visitor import HOSTILE, READER, Visitor, config, expect

pytestmark = pytest.mark.long

AXE = Path(__file__).parents[3] / "clients/node/node_modules/axe-core/axe.min.js"
RULES = """async () => (await axe.run(document)).violations.flatMap((broken) =>
  broken.nodes.map((node) => `${broken.id}: ${node.html.slice(0, 90)}`))"""
LOOKS = (Path(__file__).parent / "looks.js").read_text()
"""Functions that look at a page as it is drawn, and name what is wrong."""

PAGES = [
    "/",
    "/?since=1d",
    "/?since=30d",
    "/history?type=good&since=1h",
    "/history?type=good&type=bad&since=30d",
    "/jobs",
    "/jobs?status=failed",
    "/jobs?status=running&type=slow",
    "/jobs?type=good&error=x&key=k&requires=gpu&priority=3&finished=1h",
    "/jobs?priority=many",
    "/jobs?status=held",
    "/batches",
    "/batches?unfinished=1&before=9",
    "/failures",
    "/failures?since=30d",
    "/workers",
    "/schedules",
    "/enqueue?type=good",
]


def every_page(site: Site) -> list[str]:
    """The pages, with one of a job in each state that there is, and of the batch."""
    jobs = site.rows("SELECT min(id) FROM jobs GROUP BY status")
    [(batch,)] = site.rows("SELECT id FROM job_batches")
    return PAGES + [f"/jobs/{job}" for (job,) in jobs] + [f"/enqueue?like={jobs[0][0]}", f"/batches/{batch}"]


def wrong(visitor: Visitor, paths: list[str], look: str, before: str = "") -> list[str]:
    """What a look finds on these pages, once each is live and a key was pressed."""
    found = []
    for path in paths:
        page = visitor.open(path)
        if page.locator("#live").count():
            visitor.live()
        page.keyboard.press("Tab")
        page.evaluate(before)
        found += [f"{path}: {what}" for what in page.evaluate(look)]
    return found


@pytest.mark.parametrize("width", [1280, 360])
def test_each_page_opens_without_a_complaint_and_never_scrolls_sideways(
    shared: Site, visit: Callable[..., Visitor], width: int
) -> None:
    assert wrong(visit(shared, width=width), every_page(shared), f"({LOOKS}).width()") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_its_ground(shared: Site, visit: Callable[..., Visitor], scheme: str) -> None:
    visitor = visit(shared, color_scheme=scheme)
    assert wrong(visitor, [*every_page(shared), "/nothing-here"], f"({LOOKS}).contrast()") == []
    visitor.complaints = [complaint for complaint in visitor.complaints if "404" not in complaint]


@pytest.mark.parametrize("look", ["names", "focus"])
def test_who_does_not_see_or_has_no_mouse_uses_all(shared: Site, visit: Callable[..., Visitor], look: str) -> None:
    assert wrong(visit(shared), every_page(shared), f"({LOOKS}).{look}()") == []


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is missing: `make node`")
@pytest.mark.timeout(600)  # on a slow machine, axe takes some seconds a page
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_no_page_breaks_a_rule_of_axe(shared: Site, visit: Callable[..., Visitor], width: int, scheme: str) -> None:
    visitor = visit(shared, width=width, color_scheme=scheme)
    assert wrong(visitor, every_page(shared), RULES, AXE.read_text()) == []


def test_pages_are_read_without_scripts_and_show_no_button_that_does_nothing(
    shared: Site, visit: Callable[..., Visitor]
) -> None:
    visitor = visit(shared, scripts=False)

    page = visitor.open("/")
    expect(page.get_by_role("heading", name="slow")).to_be_visible()
    expect(page.get_by_text("The last hour by state")).to_be_visible()
    expect(page.locator("button.action").first).to_be_hidden()
    page.get_by_role("link", name="Failures").first.click()
    page.locator(".cause", has_text="no such picture").get_by_role("link", name="3 failed jobs").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    page.locator("tbody tr a").first.click()
    expect(page.get_by_text("Traceback (most recent call last)")).to_be_visible()
    assert page.locator("noscript").first.inner_text()


def test_jobs_are_turned_over_a_page_at_a_time(shared: Site, visit: Callable[..., Visitor]) -> None:
    visitor = visit(shared, scripts=False)

    page = visitor.open("/jobs?type=good&status=done")
    seen = page.locator("tbody tr").evaluate_all("rows => rows.map(row => row.id)")
    page.get_by_role("link", name="Older").click()
    expect(page.locator("tbody tr")).to_have_count(11)
    seen += page.locator("tbody tr").evaluate_all("rows => rows.map(row => row.id)")

    assert len(seen) == len(set(seen)) == 61
    expect(page.get_by_role("link", name="Older")).to_have_count(0)
    page.get_by_role("link", name="Latest").click()
    expect(page.locator("tbody tr")).to_have_count(50)


def test_filters_combine_in_the_form(shared: Site, visit: Callable[..., Visitor]) -> None:
    page = visit(shared).open("/jobs?status=failed")
    page.get_by_label("Type").select_option("bad")
    page.get_by_label("Error contains").fill("PICTURE")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**error=PICTURE**")

    expect(page.locator("tbody tr")).to_have_count(3)
    expect(page.get_by_label("Type")).to_have_value("bad")
    page.locator("summary", has_text="More").click()
    page.get_by_label("Job number").fill("2")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**/jobs/2")


def test_whoever_may_only_look_is_offered_nothing_else(shared: Site, visit: Callable[..., Visitor]) -> None:
    visitor = visit(shared, token=READER)

    for path in every_page(shared):
        page = visitor.open(path)
        assert page.locator("button.action, dialog").count() == 0, path
        expect(page.get_by_text("read-only access")).to_be_visible()


@pytest.mark.parametrize(
    ("path", "places"),
    [
        ("/", ["pool"]),
        ("/jobs?status=failed", ["error"]),
        ("/jobs?type=good&error={query}&key={key}", ["query", "key"]),
        ("/jobs?status={query}&type={query}&finished={query}&priority={query}&id={query}&requires={query}", ["query"]),
        ("/jobs?status=done&key={key}", ["key"]),
        ("/jobs?status=running", ["progress"]),
        ("/jobs/{of_key}", ["log", "result", "payload", "key"]),
        ("/jobs/{of_error}", ["error", "worker"]),
        ("/failures?since={query}", ["error"]),
        ("/workers", ["progress"]),
        ("/schedules", ["schedule", "timing"]),
        ("/{query}", []),
    ],
)
def test_what_rows_and_addresses_hold_stays_text(
    shared: Site, visit: Callable[..., Visitor], path: str, places: list[str]
) -> None:
    values = {"query": HOSTILE.format(where="query"), "key": HOSTILE.format(where="key")}
    [(values["of_key"],)] = shared.rows("SELECT id FROM jobs WHERE unique_key IS NOT NULL")
    [(values["of_error"],)] = shared.rows("SELECT id FROM jobs WHERE last_error LIKE '%onerror%'")
    visitor = visit(shared)

    page = visitor.open(path.format_map({name: quote(str(value), safe="") for name, value in values.items()}))
    page.wait_for_load_state("load")

    assert page.locator("img").count() == 0
    shown = page.locator("body").inner_text() + " ".join(
        page.locator("input").evaluate_all("all => all.map(i => i.value)")
    )
    for place in places:
        assert HOSTILE.format(where=place) in shown
    visitor.complaints = [complaint for complaint in visitor.complaints if "404" not in complaint]


def test_thirteen_pools_fit_on_one_screen(visit: Callable[..., Visitor], tmp_path: Path) -> None:
    names = [f"pool-number-{n:02}" for n in range(13)]
    pools = "".join(f'[pools.{name}]\nhandler = "jobs:handle"\nmin_workers = 0\nmax_workers = 9\n' for name in names)
    with site(tmp_path, config(pools), "def handle(payload, ctx):\n    pass\n") as made:
        made.start()
        visitor = visit(made)
        page = visitor.open("/")
        visitor.live()
        rows = page.locator(".pool-row")
        expect(rows).to_have_count(13)
        assert page.evaluate("scrollY") == 0
        bottoms = rows.evaluate_all("rows => rows.map(row => row.getBoundingClientRect().bottom)")
        assert max(bottoms) <= 800
        assert page.evaluate(f"({LOOKS}).width()") == []
        assert page.evaluate(f"({LOOKS}).names()") == []

        visitor.press("Pause", within=".pool-row")
        assert visitor.confirm("Pause") == f"The pool {names[0]} is paused."
        narrow = visit(made, width=390, color_scheme="dark").open("/")
        assert narrow.evaluate(f"({LOOKS}).width()") == []
        assert narrow.evaluate(f"({LOOKS}).contrast()") == []
