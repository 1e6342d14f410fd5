"""Each release has a folder of its own. A deployment moves the link to the next one, and reloads."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, blocks
from tests.docs.test_snippets import environment
from tests.site_under_test import Site, kill, wait_for

OLD, NEW = "42", "43"
TYPES = ("forked", "spawned", "in_task", "program")
CONFIG = f"""
database = "sqlite:///data/app.db"
[pools.forked]
handler = "jobs:work"
[pools.spawned]
handler = "jobs:work"
start = "spawn"
[pools.tasks]
tasks = ["jobs"]
[pools.program]
command = ["{sys.executable}", "-m", "job_handler", "jobs:work"]
[defaults]
workers = 1
[log]
format = "json"
level = "debug"
"""
JOBS = """
import os
from pathlib import Path
import other
from supervisor import task

def work(payload, ctx):
    return in_task()

@task
def in_task():
    return [other.RELEASE, os.path.basename(os.getcwd()), Path("file").read_text()]
"""


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    """Two releases, and the link to the first. Their databases are one file."""
    site = make_site("")
    parent, site.folder = site.folder, site.folder / "current"
    (parent / "shared" / "data").mkdir(parents=True)
    (parent / "shared" / "data" / "app.db").symlink_to("../../app.db")
    for name in (OLD, NEW):
        folder = parent / "releases" / name
        folder.mkdir(parents=True)
        for file, text in {"supervisor.toml": CONFIG, "jobs.py": JOBS, "file": name}.items():
            (folder / file).write_text(text)
        (folder / "other.py").write_text(f"RELEASE = '{name}'\n")
        (folder / "data").symlink_to("../../shared/data")
    site.folder.symlink_to(f"releases/{OLD}")
    site.config = site.folder / "supervisor.toml"
    return site


def answers(site: Site) -> set[str]:
    """The releases that jobs of each kind have found: in modules, as the current folder, and at a relative path."""
    return {found for job in map(site.queue.enqueue, TYPES) for found in site.done(job).result}


def in_shell(script: str, folder: Path) -> None:
    """In a shell that has gone into the folder by the name that it is given."""
    command = f"cd {folder} && {script}"
    ran = subprocess.run(["sh", "-c", command], env=environment(), capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran


@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "kept"])
@pytest.mark.parametrize("by_shell", [True, False], ids=["in_a_shell", "by_its_full_name"])
def test_a_reload_follows_the_link_to_the_next_release(site: Site, by_shell: bool, deleted: bool) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PWD"}
    if by_shell:
        supervisor = site.start(
            "-c", "supervisor.toml", "--database", "sqlite:///data/app.db", env=env | {"PWD": str(site.folder)}
        )
    else:
        supervisor = site.start(env=env)
    assert answers(site) == {OLD}
    old = site.folder.resolve()
    move = f"ln -s releases/{NEW} ../next && mv -T ../next {site.folder}"
    if deleted:
        in_shell(f"cd .. && {move.replace('../', '')} && cd - && rm -r {old} && supervisor reload --wait", site.folder)
    else:
        in_shell(move.replace("../", ""), site.folder.parent)
        kill(site.workers("spawned")[0].pid)
        assert answers(site) == {OLD}  # until the reload
        site.command("reload", "--wait")
    assert answers(site) == {NEW}
    assert Path(f"/proc/{supervisor.pid}/cwd").readlink() == site.folder.resolve()
    if not deleted:
        shutil.rmtree(old)
    before = {worker.incarnation for worker in site.workers()}
    for worker in site.workers():
        kill(worker.pid)
    wait_for(lambda: len({one.incarnation for one in site.workers()} - before) == len(TYPES), "others in their place")
    assert answers(site) == {NEW}


def test_the_recipe_of_the_page_on_upgrades_deploys_a_release(site: Site) -> None:
    parent = site.folder.parent
    (parent / "releases" / NEW / "data").unlink()
    [recipe] = [one for one in blocks("sh", document=ROOT / "docs/deploying/upgrade.md") if one.mark == "run: release"]
    site.start()
    assert answers(site) == {OLD}
    in_shell(recipe.text.replace("/srv/app", str(parent)), parent)
    assert answers(site) == {NEW}


def test_a_reload_is_refused_if_the_release_has_a_database_of_its_own(site: Site) -> None:
    (site.folder.parent / "releases" / NEW / "data").unlink()
    (site.folder.parent / "releases" / NEW / "data").mkdir()
    supervisor = site.start()
    in_shell(f"ln -s releases/{NEW} next && mv -T next current", site.folder.parent)
    supervisor.send_signal(signal.SIGHUP)
    refused = site.told("reload_refused")
    assert refused is not None
    assert refused["problems"] == [f"{site.config}: database: a reload cannot change it; restart the supervisor"]
    assert answers(site) == {OLD}
    assert Path(f"/proc/{supervisor.pid}/cwd").readlink().name == OLD


def test_a_reload_through_a_link_that_the_supervisor_does_not_know_is_warned_of(site: Site) -> None:
    site.config = site.config.resolve()
    site.start()
    link = site.folder / "supervisor.toml"
    in_shell(f"ln -s releases/{NEW} next && mv -T next current", site.folder.parent)
    command = [sys.executable, "-m", "supervisor", "--config", str(link), "reload", "--wait"]
    ran = subprocess.run(command, cwd="/", env=environment(), capture_output=True, text=True, timeout=60)
    assert f"warning: no supervisor reads {link}, but {site.config}: restart it" in ran.stderr
    assert answers(site) == {OLD}
    assert "warning" not in site.command("reload", "--wait").stderr


def test_a_worker_whose_release_is_deleted_goes_on_until_the_reload(site: Site) -> None:
    old = site.folder.resolve()
    (old / "jobs.py").write_text("import os\ndef work(payload, ctx):\n    return os.getpid()\n")
    (old / "supervisor.toml").write_text(CONFIG.replace('tasks = ["jobs"]', 'handler = "jobs:work"'))
    site.start("-c", "supervisor.toml", env=dict(environment(), PWD=str(site.folder)))
    [worker] = {site.done(site.queue.enqueue("forked")).result}
    in_shell(f"ln -s releases/{NEW} next && mv -T next current && rm -r {old}", site.folder.parent)
    for _ in range(3):
        assert site.done(site.queue.enqueue("forked")).result == worker
    assert not site.event("process_changed")
    assert not site.event("replacement_planned")
