"""Makes docs/images/*.png: the dashboard of a small shop of pictures that has been at work for an hour.

    make screenshots

The jobs are real, run by real workers. So that it takes a minute and not an hour, what has happened is moved one
minute into the past after each round, again and again.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from supervisor import Queue

IMAGES = Path(__file__).with_name("images")
TOKEN = "a-token-for-pictures-only"  # noqa: S105  it opens nothing that outlives this program
ROUNDS = 58

CONFIGURATION = """
database = "sqlite:///./shop.db"
[admin]
listen = "127.0.0.1:0"
token_file = "token"
show_payloads = true
[defaults]
shutdown_grace = "500ms"
[pools.thumbnails]
handler = "jobs:thumbnail"
types = ["thumbnail", "watermark"]
workers = 2
retry = { max_attempts = 1 }
[pools.tag]
handler = "jobs:tag"
min_workers = 1
max_workers = 4
capabilities = ["cpu", "tag@2"]
retry = { max_attempts = 2, base = "50ms" }
[pools.mail]
handler = "jobs:mail"
types = ["mail", "newsletter"]
workers = 1
retry = { max_attempts = 1 }
[pools.transcode]
handler = "jobs:transcode"
workers = 2
max_crashes = 2
[[schedules]]
name = "nightly-report"
cron = "0 3 * * *"
timezone = "Europe/Berlin"
type = "mail"
[[schedules]]
name = "clean-up"
every = "6h"
type = "thumbnail"
[log]
format = "json"
"""

HANDLERS = """
import os, random, time

class TruncatedImage(Exception):
    pass

def read_picture(path):
    if path.endswith("7.jpg"):
        raise TruncatedImage(f"cannot read '{path}': image file is truncated (12 bytes not processed)")

def thumbnail(payload, ctx):
    time.sleep(random.uniform(0.004, 0.02))
    read_picture(payload.get("path", ""))

def tag(payload, ctx):
    time.sleep(random.uniform(0.03, 0.09) * payload.get("slowly", 1))
    return {"tags": random.sample(["cat", "sofa", "window", "espresso", "harbour"], 2)}

def mail(payload, ctx):
    print(f"connecting to smtp.example.org for {payload.get('to', 'all')}")
    time.sleep(random.uniform(0.005, 0.03))
    if random.random() < 0.05:
        print("no answer to EHLO", flush=True)
        raise TimeoutError("smtp.example.org:587 did not answer within 10 s")

def transcode(payload, ctx):
    if payload.get("codec") == "unknown":
        os.kill(os.getpid(), 11)
    for frame in range(payload.get("from", 0), 4800, 4):
        ctx.progress(frame / 4800, f"frame {frame:,} of 4,800")
        time.sleep(0.1 if "from" in payload else 0)
    return {"frames": 4800}
"""

SHIFT = """
UPDATE job_errors SET created_at = created_at - 60;
UPDATE job_runs SET started_at = started_at - 60;
UPDATE jobs SET created_at = created_at - 60, started_at = started_at - 60, completed_at = completed_at - 60,
                scheduled_at = scheduled_at - 60 WHERE status NOT IN ('pending', 'running');
UPDATE job_supervisors SET started_at = started_at - 180;
"""

# The maintainer keeps what each real minute brought, which here is none; so the rows are made from the jobs.
NO_REAL_MINUTES = """
CREATE TRIGGER no_real_minutes BEFORE INSERT ON job_history WHEN new.minute > {minute} BEGIN SELECT RAISE(IGNORE); END
"""
HISTORY = """
INSERT INTO job_history (minute, type, done, failed, waiting, running, run_seconds, wait_seconds)
SELECT CAST(completed_at / 60 AS INTEGER) * 60.0, type, sum(status = 'done'),
       sum((SELECT count(*) FROM job_errors WHERE job_id = jobs.id)), 0, 0,
       sum(completed_at - started_at), sum(started_at - scheduled_at)
