"""What buttons do: they ask, they act, they say what they did, and the database says the same."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import expect

from tests.site_under_test import Site, wait_for
from tests.web.browser.visitor import Visitor

FAILING = """
[pools.bad]
handler = "jobs:bad"
workers = 1
retry = { max_attempts = 1 }
"""
BAD = """
def bad(payload, ctx):
    raise ValueError("no such picture")
"""
WORK = """
[pools.work]
handler = "jobs:work"
min_workers = 1
max_workers = 3
"""
PATIENT = """
[pools.patient]
handler = "jobs:patient"
workers = 1
"""
UNTIL_CANCELLED = """
import time
def patient(payload, ctx):
    while not ctx.cancelled:
        time.sleep(0.01)
    raise RuntimeError("stopped as asked")
"""


def failed(site: Site, count: int) -> list[int]:
    """Jobs that have failed, of a type that is paused now: what is retried stays to be seen."""
    jobs = [site.queue.enqueue("bad", {"n": n}) for n in range(count)]
    for job in jobs:
        site.queue.wait(job, timeout=20)
    site.rows("INSERT INTO job_controls (kind, name, value, updated_at) VALUES ('paused', 'bad', 1, 0)")
    return jobs


def test_a_failed_job_is_retried(make_admin_site: Callable[..., Site], visit: Callable[..., Visitor]) -> None:
    site = make_admin_site(FAILING, handlers=BAD)
    [job] = failed(site, 1)
    visitor = visit(site)

    page = visitor.open(f"/jobs/{job}")
    dialog = visitor.press("Retry")
    expect(dialog).to_contain_text("with attempts and crashes counted anew")
    assert visitor.confirm("Retry") == f"Job {job} is pending again."

    expect(page.locator(".heading .badge")).to_have_text("pending")
    assert (site.job(job).status, site.job(job).attempts) == ("pending", 0)


def test_saying_no_changes_nothing_and_returns_to_the_button(
    make_admin_site: Callable[..., Site], visit: Callable[..., Visitor]
) -> None:
    site = make_admin_site(FAILING, handlers=BAD)
    [job] = failed(site, 1)
    visitor = visit(site)

    page = visitor.open(f"/jobs/{job}")
    visitor.press("Delete…").get_by_role("button", name="Leave it").click()
    expect(page.locator("#delete")).to_be_focused()
    visitor.press("Delete…")
    page.keyboard.press("Escape")
    expect(page.locator("#delete")).to_be_focused()

    assert site.job(job).status == "failed"


def test_all_that_match_are_retried_after_their_number_was_confirmed(
    make_admin_site: Callable[..., Site], visit: Callable[..., Visitor]
) -> None:
    site = make_admin_site(FAILING, handlers=BAD)
    jobs = failed(site, 7)
    visitor = visit(site)

    page = visitor.open("/failures")
    dialog = visitor.press("Retry all…")
    expect(dialog.get_by_role("heading")).to_have_text("Retry 7 jobs?")
    assert visitor.confirm("Retry") == "Put 7 jobs back to pending."

    assert {site.job(job).status for job in jobs} == {"pending"}
    expect(page.get_by_text("no job given up")).to_be_visible()


def test_no_more_are_touched_than_were_confirmed(
    make_admin_site: Callable[..., Site], visit: Callable[..., Visitor]
) -> None:
    site = make_admin_site(FAILING, handlers=BAD)
    jobs = failed(site, 2)
    visitor = visit(site)

    visitor.open("/jobs?status=failed")
    dialog = visitor.press("Delete all…")
    expect(dialog.get_by_role("heading")).to_have_text("Delete 2 jobs?")
    site.rows("INSERT INTO jobs (type, status, completed_at) VALUES ('bad', 'failed', 1)")
    dialog.get_by_role("button", name="Delete").click()

    expect(dialog.get_by_role("alert")).to_contain_text("That did not work")
    assert site.count("failed") == len(jobs) + 1
    visitor.complaints = [complaint for complaint in visitor.complaints if "409" not in complaint]
    expect(dialog.get_by_role("heading")).to_have_text("Delete 3 jobs?")
    assert visitor.confirm("Delete") == "Deleted 3 jobs."
    assert site.count("failed") == 0


def test_a_deleted_job_leads_back_to_the_list_which_says_so(
    make_admin_site: Callable[..., Site], visit: Callable[..., Visitor]
) -> None:
    site = make_admin_site(FAILING, handlers=BAD)
    [job] = failed(site, 1)
    visitor = visit(site)

    page = visitor.open(f"/jobs/{job}")
    visitor.press("Delete…")
    assert visitor.confirm("Delete") == f"Job {job} is deleted."

    page.wait_for_url("**/jobs")
    assert site.rows("SELECT count(*) FROM jobs WHERE id = ?", job) == [(0,)]


def test_a_running_job_is_cancelled(make_admin_site: Callable[..., Site], visit: Callable[..., Visitor]) -> None:
    site = make_admin_site(PATIENT, handlers=UNTIL_CANCELLED)
    job = site.queue.enqueue("patient")
    wait_for(lambda: site.job(job).status == "running", "it to run")
    visitor = visit(site)

    page = visitor.open("/workers")
    page.get_by_role("link", name=f"#{job}").click()
    expect(page.get_by_role("heading", name=f"Job {job}")).to_be_visible()
    visitor.press("Cancel…")
    assert visitor.confirm("Cancel it") == f"Job {job} is asked to stop."

    expect(page.locator(".heading .badge")).to_have_text("cancelled")
    assert site.job(job).status == "cancelled"


def test_a_type_is_paused_and_resumed(make_admin_site: Callable[..., Site], visit: Callable[..., Visitor]) -> None:
    site = make_admin_site(WORK)
    visitor = visit(site)

    page = visitor.open("/")
    visitor.press("Pause", within="#types")
    assert visitor.confirm("Pause") == "The type never is paused."
    assert site.rows("SELECT name FROM job_controls WHERE kind = 'paused'") == [("never",)]
    visitor.press("Resume", within="#troubles")
    visitor.page.locator("#said").evaluate("said => said.replaceChildren()")
    assert visitor.confirm("Resume") == "The type never goes on."

    assert site.rows("SELECT name FROM job_controls WHERE kind = 'paused'") == []
    expect(page.locator("#troubles").get_by_text("paused")).to_have_count(0)


def test_a_paused_pool_lets_its_jobs_wait_until_it_is_resumed(
    make_admin_site: Callable[..., Site], visit: Callable[..., Visitor]
) -> None:
    site = make_admin_site(WORK)
    visitor = visit(site)

    page = visitor.open("/")
    visitor.press("Pause", within=".pool")
    visitor.confirm("Pause")
    expect(page.locator(".pool .badge").first).to_have_text("paused")
    job = site.queue.enqueue("work")
    expect(page.locator(".pool dd").first).to_have_text("1")
    assert site.job(job).status == "pending"
    visitor.press("Resume", within=".pool")
    visitor.confirm("Resume")

    site.done(job)


def test_a_pool_is_scaled_and_given_back(make_admin_site: Callable[..., Site], visit: Callable[..., Visitor]) -> None:
    site = make_admin_site(WORK)
    visitor = visit(site)

    page = visitor.open("/")
    dialog = visitor.press("Scale…")
    dialog.get_by_label("Workers").fill("2")
    assert visitor.confirm("Scale") == "The pool work is to have 2 workers."
    wait_for(lambda: len(site.workers("work")) == 2, "two workers")
    expect(page.locator(".pool .size strong")).to_have_text("2")
    visitor.press("Automatic")
    page.locator("#said").evaluate("said => said.replaceChildren()")
    assert visitor.confirm("Give back") == "The pool work scales by itself again."

    assert site.rows("SELECT name FROM job_controls WHERE kind = 'workers'") == []
    expect(page.get_by_role("button", name="Automatic")).to_have_count(0)


def test_a_number_that_is_none_is_refused_before_anything_is_sent(
    make_admin_site: Callable[..., Site], visit: Callable[..., Visitor]
) -> None:
    site = make_admin_site(WORK)
    visitor = visit(site)

    visitor.open("/")
    dialog = visitor.press("Scale…")
    dialog.get_by_label("Workers").fill("")
    dialog.get_by_role("button", name="Scale").click()
    dialog.get_by_label("Workers").fill("-3")
    dialog.get_by_role("button", name="Scale").click()

    assert dialog.is_visible()
    assert site.rows("SELECT name FROM job_controls") == []


def test_a_job_is_retried_with_the_keyboard_alone(
    make_admin_site: Callable[..., Site], visit: Callable[..., Visitor]
) -> None:
    site = make_admin_site(FAILING, handlers=BAD)
    [job] = failed(site, 1)
    page = visit(site).open(f"/jobs/{job}")

    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "retry":
            break
    expect(page.locator("#retry")).to_be_focused()
    outline = page.locator("#retry").evaluate("button => getComputedStyle(button).outlineStyle")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Leave it")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")

    expect(page.locator("#said")).to_contain_text(f"Job {job} is pending again.")
    assert outline == "solid"
    assert site.job(job).status == "pending"
    expect(page.locator("#said")).to_be_focused()  # the button is gone: what was said is where one goes on
