"""`tasks = […]` and `[types.NAME]`: the types are found by reading the modules, which are never imported for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.config import PoolSettings, load
from supervisor.config.limits import written
from supervisor.config.settings import untaken
from supervisor.config.tasks import by_module, of_module
from supervisor.domain.errors import ConfigError
from supervisor.domain.limits import Limits, interval_of
from supervisor.domain.settlement import FollowUps, RetryPolicy
from supervisor.worker.handler import HandlerError
from supervisor.worker.loader import load as load_handler

JOBS = """
raise RuntimeError("imported")
from supervisor import task
import supervisor as s

@task
def resize(path): ...

@s.task("mail.send", timeout="30s", max_attempts=2, retry={"base": "1s"}, give_up_on=["KeyError"], priority=3)
async def send(to): ...

def plain(): ...

if True:
    class Group:
        @task("grouped")
        @staticmethod
        def one(): ...

def outer():
    @task
    def inner(): ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.py").write_text(JOBS)
    return tmp_path


def pool(folder: Path, text: str) -> PoolSettings:
    (folder / "supervisor.toml").write_text(f"[pools.default]\n{text}\n")
    return load(folder / "supervisor.toml").pools["default"]


def problems(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as error:
        pool(folder, text)
    return str(error.value)


def test_the_types_of_a_pool_are_those_of_its_tasks(folder: Path) -> None:
    found = pool(folder, 'tasks = ["jobs"]\ntimeout = "5m"\nretry = { jitter = 0.5 }')
    assert set(found.types) == {"resize", "mail.send", "grouped"}
    assert found.handler == "jobs"
    assert set(found.by_type) == {"mail.send"}
    send = found.by_type["mail.send"]
    assert send.timeout == 30.0
    assert send.retry == RetryPolicy(2, base=1.0, jitter=0.5, give_up_on=("KeyError",))
    assert found.timeout_of("resize") == 300.0
    assert found.policy.retry_of("resize") == RetryPolicy(jitter=0.5)


def test_the_configuration_comes_before_the_decorator(folder: Path) -> None:
    found = pool(folder, 'tasks = ["jobs"]\n[types."mail.send"]\ntimeout = "1s"\n[types.resize]\nmax_attempts = 9')
    assert (found.timeout_of("mail.send"), found.policy.retry_of("mail.send").max_attempts) == (1.0, 2)
    assert found.policy.retry_of("resize").max_attempts == 9


def test_types_differ_in_any_pool(folder: Path) -> None:
    found = pool(
        folder, 'handler = "jobs:plain"\ntypes = ["a", "b"]\ngive_up_on = ["ValueError"]\n[types.b]\ntimeout = "1s"'
    )
    assert (found.timeout_of("a"), found.timeout_of("b")) == (120.0, 1.0)
    assert found.policy.retry_of("b").give_up_on == found.retry.give_up_on == ("ValueError",)


def test_a_policy_for_an_exception_is_that_of_the_type_else_of_the_pool(folder: Path) -> None:
    (folder / "jobs.py").write_text(
        "from supervisor import task\n@task(retry={'on': {'KeyError': {'base': '1s'}}})\ndef own(): ...\n"
        "@task(max_attempts=2)\ndef other(): ...\n"
    )
    found = pool(folder, 'tasks = ["jobs"]\n[pools.default.retry.on."a.Late"]\nmax = "1h"\njitter = 0.5')
    assert found.policy.retry_of("own").on == {"KeyError": {"base": 1.0}}
    assert found.policy.retry_of("other").on == found.retry.on == {"a.Late": {"max": 3600.0, "jitter": 0.5}}


def test_follow_ups_are_those_of_the_decorator_and_of_the_file(folder: Path) -> None:
    task = "from supervisor import task\n@task(on_done='b', on_failed='c')\ndef a(): ...\n@task\ndef b(): ...\n"
    (folder / "jobs.py").write_text(task)
    found = pool(folder, 'tasks = ["jobs"]\n[types.a]\non_failed = "elsewhere"')
    assert found.policy.follow_ups == {"a": FollowUps("b", "elsewhere")}
    told = untaken(load(folder / "supervisor.toml"))
    assert told == [("follow_up", "no pool takes the type elsewhere that follows a")]


def test_the_limits_of_a_decorator_hold_unless_the_file_says_otherwise(folder: Path) -> None:
    (folder / "calls.py").write_text(
        "from supervisor import task\n"
        '@task(max_running=5, rate="50/s", burst=3, fair=True, age_boost="10m", breaker={"failures": 3})\n'
        "def call(): ...\n"
    )
    declared = Limits(5, interval=interval_of("50/s"), burst=3, fair=True, age_boost=600.0, max_failures=3)
    assert pool(folder, 'tasks = ["calls"]').by_type["call"].limits == declared
    text = 'tasks = ["calls"]\n[types.call]\nrate = "1/m"\non_conflict = "skip"\nbreaker = { pause = "5s" }'
    changed = declared._replace(interval=interval_of("1/m"), on_conflict="skip", max_failures=5, breaker_pause=5.0)
    assert pool(folder, text).by_type["call"].limits == changed
    assert written(changed) == {
        "max_running": 5,
        "rate": "1/m",
        "burst": 3,
        "on_conflict": "skip",
        "fair": True,
        "age_boost": "10m",
        "breaker": {"failures": 5, "pause": "5s"},
    }
    assert pool(folder, 'tasks = ["jobs"]').by_type["mail.send"].limits is None


def test_types_may_choose_among_the_tasks(folder: Path) -> None:
    assert pool(folder, 'tasks = ["jobs"]\ntypes = ["resize"]').types == ("resize",)


def test_a_package_means_all_its_modules(folder: Path) -> None:
    for name in ("shop/__init__.py", "shop/mail/__init__.py", "shop/mail/send.py", "shop/tags.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f'from supervisor import task\n@task("{name}")\ndef one(): ...\n')
    assert set(pool(folder, 'tasks = ["shop"]').types) == {
        "shop/__init__.py",
        "shop/mail/__init__.py",
        "shop/mail/send.py",
        "shop/tags.py",
    }
    assert set(pool(folder, 'tasks = ["shop.mail", "shop.tags"]').types) == {
        "shop/mail/__init__.py",
        "shop/mail/send.py",
        "shop/tags.py",
    }


BAD = [
    ('tasks = ["nothing"]', r"pools.default.tasks: there is no module 'nothing' (looked in "),
    ('tasks = ["jobs.py"]', "there is no module 'jobs.py'"),
    ('tasks = ["job s"]', "'job s' is not a module"),
    ('tasks = ["math"]', "the module 'math' has no Python source"),
    ('tasks = ["jobs.inner"]', "there is no module 'jobs.inner'"),
    ('tasks = ["jobs"]\npath = ["sources"]', "default.path: there is no folder "),
    (
        'command = ["true"]\npath = ["src"]',
        "default.path: it applies to Python handlers; for a program, set PYTHONPATH",
    ),
    ('tasks = ["jobs"]\nhandler = "jobs:plain"', "write either handler or tasks, not both"),
    ('tasks = ["jobs"]\ncommand = ["true"]', "write either tasks or command, not both"),
    ('tasks = ["jobs"]\nbatch_size = 2', "a task is given one job at a time"),
    ('tasks = ["jobs"]\ntypes = ["risize"]', "no task has the type 'risize'; did you mean resize?"),
    ('tasks = ["jobs"]\n[types.risize]', "types.risize: no pool takes the type 'risize'; did you mean resize?"),
    ('tasks = ["jobs"]\n[types.resize]\ntimeout = 5', "types.resize.timeout: 5 is not a duration"),
    ('tasks = ["jobs"]\n[types.resize]\nworkers = 5', "types.resize.workers: unknown key; it belongs in"),
    ('tasks = ["empty"]', "the module 'empty' defines no function with @task"),
    ('tasks = ["broken"]', "broken.py:2: invalid syntax"),
    ('tasks = ["named"]', "named.py:4: the type of @task must be a literal"),
    ('tasks = ["wrong"]', "wrong.py:4: timeout: 5 is not a duration"),
    ('tasks = ["twice"]', "the type 'a' is that of "),
    ('tasks = ["jobs"]\n[types.resize]\nretry = { base = "1h" }', "types.resize.retry: the type 'resize': max is 10m"),
    (
        'tasks = ["jobs"]\n[types.resize]\non_failed = "mail.send"\n[types."mail.send"]\non_done = "resize"',
        "types.resize: the follow-ups of 'resize' never end: resize → mail.send → resize",
    ),
    ('tasks = ["jobs"]\n[types.resize]\non_done = "resize"', "of 'resize' never end: resize → resize"),
    ('tasks = ["jobs"]\n[types.resize]\non_done = "a b"', "types.resize.on_done: 'a b' is not a type"),
    ('tasks = ["endless"]', "pools: the follow-ups of 'a' never end: a → b → c → a"),
    ('tasks = ["jobs"]\n[types.resize]\npriority = 5', "types.resize.priority: unknown key"),
    ('tasks = ["jobs"]\n[types.resize]\nburst = 5', "types.resize.burst: it has an effect only with a rate"),
    ('tasks = ["jobs"]\n[types.resize]\nburst_per_key = 5', "it has an effect only with rate_per_key"),
    (
        'tasks = ["jobs"]\n[types.resize]\nconcurrency_per_key = 2\non_conflict = "skip"',
        'types.resize.concurrency_per_key: with on_conflict = "skip", a key has one job at a time',
    ),
    ('tasks = ["jobs"]\n[types.resize]\nrate = "1000/1ms"', "rate: '1000/1ms' is too high; at most 100,000 starts"),
    ('tasks = ["jobs"]\n[types.resize]\nrate = "fast"', "types.resize.rate: 'fast' is not a rate; write it like 50/s"),
    ('tasks = ["bursts"]', "pools: the type 'one': burst: it has an effect only with a rate"),
    ("tasks = []", "default.handler: is missing"),
    ('[types.resize]\n[defaults]\ntasks = ["jobs"]', "each pool has its own"),
]


def test_pools_whose_lists_of_modules_overlap_are_no_contradiction(folder: Path) -> None:
    (folder / "k.py").write_text("from supervisor import task\n@task\ndef other(): ...\n")
    two = 'tasks = ["jobs"]\n[pools.second]\ntasks = ["jobs", "k"]'
    assert set(pool(folder, two).types) == {"resize", "mail.send", "grouped"}
    (folder / "k.py").write_text("from supervisor import task\n@task\ndef resize(): ...\n")
    told = problems(folder, 'tasks = ["jobs"]\n[pools.second]\ntasks = ["k"]')
    assert "pools.second: it takes resize with the same capabilities as pools.default, but has another handler" in told
    told = problems(folder, 'tasks = ["jobs"]\n[pools.second]\nhandler = "k:resize"\ntypes = ["resize"]')
    assert "pools.second: it takes resize with the same capabilities" in told


@pytest.mark.parametrize(("text", "sentence"), BAD)
def test_what_is_wrong_is_told_with_its_place(folder: Path, text: str, sentence: str) -> None:
    (folder / "src").mkdir()
    (folder / "empty.py").write_text("def task(): ...\n@task\ndef no(): ...\n")
    (folder / "broken.py").write_text("# task\ndef (:\n")
    (folder / "named.py").write_text("from supervisor import task\nNAME = 'a'\n@task(NAME)\ndef one(): ...\n")
    (folder / "wrong.py").write_text("from supervisor import task\n\n@task(timeout=5)\ndef one(): ...\n")
    chain = "\n".join(f"@task(on_done='{after}')\ndef {one}(): ..." for one, after in ("ab", "bc", "ca"))
    (folder / "endless.py").write_text(f"from supervisor import task\n{chain}\n")
    (folder / "twice.py").write_text(
        "from supervisor import task\n@task('a')\ndef one(): ...\n@task('a')\ndef two(): ...\n"
    )
    (folder / "bursts.py").write_text("from supervisor import task\n@task(burst=2)\ndef one(): ...\n")
    assert sentence in problems(folder, text)


def test_a_module_is_found_without_importing_its_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "loud").mkdir()
    (folder / "loud" / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "loud" / "jobs.py").write_text("from supervisor import task\n@task\ndef one(): ...\n")
    assert [each.type for each in of_module("loud.jobs", folder)] == ["one"]
    assert "loud" not in sys.modules


COVERED = """
import functools
from supervisor import task

def log(function):
    return functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs))

@log
@task("covered.one")
def one(): ...
"""
LOADED = [
    ("hidden", "task = __import__('supervisor').task\n@task('h')\ndef one(): ...\n", "cannot be found by reading"),
    ("gone", "from supervisor import task\nif 0:\n @task('g')\n def one(): ...\n", "did not define the task"),
    ("odd", "from supervisor import task\n@task('odd.one')\ndef one(*a): ...\n", "stored by their names"),
    ("covered", COVERED, "is hidden by another decorator"),
]


@pytest.mark.parametrize(("name", "text", "sentence"), LOADED)
def test_a_worker_compares_what_was_read_with_what_was_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, sentence: str
) -> None:
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(HandlerError, match=sentence):
        load_handler(name)


