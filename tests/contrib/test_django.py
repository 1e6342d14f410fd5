"""supervisor.contrib.django in a Django project of its own, tests/contrib/shop, whose test cases Django runs.

In the usual environment that is the package django-tasks; `make frameworks` runs them with Django 6, too.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.postgres_server import Databases

SHOP = Path(__file__).with_name("shop")
PATIENCE = 110.0  # seconds
SOURCE = "DJANGO_TESTS"  # the folder `tests` of Django's source

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("django") is None
    or (importlib.util.find_spec("django_tasks") is None and importlib.util.find_spec("django.tasks") is None),
    reason="Django 6, or Django with django-tasks, is not installed",
)


@pytest.mark.parametrize(
    "cases",
    [
        "enqueueing",
        "working",
        pytest.param(
            "of_django",
            marks=pytest.mark.skipif(SOURCE not in os.environ, reason="`make frameworks` fetches Django's source"),
        ),
    ],
)
def test_the_cases_of_a_django_project_pass(cases: str, tmp_path: Path) -> None:
    passes([f"orders.cases.{cases}"], tmp_path)


def test_the_cases_pass_on_a_server(postgres: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("SHOP_SERVER", postgres.fresh_database())
    # The queue's connections stay open until the end: no test database could be dropped.
    kinds = [f"orders.cases.enqueueing.{kind}" for kind in ("Enqueueing", "Results", "InTestCases")]
    passes(["--keepdb", *kinds], tmp_path)


def test_check_tries_the_payloads_of_schedules(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    shutil.copytree(SHOP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "supervisor.toml").open("a") as file:
        for name, call in (("right", "ship', args = [1]"), ("name", "shp'"), ("call", "tell', args = [1, 2]")):
            head = f"[[schedules]]\nname = '{name}'\nevery = '1d'\ntype = 'django'\n"
            file.write(f"{head}payload = {{ task = 'orders.tasks.{call} }}\n")
    command = [sys.executable, "-m", "supervisor", "check"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
    said = (ran.stdout + ran.stderr).replace("\n", " ")
    assert 'schedules[1].payload: Module "orders.tasks" does not define a "shp"' in said
    assert "schedules[2].payload: orders.tasks.tell: too many positional arguments" in said
    assert "schedules[0]" not in said


def passes(cases: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    shutil.copytree(SHOP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "manage.py", "test", "--noinput", *cases]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    assert process.returncode == 0, output[-8000:]
