"""The keyboard, what is copied, and times in the reader's time zone."""

from __future__ import annotations

import datetime
import json
import shlex
from collections.abc import Callable

import pytest

from tests.site_under_test import Site
from tests.web.browser.visitor import READER, Visitor, expect

pytestmark = pytest.mark.long

Visit = Callable[..., Visitor]
CLIPBOARD = ["clipboard-read", "clipboard-write"]


def test_a_job_is_found_and_opened_with_the_keyboard(shared: Site, visit: Visit) -> None:
    page = visit(shared).open("/")
    page.wait_for_load_state()

    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_url("**/jobs")
    page.wait_for_load_state()
    page.keyboard.press("/")
    expect(page.get_by_label("Payload, result or error")).to_be_focused()
    page.keyboard.type("such j")  # letters in a field are letters
    expect(page.get_by_label("Payload, result or error")).to_have_value("such j")
    page.keyboard.press("Backspace")
    page.keyboard.type("pic")
    page.keyboard.press("Enter")
    page.wait_for_url("**text=such+pic**")
    page.wait_for_load_state()
    rows = page.locator("tbody tr").evaluate_all("rows => rows.map(row => row.id.slice(4))")
    assert len(rows) == 3

    for key in ("j", "j", "j", "j", "k"):
        page.keyboard.press(key)
    expect(page.get_by_role("link", name=f"#{rows[1]}")).to_be_focused()
    page.keyboard.press("x")
    expect(page.get_by_label(f"Select job {rows[1]}")).to_be_checked()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{rows[1]}")


def test_the_keys_are_listed(shared: Site, visit: Visit) -> None:
    page = visit(shared, token=READER).open("/workers")
    page.wait_for_load_state()

    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keys")
    expect(dialog).to_contain_text("next and previous row")
    page.keyboard.press("g")
    page.keyboard.press("j")  # not while it is open
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.keyboard.press("n")  # nothing is enqueued with read-only access

    assert page.url.endswith("/workers")


def test_a_job_is_copied_as_id_payload_command_and_request(openly: Site, visit: Visit) -> None:
    payload = {"text": "it's ä", "n": 1}
    job = openly.queue.enqueue("picky", payload, priority=4, unique_key="-k", meta={"tags": ["x"]})
    openly.done(job)
    page = visit(openly, permissions=CLIPBOARD).open(f"/jobs/{job}")
    page.wait_for_load_state()

    def copied(name: str) -> str:
        page.evaluate("navigator.clipboard.writeText('')")
        page.get_by_role("button", name=name, exact=True).click()
        expect(page.locator("#said")).to_have_text("Copied.")
        page.wait_for_function("navigator.clipboard.readText()")
        return str(page.evaluate("navigator.clipboard.readText()"))

    assert copied("Id") == str(job)
    assert json.loads(copied("Payload")) == payload
    command = shlex.split(copied("Command"))
    assert command[0] == "supervisor"
    made = openly.command(*command[1:]).stdout
    curl = shlex.split(copied("curl"))
    body = {"type": "picky", "payload": payload, "priority": 4, "unique_key": "-k", "meta": {"tags": ["x"]}}
    assert json.loads(curl[4]) == body
    assert curl[:4] == ["curl", "--header", "Authorization: Bearer $TOKEN", "--json"]
    assert curl[5] == page.url.replace(f"/jobs/{job}", "/api/admin/jobs")
    again = openly.done(int(made))
    assert (again.payload, again.priority, again.unique_key, again.meta) == (payload, 4, "-k", {"tags": ["x"]})


def test_where_payloads_are_hidden_nothing_of_them_is_copied(common: Site, visit: Visit) -> None:
    job = common.queue.enqueue("work", {"secret": "cat"})
    common.done(job)
    page = visit(common).open(f"/jobs/{job}")

    assert page.get_by_role("button", name="Payload", exact=True).count() == 0
    assert page.get_by_role("button", name="Command").get_attribute("data-copy") == f"supervisor jobs show {job}"
    assert "secret" not in page.content()


def test_times_are_those_of_the_reader_with_utc_at_hand(shared: Site, visit: Visit) -> None:
    [(job, created)] = shared.rows("SELECT id, created_at FROM jobs WHERE type = 'bad' LIMIT 1")
    utc = datetime.datetime.fromtimestamp(created, datetime.UTC)
    tokyo = utc + datetime.timedelta(hours=9)
    visitor = visit(shared, timezone_id="Asia/Tokyo")
    page = visitor.open(f"/jobs/{job}")

    first = page.locator(".steps time").first
    expect(first).to_have_text(f"{tokyo:%Y-%m-%d %H:%M:%S}")
    assert first.get_attribute("title") == f"{tokyo:%Y-%m-%d %H:%M:%S} GMT+9 = {utc:%Y-%m-%d %H:%M:%S} UTC"
    visitor.live()
    expect(page.locator("#live-words")).to_have_text("Live")
    expect(first).to_have_text(f"{tokyo:%Y-%m-%d %H:%M:%S}")  # also after a refresh

    plain = visit(shared, scripts=False).open(f"/jobs/{job}")
    assert "UTC" in (plain.locator(".steps time").first.get_attribute("title") or "")
