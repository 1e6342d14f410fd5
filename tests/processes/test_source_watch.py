"""`run --watch`: new code without a restart, and never a worse one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import pytest

from tests.site_under_test import Site, wait_for

MakeSite = Callable[..., Site]
HANDLER = ('handler = "jobs:work"', "def work(payload, ctx):\n    return VERSION\n\nVERSION = 1\n")
TASKS = (
    'tasks = ["jobs"]',
    "from supervisor import task\n\n@task\ndef work() -> int:\n    return VERSION\n\nVERSION = 1\n",
)
PROGRAM = (
    f'command = ["{sys.executable}", "jobs.py"]',
    "from job_handler import serve\n\ndef work(payload, ctx):\n    return VERSION\n\nVERSION = 1\nserve(work)\n",
)


def result(site: Site) -> object:
    return site.queue.wait(site.queue.enqueue("work"), timeout=30).result


def watched(make_site: MakeSite, pool: tuple[str, str]) -> Site:
    site = make_site(f"[pools.work]\n{pool[0]}\nworkers = 1\n", pool[1])
    site.start("--watch")
    assert result(site) == 1
    return site


@pytest.mark.parametrize("pool", [HANDLER, TASKS, PROGRAM], ids=["handler", "tasks", "command"])
def test_changed_code_is_loaded_and_the_log_says_so(make_site: MakeSite, pool: tuple[str, str]) -> None:
    site = watched(make_site, pool)
    for version in (2, 3):  # also within a second, when the size of the file does not tell the difference
        code = pool[1].replace("VERSION = 1", f"VERSION = {version}")
        (site.folder / "jobs.py").write_text(code)
        wait_for(lambda said=version: len(told(site, "new_code_accepted")) == said - 1, "the new code")
        assert told(site, "reloaded")[-1]["why"] == "changed: jobs.py"
        wait_for(lambda expected=version: result(site) == expected, "a result of the new code")


def told(site: Site, name: str) -> list[dict[str, object]]:
    return [event for event in site.events() if event.get("event") == name]


def test_a_broken_edit_keeps_the_old_code_and_says_so(make_site: MakeSite) -> None:
    site = watched(make_site, HANDLER)
    (site.folder / "jobs.py").write_text(HANDLER[1] + "this is no Python\n")

    failed = wait_for(lambda: site.event("new_code_failed"), "what fails")
    assert "SyntaxError" in failed["problem"]
    assert "the old code keeps running" in failed["problem"]
    assert result(site) == 1

    (site.folder / "jobs.py").write_text(HANDLER[1].replace("= 1", "= 2"))
    wait_for(lambda: site.event("new_code_accepted"), "the repair")
    wait_for(lambda: result(site) == 2)


def test_the_configuration_is_watched_too_and_a_bad_one_is_refused(make_site: MakeSite) -> None:
    site = watched(make_site, HANDLER)
    good = site.config.read_text()
    site.config.write_text(good + "nonsense = 1\n")
    refused = wait_for(lambda: site.event("reload_refused"), "the refusal")
    assert refused["why"] == f"changed: {site.config.name}"

    replacement = site.config.with_suffix(".new")  # as editors do
    replacement.write_text(good.replace("workers = 1", "workers = 2"))
    replacement.replace(site.config)
    wait_for(lambda: site.event("new_code_accepted"), "the new configuration")
    wait_for(lambda: len(json.loads(site.command("status", "--json").stdout)["workers"]) == 2)


def test_new_folders_are_watched_and_what_is_not_source_is_ignored(make_site: MakeSite) -> None:
    site = watched(make_site, HANDLER)
    for ignored in (".git", "__pycache__", "node_modules", ".venv", "environment"):
        (site.folder / ignored).mkdir()
        if ignored == "environment":
            (site.folder / ignored / "pyvenv.cfg").touch()
        (site.folder / ignored / "module.py").write_text("x = 1\n")
    (site.folder / "notes.txt").write_text("words")
    (site.folder / ".hidden.py").write_text("x = 1\n")
    package = site.folder / "package" / "inner"
    package.mkdir(parents=True)
    (package / "module.py").write_text("x = 1\n")

    wait_for(lambda: site.event("reloaded"), "the new file")
    package.rename(package.with_name("other"))
    (package.with_name("other") / "module.py").write_text("x = 2\n")
    wait_for(lambda: len(told(site, "reloaded")) >= 2, "the changed file")

    changed = {event["why"] for event in told(site, "reloaded")}
    assert changed <= {
        "changed: package/inner/module.py",
        "changed: package/other/module.py",
        "changed: package/inner/module.py, package/other/module.py",
    }


def test_without_the_option_nothing_is_watched(make_site: MakeSite) -> None:
    site = make_site(f"[pools.work]\n{HANDLER[0]}\nworkers = 1\n", HANDLER[1])
    site.start()
    (site.folder / "jobs.py").write_text(HANDLER[1].replace("= 1", "= 2"))
    time.sleep(1)
    assert not site.event("reloaded")


def test_a_burst_does_not_watch(make_site: MakeSite) -> None:
    site = make_site(f"[pools.work]\n{HANDLER[0]}\n", HANDLER[1])
    ran = site.command("run", "--watch", "--burst", code=2)
    assert ran.stderr.startswith("error: --watch")
