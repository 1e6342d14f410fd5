"""The configuration: what is said of a file that does not load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from supervisor.config import Settings, load
from supervisor.domain.errors import ConfigError

POOL = '[pools.tag]\nhandler = "jobs:tag"\n'
X = '[[schedules]]\nname = "x"\ntype = "tag"\nevery = "1h"\n'
EITHER = 'handler = "module:attribute", tasks = ["module"] or command = ["program", "argument"]'
NO_POOL = f"no pool is configured; add a table [pools.NAME] with {EITHER}"


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration's path, as a user in its folder would give it."""
    monkeypatch.chdir(tmp_path)
    return Path("supervisor.toml")


def loaded(path: Path, text: str) -> Settings:
    path.write_text(text)
    return load(path)


def problems(path: Path, text: str) -> list[str]:
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    return caught.value.problems


def test_a_fault_names_file_line_and_key(toml: Path) -> None:
    assert problems(toml, f'{POOL}\n# a comment\ntimeout = "5 parsecs"\n') == [
        "supervisor.toml:5: pools.tag.timeout: '5 parsecs' is not a duration; write it like 250ms, 10s, 5m, 2h or 7d"
    ]


def test_all_faults_are_listed_at_once_in_the_order_of_the_file(toml: Path) -> None:
    found = problems(
        toml,
        """\
databse = "sqlite:///jobs.db"
[pools.tag]
handler = "jobs"
workers = "2"
env = { A = 1 }
[pools.caption]
types = ["cap tion", 3]
preload = 1
start = "forkk"
retry = { jitter = 2, base = 3 }
[log]
level = "loud"
""",
    )

    assert found == [
        "supervisor.toml:1: databse: unknown key; did you mean database?",
        "supervisor.toml:3: pools.tag.handler: 'jobs' is not a handler; write module:attribute, like \"jobs:greet\"",
        "supervisor.toml:4: pools.tag.workers: must be a whole number, not '2'",
        'supervisor.toml:5: pools.tag.env: A: must be text in quotes, like "text", not 1',
        f"supervisor.toml:6: pools.caption.handler: is missing; write {EITHER}",
        "supervisor.toml:7: pools.caption.types: 'cap tion' is not a type; a type has 1 to 100 characters of "
        'a-z A-Z 0-9 _ . : / -; must be text in quotes, like "text", not 3',
        "supervisor.toml:8: pools.caption.preload: must be true or false, not 1",
        "supervisor.toml:9: pools.caption.start: must be 'fork' or 'spawn', not 'forkk'",
        "supervisor.toml:10: pools.caption.retry.jitter: must be at most 1.0, not 2",
        "supervisor.toml:10: pools.caption.retry.base: 3 is not a duration; write it like 250ms, 10s, 5m, 2h or 7d",
        "supervisor.toml:12: log.level: must be 'debug', 'info', 'warning' or 'error', not 'loud'",
    ]


