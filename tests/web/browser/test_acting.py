"""What buttons do: they ask, they act, they say what they did, and the database says the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from tests.site_under_test import Site, wait_for
from tests.web.browser.visitor import Visitor, expect

pytestmark = pytest.mark.long

Visit = Callable[..., Visitor]


def failed(site: Site, kind: str, count: int = 1) -> list[int]:
    """Jobs that have failed, of a type that is paused now: what is retried stays to be seen."""
    jobs = [site.queue.enqueue(kind, {"n": n}) for n in range(count)]
    for job in jobs:
        site.queue.wait(job, timeout=20)
    site.rows("INSERT INTO job_controls (kind, name, value, updated_at) VALUES ('paused', ?, 1, 0)", kind)
    return jobs


def controls(site: Site, name: str) -> list[str]:
    """What operators have set for a type or a pool."""
    return [kind for (kind,) in site.rows("SELECT kind FROM job_controls WHERE name = ?", name)]


def pool(name: str) -> str:
    """Where the card of a pool is."""
    return f"li.pool:has(h3 a:text-is('{name}'))"


def test_a_failed_job_is_retried_or_deleted_unless_one_says_no(common: Site, kind: str, visit: Visit) -> None:
    retried, deleted = failed(common, kind, 2)
    visitor = visit(common)

    page = visitor.open(f"/jobs/{retried}")
    visitor.press("Delete…").get_by_role("button", name="Go back").click()
    expect(page.locator("#delete")).to_be_focused()
    visitor.press("Delete…")
    page.keyboard.press("Escape")
    expect(page.locator("#delete")).to_be_focused()
    assert common.job(retried).status == "failed"
    expect(visitor.press("Retry")).to_contain_text("and its attempts and crashes are reset")
    assert visitor.confirm("Retry") == f"Job {retried} is pending again."
    expect(page.locator(".heading .badge")).to_have_text("pending")
    assert (common.job(retried).status, common.job(retried).attempts) == ("pending", 0)

    visitor.open(f"/jobs/{deleted}")
    visitor.press("Delete…")
    assert visitor.confirm("Delete") == f"Job {deleted} is deleted."
    page.wait_for_url("**/jobs")  # back to the list, which says so
    assert common.rows("SELECT id FROM jobs WHERE type = ?", kind) == [(retried,)]


def test_all_that_match_are_retried_after_their_number_was_confirmed(common: Site, kind: str, visit: Visit) -> None:
    jobs = failed(common, kind, 7)
    visitor = visit(common)

    page = visitor.open("/failures")
    cause = f".cause:has(a:text-is('{kind}'))"
    dialog = visitor.press("Retry all…", within=cause)
    expect(dialog.get_by_role("heading")).to_have_text("Retry 7 jobs?")
    assert visitor.confirm("Retry") == "Returned 7 jobs to pending."

    assert {common.job(job).status for job in jobs} == {"pending"}
    expect(page.locator(cause)).to_contain_text("no failed job")


def test_no_others_are_touched_than_were_confirmed(common: Site, kind: str, visit: Visit) -> None:
    jobs = failed(common, kind, 2)
    visitor = visit(common)

    visitor.open(f"/jobs?status=failed&type={kind}")
    dialog = visitor.press("Delete all…")
    expect(dialog.get_by_role("heading")).to_have_text("Delete 2 jobs?")
    common.rows("INSERT INTO jobs (type, status, completed_at) VALUES (?, 'failed', 1)", kind)

    assert visitor.confirm("Delete") == "Deleted 2 jobs."
    [(left,)] = common.rows("SELECT id FROM jobs WHERE type = ?", kind)
    assert left not in jobs


def test_selected_rows_are_acted_on_after_their_number_was_confirmed(common: Site, kind: str, visit: Visit) -> None:
    jobs = failed(common, kind, 5)
    visitor = visit(common)

    page = visitor.open(f"/jobs?type={kind}")
    page.get_by_label(f"Select job {jobs[0]}").check()
    page.get_by_label(f"Select job {jobs[2]}").click(modifiers=["Shift"])
    expect(page.locator("#chosen")).to_contain_text("3 jobs selected")
    dialog = visitor.press("Retry…", within="#chosen")
    expect(dialog.get_by_role("heading")).to_have_text("Retry 3 jobs?")
    assert visitor.confirm("Retry") == "Returned 3 jobs to pending."
    expect(page.locator("#chosen")).to_be_hidden()
    page.get_by_role("button", name="Close this message").click()

    page.get_by_label("Select all jobs of this page").check()
    dialog = visitor.press("Delete…", within="#chosen")
    expect(dialog.get_by_role("heading")).to_have_text("Delete 2 jobs?")
    assert visitor.confirm("Delete") == "Deleted 2 jobs."
    assert common.rows("SELECT id FROM jobs WHERE type = ? AND status = 'pending' ORDER BY id", kind) == [
        (job,) for job in jobs[:3]
    ]
    assert common.rows("SELECT count(*) FROM jobs WHERE type = ?", kind) == [(3,)]


def test_a_selection_stays_while_the_list_changes(common: Site, kind: str, visit: Visit) -> None:
    [job] = failed(common, kind)
    visitor = visit(common)

    page = visitor.open(f"/jobs?type={kind}")
    visitor.live()
    page.get_by_label(f"Select job {job}").check()
    later = common.queue.enqueue(kind)
    expect(page.locator(f"#job-{later}")).to_be_visible()

    expect(page.get_by_label(f"Select job {job}")).to_be_checked()
    expect(page.locator("#chosen")).to_contain_text("1 job selected")
    page.get_by_role("button", name="Clear selection").click()
    expect(page.locator("#chosen")).to_be_hidden()


def test_a_job_is_enqueued_by_a_form_that_checks_its_json(common: Site, kind: str, visit: Visit) -> None:
    visitor = visit(common)

    page = visitor.open("/jobs")
    page.get_by_role("link", name="Enqueue…").click()
    page.get_by_label("Type").fill(kind)
    page.get_by_label("Payload").fill('{"n": 1,}')
    expect(page.locator("#payload-told")).to_contain_text("not valid JSON")
    page.get_by_role("button", name="Enqueue").click()
    expect(page).to_have_url(re.compile("/enqueue$"))
    page.get_by_label("Payload").fill("[" * 70 + "]" * 70)
    page.get_by_role("button", name="Enqueue").click()
    expect(page.locator("#new-problem")).to_contain_text("nested deeper than 64 levels")
    assert common.rows("SELECT count(*) FROM jobs WHERE type = ?", kind) == [(0,)]
    visitor.complaints = [complaint for complaint in visitor.complaints if "422" not in complaint]
    page.get_by_label("Payload").fill('{"n": 12345678901234567890, "x": 1.0}')
    expect(page.locator("#payload-told")).to_contain_text("Valid JSON, 37 bytes")
    page.get_by_label("Priority").fill("7")
    page.get_by_label("Delay").fill("2h")
    page.get_by_label("Unique key").fill(f"{kind} once")
    page.get_by_role("button", name="Enqueue").click()
    page.wait_for_url(re.compile(r"/jobs/\d+$"))

    [(job, payload, priority, key, ahead)] = common.rows(
        "SELECT id, payload, priority, unique_key, scheduled_at - created_at FROM jobs WHERE type = ?", kind
    )
    assert (payload, priority, key) == ('{"n":12345678901234567890,"x":1.0}', 7, f"{kind} once")
    assert ahead == pytest.approx(7200, abs=5)
    expect(page.locator("#said")).to_contain_text(f"Job {job} is enqueued.")

    page.get_by_role("link", name="Clone…").click()
    expect(page.get_by_label("Priority")).to_have_value("7")
    page.get_by_role("button", name="Enqueue").click()
    expect(page.locator("#said")).to_contain_text("Nothing was enqueued")
    assert common.rows("SELECT count(*) FROM jobs WHERE type = ?", kind) == [(1,)]


def test_a_job_is_cloned_and_retried_with_another_payload(openly: Site, visit: Visit) -> None:
    job = openly.queue.enqueue("picky", {"text": "ä", "wrong": True}, priority=3, meta={"tags": ["x"]})
    openly.queue.wait(job, timeout=20)
    visitor = visit(openly)

    page = visitor.open(f"/jobs/{job}")
    page.get_by_role("link", name="Clone…").click()
    assert json.loads(page.get_by_label("Payload").input_value()) == {"text": "ä", "wrong": True}
    page.get_by_label("Payload").fill('{"text": "clone"}')
    page.get_by_role("button", name="Enqueue").click()
    page.wait_for_url(lambda url: not url.endswith("like=" + str(job)))
    clone = int(page.url.rpartition("/")[2])
    assert clone != job
    cloned = openly.done(clone)
    assert (cloned.payload, cloned.priority, cloned.meta) == ({"text": "clone"}, 3, {"tags": ["x"]})

    page = visitor.open(f"/jobs/{job}")
    page.get_by_role("link", name="Edit and retry…").click()
    page.get_by_label("Payload").fill('{"text": "mended"}')
    page.get_by_role("button", name="Retry with this payload").click()
    page.wait_for_url(f"**/jobs/{job}")
    expect(page.locator("#said")).to_contain_text(f"Job {job} is pending again.")
    assert openly.done(job).payload == {"text": "mended"}


def test_a_job_that_has_succeeded_runs_again_after_a_warning(openly: Site, visit: Visit) -> None:
    job = openly.queue.enqueue("picky", {})
    before = openly.done(job)
    visitor = visit(openly)

    page = visitor.open(f"/jobs/{job}")
    expect(visitor.press("Run again…")).to_contain_text("It has succeeded once.")
    assert visitor.confirm("Run again") == f"Job {job} is pending again."
    wait_for(lambda: openly.job(job).completed_at not in (None, before.completed_at), "its second run")
    assert openly.job(job).status == "done"

    page.get_by_role("link", name="Edit and retry…").click()
    expect(page.locator("#new")).to_contain_text("It has succeeded once")
    page.get_by_label("Payload").fill('{"n": 2}')
    page.get_by_role("button", name="Retry with this payload").click()
    page.wait_for_url(f"**/jobs/{job}")
    wait_for(lambda: openly.job(job).payload == {"n": 2} and openly.job(job).status == "done", "its third run")


def test_a_running_job_is_cancelled(common: Site, visit: Visit) -> None:
    job = common.queue.enqueue("patient")
    wait_for(lambda: common.job(job).status == "running", "it to run")
    visitor = visit(common)

    page = visitor.open("/workers")
    page.get_by_role("link", name=f"#{job}").click()
    expect(page.get_by_role("heading", name=f"Job {job}")).to_be_visible()
    visitor.press("Cancel…")
    assert visitor.confirm("Cancel job") == f"Job {job} is asked to stop."

    expect(page.locator(".heading .badge")).to_have_text("cancelled", timeout=15_000)
    assert common.job(job).status == "cancelled"


def test_a_type_is_paused_and_resumed(common: Site, kind: str, visit: Visit) -> None:
    visitor = visit(common)

    page = visitor.open("/")
    visitor.press("Pause", within=f"[id='type-{kind}']")
    assert visitor.confirm("Pause") == f"The type {kind} is paused."
    assert controls(common, kind) == ["paused"]
    page.get_by_role("button", name="Close this message").click()
    visitor.press("Resume", within=f".trouble:has-text('{kind} is paused')")
    assert visitor.confirm("Resume") == f"The type {kind} is resumed."

    assert controls(common, kind) == []
    expect(page.locator("#troubles").get_by_text(f"{kind} is paused")).to_have_count(0)


def test_a_paused_pool_lets_its_jobs_wait_until_it_is_resumed(common: Site, visit: Visit) -> None:
    visitor = visit(common)

    page = visitor.open("/")
    visitor.press("Pause", within=pool("work"))
    visitor.confirm("Pause")
    expect(page.locator(f"{pool('work')} .badge").first).to_have_text("paused")
    job = common.queue.enqueue("work")
    expect(page.locator(f"{pool('work')} dd").first).to_have_text("1")
    assert common.job(job).status == "pending"
    page.get_by_role("button", name="Close this message").click()
    visitor.press("Resume", within=pool("work"))
    assert visitor.confirm("Resume") == "The pool work is resumed."

    common.done(job)


def test_a_schedule_is_paused_run_and_resumed(common: Site, visit: Visit) -> None:
    visitor = visit(common)

    page = visitor.open("/schedules")
    row = page.locator("tr", has_text="yearly")
    expect(visitor.press("Pause", within="tbody tr")).to_contain_text("until you resume it")
    assert visitor.confirm("Pause") == "The schedule yearly is paused."
    expect(row.locator(".badge")).to_have_text("paused")
    page.get_by_role("button", name="Close this message").click()
    visitor.press("Run now", within="tbody tr")
    assert visitor.confirm("Run now") == "The job of yearly is enqueued."
    expect(row.get_by_role("link")).to_be_visible()
    common.done(int(row.get_by_role("link").inner_text().removeprefix("#")))
    page.get_by_role("button", name="Close this message").click()
    visitor.press("Resume", within="tbody tr")
    assert visitor.confirm("Resume") == "The schedule yearly is resumed."

    expect(row.locator(".badge")).to_have_count(0)
    assert common.rows("SELECT paused_at FROM job_schedules") == [(None,)]


def test_a_pool_is_scaled_and_given_back(common: Site, visit: Visit) -> None:
    visitor = visit(common)

    page = visitor.open("/")
    dialog = visitor.press("Scale…", within=pool("elastic"))
    for nonsense in ("", "-3"):  # refused before anything is sent
        dialog.get_by_label("Workers").fill(nonsense)
        dialog.get_by_role("button", name="Scale").click()
        expect(dialog).to_be_visible()
    assert controls(common, "elastic") == []
    dialog.get_by_label("Workers").fill("2")
    assert visitor.confirm("Scale") == "The pool elastic now has 2 workers."
    wait_for(lambda: len(common.workers("elastic")) == 2, "two workers")
    expect(page.locator(f"{pool('elastic')} .size strong")).to_have_text("2")
    page.get_by_role("button", name="Close this message").click()
    visitor.press("Automatic", within=pool("elastic"))
    assert visitor.confirm("Return") == "The pool elastic scales automatically again."

    assert controls(common, "elastic") == []
    expect(page.locator(pool("elastic")).get_by_role("button", name="Automatic")).to_have_count(0)


def test_a_job_is_retried_with_the_keyboard_alone(common: Site, kind: str, visit: Visit) -> None:
    [job] = failed(common, kind)
    page = visit(common).open(f"/jobs/{job}")

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
    expect(page.get_by_role("button", name="Go back")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")

    expect(page.locator("#said")).to_contain_text(f"Job {job} is pending again.")
    assert outline == "solid"
    assert common.job(job).status == "pending"
    expect(page.locator("#said")).to_be_focused()  # the button is gone: what was said is where one goes on


def test_a_form_that_was_filled_in_is_left_as_it_is_when_something_changes(
    common: Site, kind: str, visit: Visit
) -> None:
    page = visit(common).open("/enqueue")
    page.get_by_label("Payload").fill('{"typed": true}')
    page.get_by_role("button", name="Enqueue").focus()  # not where one types
    with page.expect_response(re.compile("/enqueue$")) as looked:
        common.queue.enqueue(kind, {})
    looked.value.finished()
    page.wait_for_timeout(300)
    expect(page.get_by_label("Payload")).to_have_value('{"typed": true}')


def test_a_type_is_limited_and_its_configured_limits_hold_again(common: Site, kind: str, visit: Visit) -> None:
    failed(common, kind)  # which pauses it
    for _ in range(3):
        common.queue.enqueue(kind)
    visitor = visit(common)

    page = visitor.open("/")
    row = f"#types tr:has(th a:text-is('{kind}'))"
    visitor.press("Limit…", within=row).get_by_label("Running at most").fill("2")
    assert visitor.confirm("Limit") == f"At most 2 jobs of the type {kind} may run at a time."
    expect(page.locator(row)).to_contain_text("0 of 2 running, 2 let through, 1 held")
    assert common.rows("SELECT max_running, chosen FROM job_limits WHERE type = ?", kind) == [(2, 1)]

    page.get_by_role("button", name="Close this message").click()
    expect(visitor.press("Reset", within=row)).to_contain_text("Now: 0 of 2 running, 2 let through, 1 held (1 type).")
    assert visitor.confirm("Return") == f"The configured limits of the type {kind} hold again."
    assert common.rows("SELECT status FROM jobs WHERE type = ? AND status <> 'failed'", kind) == [("pending",)] * 3
