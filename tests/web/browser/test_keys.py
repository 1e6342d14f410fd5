"""The keyboard, what is copied, and times in the reader's time zone."""

from __future__ import annotations

import datetime
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