def test_a_fault_of_the_defaults_is_reported_once_and_there(toml: Path) -> None:
    text = '[defaults]\ntimeout = "x"\nretry = {{ base = "{}" }}\nmin_workers = 9\nmax_workers = 2\n'
    pools = '[pools.a]\nhandler = "jobs:a"\n[pools.b]\nhandler = "jobs:b"\n'

    assert problems(toml, text.format("1d") + pools) == [
        "supervisor.toml:2: defaults.timeout: 'x' is not a duration; write it like 250ms, 10s, 5m, 2h or 7d",
        "supervisor.toml:3: defaults.retry: max is 10m, which is shorter than base, 1d",
        "supervisor.toml:5: defaults.max_workers: min_workers is 9, which is more than max_workers, 2",
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("timeot = 1", "timeot: unknown key; did you mean timeout?"),
        ("max_attempts = 1", "max_attempts: unknown key; it belongs in retry = { … }"),
        (
            'database = "x"',
            "database: unknown key; it belongs in the file itself, above its first [table]",
        ),
        ("retry = { bas = 3 }", "retry.bas: unknown key; did you mean base?"),
        ("workers = 0", "workers: must be at least 1, not 0"),
        ("workers = true", "workers: must be a whole number, not true"),
        (
            "workers = 2\nmax_workers = 3",
            "workers: write either workers or min_workers and max_workers, not both",
        ),
        (
            "max_workers = 2\nmin_workers = 3",
            "max_workers: min_workers is 3, which is more than max_workers, 2",
        ),
        ("prefetch = 0", 'prefetch: must be at least 1, not 0, or "auto"'),
        ('timeout = "0s"', "timeout: '0s' is out of range; it must be from 1ms to 36500d"),
        (
            'heartbeat_timeout = "999ms"',
            "heartbeat_timeout: '999ms' is out of range; it must be from 1s to 36500d",
        ),
        ("max_memory = 2", "max_memory: 2 is not a size; write it like 512MiB or 2GiB"),
        ('memory_budget = "1B"', "memory_budget: '1B' is out of range; it must be at least 1MiB"),
        (f'memory_budget = "{"9" * 400}B"', "memory_budget: it is larger than any memory"),
        ('retry = { base = "2s", max = "1s" }', "retry: max is 1s, which is shorter than base, 2s"),
        (f"retry = {{ jitter = 1{'0' * 310} }}", f"retry.jitter: must be at most 1.0, not 1{'0' * 17}...{'0' * 19}"),
        ("retry = 3", "retry: must be a table, not 3"),
        ("types = []", "types: the list is empty; omit the key instead"),
        ('types = "a"', 'types: must be a list, like ["a", "b"], not \'a\''),
        (
            'capabilities = ["a b"]',
            "capabilities: 'a b' is not a capability; "
            "one has 1 to 100 printable ASCII characters, no space and no comma",
        ),
        ('env = { "A=B" = "x" }', "env: 'A=B' is not the name of an environment variable"),
        ('env = { A = "\\u0000" }', "env: A: '\\x00' is not text for a program: it contains a NUL character"),
        ("batch_size = 257", 'batch_size: must be at most 256, not 257, or "auto"'),
        ('max_batch_size = 1\nbatch_size = "auto"', "max_batch_size: must be at least 2, not 1"),
        ('latency_target = "1s"', 'latency_target: it has an effect only with batch_size = "auto"'),
        ('batch_key = "model"', "batch_key: it has an effect only with batches: set batch_size"),
        (
            'batch_key = "options..model"\nbatch_size = 8',
            'batch_key: \'options..model\' is not a field of a payload; write it like "model" or "options.model"',
        ),
        ("batch_budget = 0\nbatch_size = 8", "batch_budget: must be at least 1e-06, not 0"),
        (
            'batch_cost = "tokens"\nbatch_size = 8',
            "batch_cost: it needs a batch_budget, the most that a batch may cost",
        ),
        (
            'concurrency = 2\nbatch_size = "auto"',
            "concurrency: a worker runs batches one at a time: raise batch_size or concurrency, not both",
        ),
        ("gpus = [0, 0]", "gpus: '0' is listed twice"),
        (
            'gpus = ["0,1"]',
            'gpus: \'0,1\' is not a device; write its number, or its id like "GPU-8932f937" or "MIG-…"',
        ),
        (
            'gpus = [0]\nenv = { CUDA_VISIBLE_DEVICES = "1" }',
            "gpus: it sets CUDA_VISIBLE_DEVICES, differently for each worker; leave that out of env",
        ),
        (
            "preload_setup = true\ngpus = [0]",
            "preload_setup: it cannot be combined with gpus: the model would be loaded before a worker has its device",
        ),
        (
            'preload_setup = true\nstart = "spawn"',
            'preload_setup: it needs a handler, start = "fork" and preload = true',
        ),
        ("nice = 20", "nice: must be at most 19, not 20"),
    ],
)
def test_a_pool_s_fault_is_told_in_words_that_say_what_to_write(toml: Path, line: str, problem: str) -> None:
    assert problems(toml, f"{POOL}{line}\n") == [f"supervisor.toml:3: pools.tag.{problem}"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", f": pools: {NO_POOL}"),
        (
            "[pools.a]\ncommand = []",
            f":1: pools.a.handler: is missing; write {EITHER}",
        ),
        ('[pools.a]\ncommand = "x"', ':2: pools.a.command: must be a list, like ["a", "b"], not \'x\''),
        ("[pools.a]\ncommand = [3]", ':2: pools.a.command: must be text in quotes, like "text", not 3'),
        (
            '[pools.a]\ncommand = ["x\\u0000"]',
            ":2: pools.a.command: 'x\\x00' is not text for a program: it contains a NUL character",
        ),
        ("pools = 3", ":1: pools: must be tables [pools.NAME], not 3"),
        ("pools.tag = 3", ":1: pools.tag: must be a table, not 3"),
        (f"defaults = 3\n{POOL}", ":1: defaults: must be a table, not 3"),
        (f"log = 3\n{POOL}", ":1: log: must be a table, not 3"),
        (
            f'timeout = "3s"\n{POOL}',
            ":1: timeout: unknown key; it belongs in [pools.NAME]",
        ),
        (
            f'[defaults]\nhandler = "a:b"\n{POOL}',
            ":2: defaults.handler: each pool has its own; it cannot have a default",
        ),
        (
            '[pools."a b"]\nhandler = "a:b"',
            ':1: pools."a b": the name of a pool must have 1 to 100 characters of a-z 0-9 _ . -',
        ),
        (
            f'{POOL}[[schedules]]\n[[schedules]]\nname = "x"\nevery = "1h"',
            ":4: schedules[1]: `type` is missing",
        ),
        (
            f'{POOL}[[schedules]]\nname = "x"\ntype = "tag"',
            ':3: schedules[0]: set when it runs: `cron = "0 3 * * *"` or `every = "1h"`',
        ),
        (
            f'{POOL}[[schedules]]\nname = "x"\ntype = "tag"\ncron = "0 3 * * *"\nevery = "1h"',
            ":7: schedules[0].every: write either cron or every, not both",
        ),
        (
            f'{POOL}[[schedules]]\nname = "x"\ntype = "tag"\ncron = "61 * * * *"',
            ":6: schedules[0].cron: '61 * * * *' is not a cron line: bad minute",
        ),
        (
            f'{POOL}[[schedules]]\nname = "x"\ntype = "tag"\nevery = "1h"\ntimezone = "UTC"',
            ":7: schedules[0].timezone: it applies to cron only; `every` counts from the last time",
        ),
        (
            f'{POOL}[[schedules]]\nname = "x"\ntype = "tag"\ncron = "0 3 * * *"\ntimezone = "Mars/Base"',
            ":7: schedules[0].timezone: 'Mars/Base' is not a time zone on this machine; write it like Europe/Berlin",
        ),
        (
            f'{POOL}[[schedules]]\nname = "x"\ntype = "tag"\nevery = "1h"\npayload = {{ at = 2026-01-01 }}',
            ":7: schedules[0].payload: it is not valid JSON: Object of type date is not JSON serializable",
        ),
        (
            f'{POOL}[[schedules]]\nname = "x"\ntype = "tag"\nevery = "1h"\nmisfire = "never"',
            ":7: schedules[0].misfire: must be 'once', 'skip' or 'all', not 'never'",
        ),
        (
            f'{POOL}[[schedules]]\nname = "x"\ntype = "tag"\nevery = "1h"\nunique_key = ""',
            ":7: schedules[0].unique_key: '' is not a string of 1 to 1000 characters",
        ),
        (
            f"{POOL}{X}{X}",
            ":8: schedules[1].name: another schedule also has the name 'x'",
        ),
        (f"{POOL}[schedules]", ":3: schedules: must be tables [[schedules]], not {}"),
        (
            f'{POOL}[retention]\ndone = "never"',
            ":4: retention.done: 'never' is not a duration; write it like 250ms, 10s, 5m, 2h or 7d, or \"forever\"",
        ),
    ],
)
def test_a_fault_outside_the_pools_is_told_in_words_that_say_what_to_write(toml: Path, text: str, problem: str) -> None:
    assert problems(toml, text) == [f"supervisor.toml{problem}"]


