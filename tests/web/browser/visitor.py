"""A person with a browser, and the installations that they visit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.site_under_test import Site, site, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Page, Request, Response

ADMIN, READER = "admin-token", "reader-token"  # files in the folder of the site
HOSTILE = "<img src=/hostile-{where} onerror=alert(1)>"

LONG = "film.transcode.of-a-department-that-likes-long-names.v2"

POOLS = f"""
[pools.good]
handler = "jobs:good"
workers = 1
[pools.bad]
handler = "jobs:bad"
workers = 1
retry = {{ max_attempts = 1 }}
[pools.slow]
handler = "jobs:slow"
types = ["slow", "{LONG}"]
workers = 1
[pools.killer]
handler = "jobs:killer"
workers = 1
max_crashes = 1
[pools.broken]
handler = "broken:handle"
workers = 1
[types."{LONG}"]
max_running = 1
concurrency_per_key = 1
[[schedules]]
name = "nightly"
cron = "0 3 * * *"
type = "good"
"""

HANDLERS = f"""
import os, time

def good(payload, ctx):
    print("{HOSTILE.format(where="log")}", flush=True)
    return {{"result": "{HOSTILE.format(where="result")}"}}

def bad(payload, ctx):
    raise ValueError(payload.get("text", "no such picture"))

def slow(payload, ctx):
    ctx.progress(0.5, "{HOSTILE.format(where="progress")}")
    while not os.path.exists(payload["until"]):
        time.sleep(0.02)

def killer(payload, ctx):
    os.kill(os.getpid(), 9)
"""

CHANGING = """
[pools.bad]
handler = "jobs:bad"
types = [%s]
workers = 1
retry = { max_attempts = 1 }
[pools.patient]
handler = "jobs:patient"
workers = 1
[pools.work]
handler = "jobs:work"
workers = 1
[[schedules]]
name = "yearly"
cron = "0 3 1 1 *"
type = "work"
[pools.elastic]
handler = "jobs:work"
min_workers = 1
max_workers = 3
"""
KINDS = [f"bad.{letter}" for letter in "abcdefghijklmnopqrst"]
"""Types that always fail: one for each test, so that many can share an installation."""

CHANGING_HANDLERS = """
import os, time

def bad(payload, ctx):
    raise ValueError("no such picture")

def patient(payload, ctx):
    while not ctx.cancelled:
        time.sleep(0.01)
    raise RuntimeError("stopped as asked")

def work(payload, ctx):
    while "until" in payload and not os.path.exists(payload["until"]):
        time.sleep(0.01)