def test_commands_that_need_only_the_file_go_on_beside_a_broken_module(folder: Path) -> None:
    (folder / "supervisor.toml").write_text('[pools.a]\ntasks = ["jobs"]\n[pools.b]\ntasks = ["broken"]\n[types.x]\n')
    (folder / "broken.py").write_text("# task\ndef (:\n")
    found = load(folder / "supervisor.toml", sources=False)
    assert set(found.pools["a"].types) == {"resize", "mail.send", "grouped"}
    with pytest.raises(ConfigError, match=r"broken\.py:2"):
        load(folder / "supervisor.toml")
    (folder / "supervisor.toml").write_text('[pools.b]\ntasks = ["broken"]\nworkers = "x"\n')
    with pytest.raises(ConfigError, match="workers: must be a whole number"):
        load(folder / "supervisor.toml", sources=False)


def test_files_of_a_package_that_cannot_be_imported_or_have_no_tasks_are_left_alone(folder: Path) -> None:
    package = folder / "shop"
    (package / "tests").mkdir(parents=True)
    for name in ("__init__.py", "tests/__init__.py", "tests/broken.py", ".#lock.py", "my-task.py", "__main__.py"):
        (package / name).write_text("def (" if name != "__init__.py" else "")
    (package / "link.py").symlink_to("nowhere")
    (package / "tasks.py").write_text("from supervisor import task\n@task\ndef one(): ...\n")
    assert [each.type for each in of_module("shop", folder)] == ["one"]
    assert list(by_module("shop", folder)) == ["shop", "shop.tasks"]