def test_two_pools_may_not_run_the_same_jobs_with_different_handlers(toml: Path) -> None:
    text = """\
[pools.a]
handler = "jobs:a"
types = ["x", "y"]
capabilities = ["cpu", "big"]
[pools.b]
handler = "jobs:{handler}"
types = ["y", "z"]
capabilities = ["big", "{capability}"]
"""

    assert problems(toml, text.format(handler="b", capability="cpu")) == [
        "supervisor.toml:5: pools.b: it takes y with the same capabilities as pools.a, but has another handler"
    ]
    assert loaded(toml, text.format(handler="b", capability="gpu"))
    assert loaded(toml, text.format(handler="a", capability="cpu"))


def test_two_pools_may_not_run_the_same_jobs_with_different_programs(toml: Path) -> None:
    text = '[pools.a]\ncommand = ["x"]\ntypes = ["t"]\n[pools.b]\ntypes = ["t"]\n'

    assert problems(toml, text + 'command = ["x", "y"]') == [
        "supervisor.toml:4: pools.b: it takes t with the same capabilities as pools.a, but has another command"
    ]
    assert problems(toml, text + 'handler = "jobs:t"') == [
        "supervisor.toml:4: pools.b: it takes t with the same capabilities as pools.a, but has another handler"
    ]
    assert loaded(toml, text + 'command = ["x"]')


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("nowhere", "there is no program 'nowhere' on PATH; give its full path"),
        ("/nowhere/tag", "there is no program /nowhere/tag, or it is not executable"),
        ("./tag", "there is no program {}/tag, or it is not executable"),
        ("./folder", "there is no program {}/folder, or it is not executable"),
        ("./text", "there is no program {}/text, or it is not executable"),
        ("./program", ""),
        ("sh", ""),
    ],
)
def test_a_program_that_is_not_there_is_a_fault_for_those_who_would_run_it(
    toml: Path, command: str, problem: str
) -> None:
    Path("folder").mkdir()
    Path("text").touch()
    Path("program").touch(mode=0o755)
    text = f'[pools.other]\nhandler = "jobs:other"\n[pools.tag]\ntimeout = "1s"\ncommand = ["{command}", "x"]\n'

    assert loaded(toml, text).pools["tag"].command == (command, "x")
    assert load(toml, to_run=["other"])
    for names in ([], ["tag"]):
        if problem:
            with pytest.raises(ConfigError) as caught:
                load(toml, to_run=names)
            assert caught.value.problems == [f"{toml}:5: pools.tag.command: {problem.format(Path.cwd())}"]
        else:
            assert load(toml, to_run=names)