"""


def config(pools: str, more: str = "") -> str:
    """The text of a configuration with an admin process, at a port that is free."""
    admin = f'[admin]\nlisten = "127.0.0.1:0"\ntoken_file = "{ADMIN}"\nread_token_file = "{READER}"\n'
    return f"{admin}{more}\n{pools}"


def admin_url(visited: Site) -> str:
    """Where the admin process of a site listens, once it does."""
    event = wait_for(lambda: visited.event("admin_listening"), "the admin process to listen")
    return str(event["url"])


def log_in(visited: Site, context: BrowserContext, token: str) -> None:
    """Give a browser the session that the form would have given it."""
    url = admin_url(visited)
    secret = (visited.folder / token).read_text().strip()
    answer = httpx.post(f"{url}/login", data={"token": secret, "next": "/"}, timeout=20)
    assert answer.status_code == 303, answer.text
    context.add_cookies([{"name": name, "value": value, "url": url} for name, value in answer.cookies.items()])


def lively(folder: Path) -> Iterator[Site]:
    """An installation with jobs in every state, whose texts all try to be more than text."""
    (folder / "broken.py").write_text(f"raise RuntimeError({HOSTILE.format(where='pool')!r})\n")
    with site(folder, config(POOLS, "show_payloads = true"), HANDLERS) as made:
        made.start()
        queue = made.queue
        running = queue.enqueue("slow", {"until": str(folder / "end")})
        queue.enqueue("slow", {"until": str(folder / "end")})
        jobs = [
            queue.enqueue("good", {"payload": HOSTILE.format(where="payload")}, unique_key=HOSTILE.format(where="key"))
        ]
        jobs += [queue.enqueue("good", {"n": n}) for n in range(60)]
        jobs += [queue.enqueue("bad", {"text": HOSTILE.format(where="error")})]
        jobs += [queue.enqueue("bad", {"n": n}) for n in range(3)]
        jobs += [queue.enqueue("killer")]
        cancelled = queue.enqueue("good", delay="1h")
        queue.enqueue("nobody")
        queue.enqueue_many(LONG, [{"until": "/"}] * 2)
        with queue.batch(on_done="good") as batch:
            batch.enqueue("nobody", after=[running], concurrency_key="a key")
        made.rows("UPDATE jobs SET status = 'cancelled', completed_at = created_at WHERE id = ?", cancelled)
        for job in jobs:
            queue.wait(job, timeout=20)
        wait_for(lambda: made.job(running).status == "running", "a job to run")
        for table in ("job_errors", "job_runs"):
            made.rows(f"UPDATE {table} SET worker = ?", HOSTILE.format(where="worker"))
        made.rows(
            "INSERT INTO job_schedules (name, timing, next_at) VALUES (?, ?, 4e9)",
            HOSTILE.format(where="schedule"),
            HOSTILE.format(where="timing"),
        )
        yield made
        (folder / "end").touch()


def changing(folder: Path) -> Iterator[Site]:
    """An installation for tests that change something of their own in it."""
    types = ", ".join(f'"{kind}"' for kind in KINDS)
    with site(folder, config(CHANGING % types), CHANGING_HANDLERS) as made:
        made.start()
        yield made


def open_one(folder: Path) -> Iterator[Site]:
    """An installation that shows payloads, for tests that change something of their own in it."""
    pool = '[pools.picky]\nhandler = "jobs:picky"\nworkers = 1\nretry = { max_attempts = 1 }\n'
    handler = 'def picky(payload, ctx):\n    if payload.get("wrong"):\n        raise ValueError("wrong")\n'
    with site(folder, config(pool, "show_payloads = true"), handler) as made:
        made.start()
        yield made


def expect(actual: Any) -> Any:
    """Playwright's, imported at last: whoever collects these tests without running them needs none of it.

    What a page shows is asked with it, never with `assert`: a click returns before the page that it opens is there.
    """
    from playwright.sync_api import expect as expected

    expected.set_options(timeout=15_000)
    return expected(actual)


class Visitor:
    """One page, and all that it complains of: errors, failed requests, dialogs nobody of ours opened."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("requestfailed", self._failed)
        page.on("response", self._answered)
        page.on("dialog", lambda dialog: (self.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def open(self, path: str) -> Page:
        answer = self.page.goto(path)
        assert answer is not None
        return self.page

    def live(self) -> None:
        """Wait until the page hears of changes."""
        self.page.locator("#live.is-live").wait_for()

    def press(self, name: str, within: str = "body") -> Locator:
        """Press a button that asks, and return the dialog."""
        self.page.wait_for_load_state()  # a page is on the screen before its scripts have run
        self.page.locator(within).get_by_role("button", name=name, exact=True).first.click()
        dialog = self.page.get_by_role("dialog")
        dialog.wait_for()
        return dialog

    def confirm(self, verb: str) -> str:
        """Say yes, and return what the page says it has done."""
        self.page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).click()
        said = self.page.locator("#said span")
        said.wait_for()
        return said.inner_text()

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"console: {message.text}")

    def _failed(self, request: Request) -> None:
        # Leaving a page ends its stream, and the look that it is just having.
        if not re.search("ERR_ABORTED", request.failure or ""):
            self.complaints.append(f"failed: {request.method} {request.url}: {request.failure}")

    def _answered(self, response: Response) -> None:
        if "/hostile-" in response.url:
            self.complaints.append(f"asked for {response.url}")