def test_namespace_packages_of_any_depth_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = folder / "other"
    for base, name in ((folder, "ns/sub/b.py"), (other, "ns/sub/c.py")):
        (base / name).parent.mkdir(parents=True)
        (base / name).write_text(f"import supervisor.tasks as st\n@st.task('{name}')\ndef one(): ...\n")
    monkeypatch.syspath_prepend(other)
    assert [each.type for each in of_module("ns.sub.b", folder)] == ["ns/sub/b.py"]
    assert [each.type for each in of_module("ns", folder)] == ["ns/sub/b.py", "ns/sub/c.py"]


def test_path_and_the_pythonpath_of_env_are_searched_before_the_configurations_folder(folder: Path) -> None:
    for place in ("one", "two"):
        (folder / place).mkdir()
        (folder / place / "jobs.py").write_text(f"from supervisor import task\n@task\ndef {place}(): ...\n")
    (folder / "two" / "more.py").write_text("from supervisor import task\n@task\ndef more(): ...\n")
    env = f'env = {{ PYTHONPATH = "{folder / "two"}" }}'
    assert pool(folder, f'tasks = ["jobs", "more"]\npath = ["./one/"]\n{env}').types == ("one", "more")
    assert pool(folder, f'tasks = ["jobs"]\n{env}\n[defaults]\npath = ["one"]').types == ("one",)
    assert pool(folder, f'tasks = ["jobs"]\npath = []\n{env}\n[defaults]\npath = ["one"]').types == ("two",)


def test_a_worker_whose_modules_have_lost_a_type_takes_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "renamed.py").write_text("from supervisor import task\n@task('renamed.new')\ndef new(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    handler = load_handler("renamed")
    handler.insist_on(["renamed.new"])
    with pytest.raises(HandlerError, match=r"none of the type 'renamed.old' any more; `supervisor reload`"):
        handler.insist_on(["renamed.new", "renamed.old"])


def test_a_module_may_also_run_as_a_script(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "from supervisor import task\n@task\ndef one(): ...\nif __name__ == '__main__':\n    import views\n"
    )
    (tmp_path / "views.py").write_text("import app\nprint(app.one.type)\n")
    ran = subprocess.run([sys.executable, "app.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("one\n", "")