FROM jobs WHERE completed_at IS NOT NULL GROUP BY 1, 2
"""


@contextlib.contextmanager
def shop(folder: Path) -> Iterator[tuple[Queue, str]]:
    """The running installation, and where its dashboard is."""
    (folder / "supervisor.toml").write_text(CONFIGURATION)
    (folder / "jobs.py").write_text(HANDLERS)
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    command = [sys.executable, "-m", "supervisor", "run"]
    with (folder / "log").open("wb") as log, Queue(f"sqlite:///{folder}/shop.db") as queue:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            yield queue, wait_for(lambda: listening(folder / "log"))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def listening(log: Path) -> str:
    found = re.search(r'"url": "(http[^"]*)"', log.read_text())
    return found[1] if found else ""


def wait_for(condition: Callable[[], str]) -> str:
    deadline = time.monotonic() + 30
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited 30 s for {condition}")
        time.sleep(0.02)
    return value


def work_for_an_hour(queue: Queue, database: Path) -> None:
    """What customers ask for in an hour: more towards its end, with a wave of mail and a few broken pictures."""
    chance = random.Random(7)
    execute(database, NO_REAL_MINUTES.format(minute=time.time() - 100))
    for number in range(ROUNDS):
        busy = 1 + number / ROUNDS + (1.5 if 20 <= number < 27 else 0)
        jobs = [*_pictures(chance, number, busy), *_mails(chance, number, busy)]
        if number % 9 == 0:
            jobs.append(queue.enqueue("transcode", {"film": f"/srv/films/{number}.mp4"}))
        if number == 30:
            jobs.append(queue.enqueue("transcode", {"film": "/srv/films/31.avi", "codec": "unknown"}))
        ids = [job if isinstance(job, int) else queue.enqueue(*job) for job in jobs]
        for job_id in ids:
            queue.wait(job_id, timeout=30)
        execute(database, SHIFT)
    execute(database, HISTORY)


def execute(database: Path, sql: str) -> None:
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection:
        connection.executescript(f"BEGIN IMMEDIATE; {sql}; COMMIT;")


def _pictures(chance: random.Random, number: int, busy: float) -> Iterator[tuple[str, dict[str, str]]]:
    for index in range(round(chance.uniform(6, 11) * busy)):
        path = f"/srv/pictures/2026-11/{number * 100 + index}.jpg"
        yield "thumbnail", {"path": path}
        yield "tag", {"path": path}
        if index % 3 == 0:
            yield "watermark", {"path": path}


def _mails(chance: random.Random, number: int, busy: float) -> Iterator[tuple[str, dict[str, str]]]:
    wave = 30 if 40 <= number < 44 else 0
    for index in range(round(chance.uniform(2, 5) * busy) + wave):
        yield "mail", {"to": f"customer-{number}-{index}@example.org"}


def fill(queue: Queue, database: Path) -> None:
    """What is going on at the moment that the pictures show."""
    execute(database, "INSERT INTO job_controls (kind, name, value, updated_at) VALUES ('paused', 'newsletter', 1, 0)")
    queue.enqueue_many("newsletter", [{"to": f"reader-{n}@example.org"} for n in range(38)])
    queue.enqueue("mail", {"to": "later@example.org"}, delay="3h")
    for film, frame in (("holiday", 1200), ("wedding", 3200)):
        queue.enqueue("transcode", {"film": f"/srv/films/{film}.mp4", "from": frame})
    queue.enqueue_many("tag", [{"path": f"/srv/pictures/2026-11/{n}.jpg", "slowly": 200} for n in range(9)])


def photograph(browser: Browser, url: str, queue: Queue, database: Path) -> None:
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection:
        [(failed,)] = connection.execute("SELECT max(id) FROM jobs WHERE type = 'mail' AND status = 'failed'")
        [(running,)] = connection.execute("SELECT max(id) FROM jobs WHERE type = 'transcode' AND status = 'running'")
    wide, narrow = (1240, 1010), (390, 844)
    for name, path, size, scheme in [
        ("overview", "/", wide, "light"),
        ("overview-dark", "/", wide, "dark"),
        ("overview-phone", "/", narrow, "light"),
        ("jobs", "/jobs?status=failed", (1240, 760), "light"),
        ("job", f"/jobs/{failed}", (1240, 820), "light"),
        ("job-phone", f"/jobs/{running}", narrow, "dark"),
        ("failures", "/failures", (1240, 520), "light"),
        ("workers", "/workers", (1240, 620), "dark"),
    ]:
        context = browser.new_context(
            base_url=url,
            viewport={"width": size[0], "height": size[1]},
            color_scheme=scheme,
            device_scale_factor=2 if size is narrow else 1.5,
            reduced_motion="reduce",
        )
        page = log_in(context.new_page(), path)
        page.locator("#live.is-live").wait_for()
        page.screenshot(path=IMAGES / f"{name}.png")
        context.close()
    ask(browser, url)


def ask(browser: Browser, url: str) -> None:
    """The question before something is done to many jobs."""
    context = browser.new_context(base_url=url, viewport={"width": 1240, "height": 520}, device_scale_factor=1.5)
    page = log_in(context.new_page(), "/failures")
    page.get_by_role("button", name="Retry all…").first.click()
    page.locator("#ask-yes:enabled").wait_for()
    page.screenshot(path=IMAGES / "question.png")
    context.close()


def log_in(page: Page, path: str) -> Page:
    page.goto(f"/login?next={path}")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()
    page.locator("main h1").first.wait_for()
    return page


def main() -> int:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.stderr.write("chromium is missing: apt-get install --no-install-recommends chromium\n")
        return 1
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="shop-") as name, shop(Path(name)) as (queue, url):
        database = Path(name) / "shop.db"
        work_for_an_hour(queue, database)
        fill(queue, database)
        time.sleep(3)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            photograph(browser, url, queue, database)
            browser.close()
    sizes = {path.name: path.stat().st_size // 1024 for path in sorted(IMAGES.glob("*.png"))}
    sys.stdout.write(f"KiB: {json.dumps(sizes)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
