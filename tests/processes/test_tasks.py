"""Tasks from the call to the result, through real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from supervisor import Status
from tests.samples import sampled
from tests.site_under_test import Site, wait_for

MakeSite = Callable[..., Site]

HANDLERS = """
import dataclasses, datetime, os, time
from supervisor import Context, Fail, Snooze, task
from ledger import record

@dataclasses.dataclass
class Picture:
    path: str
    taken: datetime.date

@task
def resize(path: str, width: int = 800) -> dict:
    follow.options(unique_key=path).enqueue(Picture(path, datetime.date(2026, 1, 2)))
    return {"path": path, "width": width}

@task("pictures.follow")
async def follow(picture: Picture, ctx: Context = None) -> Picture:
    ctx.log.info("following", path=picture.path)
    return dataclasses.replace(picture, path=picture.path + "!")

@task
def wait(ctx: Context, times: int) -> int:
    record("wait", ctx)
    if ctx.token <= times:
        raise Snooze("50ms")
    return ctx.attempt

@task(timeout="500ms", max_attempts=1)
def slow() -> None:
    time.sleep(30)

@task(max_attempts=1)
def dies(ctx: Context) -> None:
    if ctx.token == 1:
        os._exit(3)
    raise Fail("again")

@task(retry={"base": "10ms"}, on_failed="told", on_done="told")
def ends(ctx: Context, how: str = "die") -> str:
    if how == "die":
        os._exit(3)
    return how

@task
def told(ctx: Context, job: int, type: str, status: str, **others: object) -> None:
    record("told", ctx)

@task(give_up_on=["LookupError"], retry={"on": {"builtins.OSError": {"max_attempts": 1}}})
def lookup(name: str) -> None:
    raise {"key": KeyError, "value": ValueError, "late": TimeoutError}[name](name)
"""
POOL = """
[pools.default]
tasks = ["jobs"]
workers = 2
retry = { base = "5m" }
[types.slow]
timeout = "200ms"
"""


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    site = make_site(POOL, HANDLERS)
    site.start()
    return site


def test_a_task_runs_with_its_arguments_and_enqueues_another(site: Site) -> None:
    job = site.done(site.queue.enqueue("resize", {"path": "cat.jpg"}))
    assert job.result == {"path": "cat.jpg", "width": 800}
    follow = wait_for(lambda: site.rows("SELECT id FROM jobs WHERE type = 'pictures.follow'"), "its successor")
    assert site.done(follow[0][0]).result == {"path": "cat.jpg!", "taken": "2026-01-02"}


def test_a_payload_that_does_not_fit_fails_at_once_and_names_the_parameter(site: Site) -> None:
    for payload, message in (
        ({"path": "a", "width": "wide"}, "resize: width must be a whole number, not 'wide'"),
        ({"width": 1}, "resize: the parameter 'path' is missing in the payload"),
        ({"path": "a", "height": 1}, "resize: the task has no parameter 'height'"),
    ):
        job = site.queue.wait(site.queue.enqueue("resize", payload), 20)
        assert (job.status, job.attempts, job.last_error) == (Status.FAILED, 1, message)


def test_a_snooze_spends_no_attempt(site: Site) -> None:
    job = site.done(site.queue.enqueue("wait", {"times": 4}, max_attempts=1))
    assert (job.result, job.attempts) == (1, 1)
    assert len(site.runs("wait", job.id)) == 3


def test_types_of_one_pool_have_their_own_limits_and_policies(site: Site) -> None:
    slow = site.queue.wait(site.queue.enqueue("slow"), 20)
    assert (slow.status, slow.attempts, slow.last_error) == (Status.FAILED, 1, "over its time limit of 200ms")
    key = site.queue.wait(site.queue.enqueue("lookup", {"name": "key"}), 20)
    assert (key.status, key.attempts) == (Status.FAILED, 1)
    late = site.queue.wait(site.queue.enqueue("lookup", {"name": "late"}), 20)
    assert (late.status, late.attempts) == (Status.FAILED, 1)
    value = site.queue.enqueue("lookup", {"name": "value"})
    wait_for(lambda: site.job(value).attempts == 1 and site.job(value).status is Status.PENDING, "its retry")


def test_the_end_of_a_job_is_followed_by_one_other_also_if_its_workers_die(site: Site) -> None:
    done, poisoned = site.queue.enqueue("ends", {"how": "well"}), site.queue.enqueue("ends")
    assert site.queue.wait(poisoned, 30).status is Status.QUARANTINED
    site.command("jobs", "retry", str(poisoned))
    assert site.queue.wait(poisoned, 30).status is Status.QUARANTINED
    site.done(done)

    def told() -> list[tuple[object, ...]]:
        sql = "SELECT json_extract(payload, '$.job'), json_extract(payload, '$.status'), status FROM jobs"
        return sorted(site.rows(f"{sql} WHERE type = 'told'"))

    expected = [(done, "done", "done"), *[(poisoned, "quarantined", "done")] * 2]
    wait_for(lambda: told() == expected, "what follows")
    limits = site.command("jobs", "show", str(done)).stdout
    assert "on_done told, on_failed told" in " ".join(limits.split())


def test_the_policy_of_a_type_holds_after_a_workers_death(site: Site) -> None:
    dies = site.queue.wait(site.queue.enqueue("dies"), 20)
    assert (dies.status, dies.crashes, dies.last_error) == (Status.FAILED, 1, "again")


EDITABLE = """
import importlib.util, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        place = "FOLDER/src/shop"
        if name == "shop":
            found = importlib.util.spec_from_file_location
            return found(name, f"{place}/__init__.py", submodule_search_locations=[place])