def test_a_pool_looks_for_its_program_on_its_own_path(
    toml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("bin").mkdir()
    Path("bin/tag").touch(mode=0o755)
    toml = tmp_path / toml
    monkeypatch.chdir("/")

    toml.write_text('[pools.tag]\ncommand = ["tag"]\nenv = { PATH = "bin" }\n')
    assert load(toml, to_run=())
    toml.write_text('[pools.tag]\ncommand = ["sh"]\nenv = { PATH = "bin" }\n')
    with pytest.raises(ConfigError, match="there is no program 'sh' on PATH"):
        load(toml, to_run=())


@pytest.mark.parametrize("text", ["a = 1\nb = \n", "a = [1,\n2\n", "a = 1\na = 2\n"])
def test_a_mistake_in_the_toml_is_one_line_with_its_place(toml: Path, text: str) -> None:
    (found,) = problems(toml, text)

    assert re.fullmatch(
        r"supervisor.toml: this is not valid TOML: .* \(at (line 2, column \d|end of document)\)", found
    )


@pytest.mark.parametrize("text", ["x = 1" + "0" * 5000, "x = " + "[" * 5000, f"{POOL}workers = 0x{'f' * 5000}"])
def test_absurd_values_are_faults_like_any_other(toml: Path, text: str) -> None:
    (problem,) = problems(toml, text)

    assert problem.startswith("supervisor.toml:")
    assert len(problem) < 400


def test_a_file_that_is_no_text_is_refused(toml: Path) -> None:
    toml.write_bytes(b"# fine\n# caf\xe9\n")

    with pytest.raises(ConfigError, match=r"^supervisor.toml: it cannot be read: 'utf-8' codec can't decode byte 0xe9"):
        load(toml)


def test_a_missing_file_says_how_to_get_one(toml: Path) -> None:
    with pytest.raises(ConfigError, match=r"^supervisor.toml: there is no such file; `supervisor init` writes"):
        load(toml)


def test_a_link_in_the_file_s_place_that_leads_nowhere_else_is_named_as_one(toml: Path) -> None:
    toml.symlink_to(toml.name)

    with pytest.raises(ConfigError, match=r"^supervisor.toml: it cannot be read: Too many levels of symbolic links$"):
        load(toml)


def test_a_folder_in_the_file_s_place_is_named_as_one(toml: Path) -> None:
    toml.mkdir()

    with pytest.raises(ConfigError, match=r"^supervisor.toml: it cannot be read: Is a directory$"):
        load(toml)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            'warmup = { type = "tag" }',
            "pools.tag.warmup.payload: is missing; write the payload with which the handler is to be called",
        ),
        (
            'types = ["a", "b"]\ncanary = { payload = 1 }',
            "pools.tag.canary.type: must be one of the types of the pool: a, b",
        ),
        ('canary = { payload = 1, type = "b" }', "pools.tag.canary.type: must be one of the types of the pool: tag"),
        ("canary = { payload = 1, tolerance = -1 }", "pools.tag.canary.tolerance: must be at least 0.0, not -1"),
        ("warmup = { payload = 1, expect = 2 }", "pools.tag.warmup.expect: unknown key"),
        ("spares = -1", "pools.tag.spares: must be at least 0, not -1"),
        ('kill_grace = "soon"', "pools.tag.kill_grace: 'soon' is not a duration"),
    ],
)
def test_what_is_wrong_with_spares_and_trials(toml: Path, text: str, problem: str) -> None:
    [found] = problems(toml, f"{POOL}{text}\n")
    assert problem in found
