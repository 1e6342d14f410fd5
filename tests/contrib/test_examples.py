"""The examples for web frameworks, with their servers and a supervisor: upload, task, progress by events, result."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, blocks
from tests.docs.test_snippets import free_port

httpx = pytest.importorskip("httpx")

EXAMPLES = ROOT / "examples"
PATIENCE = 60.0  # seconds
TEXT = "to be or not to be\n" * 15  # each line takes a tenth of a second

NEEDED = {
    "fastapi": ("fastapi", "uvicorn", "python_multipart"),
    "flask": ("flask",),
    "django": ("django",),
}
SERVERS = {
    "fastapi": ["-m", "uvicorn", "app:app", "--port"],
    "flask": ["-m", "flask", "run", "--port"],
    "django": ["manage.py", "runserver", "--noreload"],
}


@contextlib.contextmanager
def running(folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen([sys.executable, *words], cwd=folder, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def skip_unless_installed(example: str) -> None:
    missing = [name for name in NEEDED[example] if importlib.util.find_spec(name) is None]
    if example == "django" and not missing and not importlib.util.find_spec("django_tasks"):
        missing = [] if importlib.util.find_spec("django.tasks") else ["django_tasks"]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")


@pytest.mark.parametrize("example", ["fastapi", "flask", "django"])
def test_an_upload_is_worked_on_and_its_progress_is_followed(example: str, tmp_path: Path) -> None:
    skip_unless_installed(example)
    folder = tmp_path / example
    shutil.copytree(EXAMPLES / example, folder, ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
    port = free_port()
    with (
        running(folder, "-m", "supervisor", "run") as supervisor,
        running(folder, *SERVERS[example], str(port)) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client,
    ):
        until = time.monotonic() + PATIENCE
        while True:
            try:
                assert client.get("/jobs/999").status_code == 404
                break
            except httpx.TransportError:
                assert server.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < until, (folder / "log").read_text()
                time.sleep(0.05)
        answer = client.post("/texts", files={"file": ("text.txt", TEXT)})
        assert answer.status_code == 202, answer.text
        job = answer.json()["job"]
        with client.stream("GET", f"/jobs/{job}/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            events = [json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line]
        words = {"to": 30, "be": 30, "or": 15}
        assert events[-1]["status"] == "done", (events, (folder / "log").read_text())
        assert events[-1]["result"] == words
        reported = [event["progress"] for event in events[:-1] if event["progress"]]
        assert reported
        assert reported == sorted(reported)
        assert client.get(f"/jobs/{job}").json() == {"status": "done", "result": words}
        supervisor.terminate()
        assert supervisor.wait(PATIENCE) == 0


def test_the_application_with_fastapi_has_fewer_than_forty_lines() -> None:
    texts = [(EXAMPLES / "fastapi" / name).read_text() for name in ("app.py", "jobs.py")]
    assert len([line for text in texts for line in text.splitlines() if line]) < 40


@pytest.mark.parametrize("example", ["fastapi", "flask"])
def test_the_page_shows_the_example(example: str) -> None:
    shown = {block.file: block.text for block in blocks(document=ROOT / f"docs/{example}.md") if block.file}
    for name in ("app.py", "jobs.py", "supervisor.toml"):
        assert shown[name] == (EXAMPLES / example / name).read_text()