sys.meta_path.append(Finder)
"""
SHOP = """
from supervisor import task

@task
def sell() -> str:
    return "sold"

def plain(payload, ctx):
    return "plain"
"""
# Each layout, each start, and both of the key that is ours
FOUND = [
    ("path", "fork"),
    ("path", "spawn"),
    ("PYTHONPATH", "spawn"),
    ("editable", "fork"),
    ("PYTHONPATH", "fork"),
    ("editable", "spawn"),
]


@pytest.mark.parametrize(("layout", "start"), sampled(FOUND, quick=4))
def test_a_package_elsewhere_is_found_by_check_and_by_workers(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch, layout: str, start: str
) -> None:
    pools = '[pools.a]\ntasks = ["shop.jobs"]\n[pools.b]\ntypes = ["plain"]\nhandler = "shop.jobs:plain"\n'
    defaults = f'[defaults]\nworkers = 1\nstart = "{start}"\n'
    site = make_site(pools + defaults)

    def said(*words: str) -> str:  # in a process that nobody has forked
        command = [sys.executable, "-m", "supervisor", *words]
        return subprocess.run(command, cwd=site.folder, check=True, capture_output=True, text=True).stdout

    source = site.folder / "src" / "shop" / "jobs.py"
    source.parent.mkdir(parents=True)
    (source.parent / "__init__.py").touch()
    source.write_text(SHOP)
    assert site.command("check", code=2).stderr.count("there is no module 'shop") == 2

    if layout == "editable":
        monkeypatch.setenv("PYTHONPATH", str(site.folder / "hooks"))
        (site.folder / "hooks").mkdir()
        (site.folder / "hooks" / "sitecustomize.py").write_text(EDITABLE.replace("FOLDER", str(site.folder)))
    else:
        key = 'path = ["src"]' if layout == "path" else f'env = {{ PYTHONPATH = "{site.folder}/src" }}'
        site.configure(f"{pools}{defaults}{key}\n")
    said("check")
    site.start(program=(sys.executable, "-m", "supervisor"))
    sold, plain = int(said("enqueue", "sell")), site.queue.enqueue("plain")
    assert (site.done(sold).result, site.done(plain).result) == ("sold", "plain")
    source.write_text(SHOP.replace("sold", "returned"))
    said("reload", "--wait")
    assert site.done(site.queue.enqueue("sell")).result == "returned"
