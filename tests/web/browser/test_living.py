"""A page that is looked at shows what happens, and leaves alone what its reader is doing."""

from __future__ import annotations

import datetime
import signal
import time
from collections.abc import Callable
from zoneinfo import ZoneInfo

import psutil
import pytest

from tests.site_under_test import Site
from tests.web.browser.visitor import Visitor, expect

pytestmark = pytest.mark.long

HEARD = """() => new Promise((resolve) => {
  const stream = new EventSource("/api/admin/events");
  stream.addEventListener("overview", (event) => {
    if (!JSON.parse(event.data).unhandled.includes("nobody")) return;
    stream.close();
    setTimeout(resolve, 1500);
  });
})"""


def test_a_job_is_seen_to_come_run_and_end_without_a_reload(common: Site, visit: Callable[..., Visitor]) -> None:
    visitor = visit(common)
    page = visitor.open("/jobs?type=work")
    visitor.live()
    page.evaluate("window.same = true")

    end = common.folder / "end"
    job = common.queue.enqueue("work", {"until": str(end)})
    expect(page.locator(f"#job-{job} .badge")).to_have_text("running")
    end.touch()
    expect(page.locator(f"#job-{job} .badge")).to_have_text("done")

    assert page.evaluate("window.same") is True


@pytest.mark.parametrize("scripts", [True, False])
def test_the_period_of_the_charts_is_chosen_by_a_link_and_stays(
    common: Site, visit: Callable[..., Visitor], scripts: bool
) -> None:
    kind, back, runs = ("live", 5, 4321) if scripts else ("static", 6, 1234)
    minute = int(time.time()) // 60 * 60 - back * 86400
    sql = "INSERT INTO job_history VALUES (?, ?, ?, 0, 0, 0, 1, 1) ON CONFLICT DO UPDATE SET done = excluded.done"
    common.rows(sql, minute, kind, runs)
    visitor = visit(common, scripts=scripts, timezone_id="Asia/Tokyo")
    page = visitor.open("/")
    legend = page.locator("#history .legend li", has_text=kind)
    expect(legend).to_have_count(0)
    page.get_by_role("link", name="Last 30 days").click()

    expect(page.get_by_text("The last 30 days by type")).to_be_visible()
    expect(legend).to_contain_text(f"{runs:,}")
    page.locator("#history summary").last.click()
    row = page.locator("#numbers-types tr", has_text=f"{runs:,}")
    expect(row).to_be_visible()
    if scripts:
        begins = datetime.datetime.fromtimestamp(minute // 21600 * 21600, ZoneInfo("Asia/Tokyo")).strftime(
            "%m-%d %H:%M"
        )
        expect(row.locator("time")).to_have_text(begins)
        expect(page.locator("#history title", has_text=f"{runs:,} {kind}")).to_contain_text(f"{begins}: ")
        visitor.live()
        common.rows(sql, minute, kind, 8765)
        common.done(common.queue.enqueue("work"))
        expect(legend).to_contain_text("8,765")
        expect(row).to_have_count(0)  # in the same table, which is still open
        expect(page.locator("#numbers-types tr", has_text="8,765")).to_be_visible()


def test_what_a_reader_does_is_left_alone(common: Site, visit: Callable[..., Visitor]) -> None:
    first = common.queue.enqueue("work")
    common.done(first)
    visitor = visit(common, width=400)
    page = visitor.open("/jobs?type=work")
    visitor.live()
    page.locator("summary", has_text="More").click()
    page.get_by_label("Error contains").fill("half a wor")
    page.locator(f"#job-{first} a").first.focus()
    page.evaluate("scrollTo(0, 150)")

    second = common.queue.enqueue("work")
    common.done(second)
    expect(page.locator(f"#job-{second} .badge")).to_have_text("done")

    expect(page.get_by_label("Error contains")).to_have_value("half a wor")
    expect(page.get_by_label("Job number")).to_be_visible()
    expect(page.locator(f"#job-{first} a").first).to_be_focused()
    assert page.evaluate("scrollY") > 0


def test_nothing_moves_while_a_question_is_open(common: Site, visit: Callable[..., Visitor]) -> None:
    visitor = visit(common)
    page = visitor.open("/")
    visitor.live()
    dialog = visitor.press("Scale…")

    common.done(common.queue.enqueue("work"))
    common.rows("INSERT INTO jobs (type) VALUES ('nobody')")
    page.evaluate(HEARD)  # the change has been heard of, and the page had its second to look
    assert page.get_by_text("No pool takes the type nobody").count() == 0
    dialog.get_by_role("button", name="Go back").click()

    expect(page.get_by_text("No pool takes the type nobody")).to_be_visible()


def test_a_page_says_when_it_is_no_longer_live_and_when_it_is_again(
    common: Site, visit: Callable[..., Visitor]
) -> None:
    visitor = visit(common)
    page = visitor.open("/jobs?type=work")
    visitor.live()
    [supervisor] = common.supervisors
    pid = common.supervisor_status(supervisor)["admin"]["pid"]

    psutil.Process(pid).send_signal(signal.SIGSTOP)
    psutil.Process(pid).kill()

    expect(page.locator("#live.is-lost")).to_contain_text("Disconnected since")
    expect(page.locator("#live.is-live")).to_be_visible(timeout=20_000)
    job = common.queue.enqueue("work")
    expect(page.locator(f"#job-{job} .badge")).to_have_text("done")
    visitor.complaints.clear()  # while there was nobody, its requests failed


def test_whoever_looks_away_asks_for_nothing(common: Site, visit: Callable[..., Visitor]) -> None:
    visitor = visit(common)
    page = visitor.open("/jobs?type=work")
    visitor.live()
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => window.away ?? true, configurable: true})")
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/events")):  # the stream is closed
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    job = common.queue.enqueue("work")
    common.done(job)
    page.wait_for_timeout(1500)  # that nothing happens is only to be seen by waiting
    assert asked == []
    page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")

    expect(page.locator(f"#job-{job} .badge")).to_have_text("done")
