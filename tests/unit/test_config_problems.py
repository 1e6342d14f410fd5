"""The configuration: what is said of a file that does not load."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from supervisor.config import load
from supervisor.domain.errors import ConfigError
from tests.unit.conftest import POOL, loaded, problems

SCHEDULE = '[[schedules]] ⏎ name = "x" ⏎ type = "tag"'
ALERT = '[[alerts]] ⏎ when = "given_up" ⏎ enqueue = "tag"'
EITHER = 'handler = "module:attribute", tasks = ["module"] or command = ["program", "argument"]'

# What is written, "⏎" beginning another line, and below it what is said of that.

IN_A_POOL = r"""
timeot = 1
    timeot: unknown key; did you mean timeout?
max_attempts = 1
    max_attempts: unknown key; it belongs in retry = { … }
database = "x"
    database: unknown key; it belongs in the file itself, above its first [table]
retry = { bas = 3 }
    retry.bas: unknown key; did you mean base?
workers = 0
    workers: must be at least 1, not 0
workers = true
    workers: must be a whole number, not true
workers = 2 ⏎ max_workers = 3
    workers: write either workers or min_workers and max_workers, not both
max_workers = 2 ⏎ min_workers = 3
    max_workers: min_workers is 3, which is more than max_workers, 2
prefetch = 0
    prefetch: must be at least 1, not 0, or "auto"
timeout = "0s"
    timeout: '0s' is out of range; it must be from 1ms to 36500d
heartbeat_timeout = "999ms"
    heartbeat_timeout: '999ms' is out of range; it must be from 1s to 36500d
max_memory = 2
    max_memory: 2 is not a size; write it like 512MiB or 2GiB
memory_budget = "1B"
    memory_budget: '1B' is out of range; it must be at least 1MiB
retry = { base = "2s", max = "1s" }
    retry: max is 1s, which is shorter than base, 2s
retry = { on = { KeyError = { base = "1h" }, IndexError = { max_attempts = 2 } } }
    retry.on.KeyError: max is 10m, which is shorter than base, 60m
retry = { on = { "a b" = {} } }
    retry.on: 'a b' is not the name of an exception; write it like "ValueError" or "requests.Timeout"
retry = { on = { KeyError = { give_up_on = [] } } }
    retry.on.KeyError.give_up_on: unknown key; it belongs in [pools.NAME]
retry = { on = { KeyError = 2 } }
    retry.on.KeyError: must be a table, not 2
retry = { on = ["KeyError"] }
    retry.on: must be tables [pools.tag.retry.on.NAME], not ['KeyError']
retry = 3
    retry: must be a table, not 3
types = []
    types: the list is empty; omit the key instead
types = "a"
    types: must be a list, like ["a", "b"], not 'a'
capabilities = ["a b"]
    capabilities: 'a b' is not a capability; one has 1 to 100 printable ASCII characters, no space and no comma
env = { "A=B" = "x" }
    env: 'A=B' is not the name of an environment variable
env = { A = "\u0000" }
    env: A: '\x00' is not text for a program: it contains a NUL character
batch_size = 257
    batch_size: must be at most 256, not 257, or "auto"
max_batch_size = 1 ⏎ batch_size = "auto"
    max_batch_size: must be at least 2, not 1
latency_target = "1s"
    latency_target: it has an effect only with batch_size = "auto"
batch_key = "model"
    batch_key: it has an effect only with batches: set batch_size
batch_key = "options..model" ⏎ batch_size = 8
    batch_key: 'options..model' is not a field of a payload; write it like "model" or "options.model"
batch_budget = 0 ⏎ batch_size = 8
    batch_budget: must be at least 1e-06, not 0
batch_cost = "tokens" ⏎ batch_size = 8
    batch_cost: it needs a batch_budget, the most that a batch may cost
concurrency = 2 ⏎ batch_size = "auto"
    concurrency: a worker runs batches one at a time: raise batch_size or concurrency, not both
gpus = [0, 0]
    gpus: '0' is listed twice
gpus = ["0,1"]
    gpus: '0,1' is not a device; write its number, or its id like "GPU-8932f937" or "MIG-…"
gpus = [0] ⏎ env = { CUDA_VISIBLE_DEVICES = "1" }
    gpus: it sets CUDA_VISIBLE_DEVICES, differently for each worker; leave that out of env
preload_setup = true ⏎ gpus = [0]
    preload_setup: it cannot be combined with gpus: the model would be loaded before a worker has its device
preload_setup = true ⏎ start = "spawn"
    preload_setup: it needs a handler, start = "fork" and preload = true
nice = 20
    nice: must be at most 19, not 20
warmup = { type = "tag" }
    warmup.payload: is missing; write the payload with which the handler is to be called
canary = { payload = 1 } ⏎ types = ["a", "b"]
    canary.type: must be one of the types of the pool: a, b
canary = { payload = 1, type = "b" }
    canary.type: must be one of the types of the pool: tag
canary = { payload = 1, tolerance = -1 }
    canary.tolerance: must be at least 0.0, not -1
warmup = { payload = 1, expect = 2 }
    warmup.expect: unknown key; it belongs in canary = { … }
spares = -1
    spares: must be at least 0, not -1
kill_grace = "soon"
    kill_grace: 'soon' is not a duration; write it like 250ms, 10s, 5m, 2h or 7d
"""
BESIDE_A_POOL = r"""
[[schedules]] ⏎ [[schedules]] ⏎ name = "x" ⏎ every = "1h"
    :4: schedules[1]: `type` is missing
SCHEDULE
    :3: schedules[0]: set when it runs: `cron = "0 3 * * *"` or `every = "1h"`
SCHEDULE ⏎ cron = "0 3 * * *" ⏎ every = "1h"
    :7: schedules[0].every: write either cron or every, not both
SCHEDULE ⏎ cron = "61 * * * *"
    :6: schedules[0].cron: '61 * * * *' is not a cron line: bad minute
SCHEDULE ⏎ every = "1h" ⏎ timezone = "UTC"
    :7: schedules[0].timezone: it applies to cron only; `every` counts from the last time
SCHEDULE ⏎ cron = "0 3 * * *" ⏎ timezone = "Mars/Base"
    :7: schedules[0].timezone: 'Mars/Base' is not a time zone on this machine; write it like Europe/Berlin
SCHEDULE ⏎ every = "1h" ⏎ payload = { at = 2026-01-01 }
    :7: schedules[0].payload: it is not valid JSON: Object of type date is not JSON serializable
SCHEDULE ⏎ every = "1h" ⏎ misfire = "never"
    :7: schedules[0].misfire: must be 'once', 'skip' or 'all', not 'never'
SCHEDULE ⏎ every = "1h" ⏎ unique_key = ""
    :7: schedules[0].unique_key: '' is not a string of 1 to 1000 characters
SCHEDULE ⏎ every = "1h" ⏎ SCHEDULE ⏎ every = "1h"
    :8: schedules[1].name: another schedule also has the name 'x'
[schedules]
    :3: schedules: must be tables [[schedules]], not {}
[retention] ⏎ done = "never"
    :4: retention.done: 'never' is not a duration; write it like 250ms, 10s, 5m, 2h or 7d, or "forever"
[machine] ⏎ memory = 6
    :4: machine.memory: 6 is not a size; write it like 512MiB or 2GiB
[machine] ⏎ memry = "6GiB"
    :4: machine.memry: unknown key; did you mean memory?
gpus = [0, "GPU-1"] ⏎ [devices.0]
    :4: devices.0.memory: is missing; write memory = "14GiB"
gpus = [0, "GPU-1"] ⏎ [devices.7] ⏎ memory = "1GiB"
    :4: devices.7: no pool has this device in its gpus; they name 0, GPU-1
[spool] ⏎ max_file = "2GiB"
    :4: spool.max_file: 2GiB is more than max_total, which is 1GiB
[spool] ⏎ done = 5
    :4: spool.done: 5 is not a duration; write it like 250ms, 10s, 5m, 2h or 7d, or "forever"
[[alerts]] ⏎ enqueue = "tag"
    :3: alerts[0]: `when` is missing
[[alerts]] ⏎ when = "given_up"
    :3: alerts[0]: `enqueue` is missing
ALERT ⏎ payload = [1]
    :6: alerts[0].payload: must be a table: the facts are added to it
ALERT ⏎ payload = { alert = 1 }
    :6: alerts[0].payload.alert: this key is for the facts; choose another name
ALERT ⏎ every = "10ms"
    :6: alerts[0].every: '10ms' is out of range; it must be from 1s to 36500d
[[alerts]] ⏎ when = "pool_broken" ⏎ enqueue = "tag" ⏎ only = ["tagg"]
    :6: alerts[0].only: there is no pool 'tagg'; did you mean tag?
[[alerts]] ⏎ when = "schedule_missed" ⏎ enqueue = "tag" ⏎ only = ["x"]
    :6: alerts[0].only: there is no schedule 'x'
ALERT ⏎ ALERT
    :6: alerts[1]: another alert says the same
[admin] ⏎ token_file = ""
    :4: admin.token_file: '' is not the name of a file
[admin] ⏎ hosts = ["https://jobs.example.org"]
    :4: admin.hosts: 'https://jobs.example.org' is not a host name; write it like jobs.example.org, without a scheme
    or a port
[admin] ⏎ show_payloads = "yes"
    :4: admin.show_payloads: must be true or false, not 'yes'
[admin] ⏎ token = "geheim"
    :4: admin.token: unknown key; did you mean token_file?
[admin] ⏎ workers = 2
    :4: admin.workers: unknown key; it belongs in [pools.NAME]
[admin] ⏎ token_file = "t" ⏎ read_token_file = "t"
    :5: admin.read_token_file: it is the same file as token_file; read-only access needs another file
[admin] ⏎ listen = "unix:x" ⏎ read_token_file = "t"
    :5: admin.read_token_file: without token_file, requests on the Unix socket need no token; set both or neither
"""
WHOLE_FILES = r"""
[pools.a] ⏎ command = []
    :1: pools.a.handler: is missing; write handler = "module:attribute", tasks = ["module"] or command = ["program",
    "argument"]
[pools.a] ⏎ command = "x"
    :2: pools.a.command: must be a list, like ["a", "b"], not 'x'
[pools.a] ⏎ command = [3]
    :2: pools.a.command: must be text in quotes, like "text", not 3
[pools.a] ⏎ command = ["x\u0000"]
    :2: pools.a.command: 'x\x00' is not text for a program: it contains a NUL character
pools = 3
    :1: pools: must be tables [pools.NAME], not 3
pools.tag = 3
    :1: pools.tag: must be a table, not 3
defaults = 3 ⏎ [pools.tag] ⏎ handler = "jobs:tag"
    :1: defaults: must be a table, not 3
log = 3 ⏎ [pools.tag] ⏎ handler = "jobs:tag"
    :1: log: must be a table, not 3
timeout = "3s" ⏎ [pools.tag] ⏎ handler = "jobs:tag"
    :1: timeout: unknown key; it belongs in [pools.NAME]
[defaults] ⏎ handler = "a:b" ⏎ [pools.tag] ⏎ handler = "jobs:tag"
    :2: defaults.handler: each pool has its own; it cannot have a default
[pools."a b"] ⏎ handler = "a:b"
    :1: pools."a b": the name of a pool must have 1 to 100 characters of a-z 0-9 _ . -
"""


def cases(text: str, place: str, before: str = "") -> Iterator[tuple[str, str]]:
    """A whole file of each case, with `before`, and its problem, which begins with the place."""
    text = text.replace("SCHEDULE", SCHEDULE).replace("ALERT", ALERT)
    for written, said in re.findall(r"^(\S.*)\n((?: {4}.*\n)+)", text, re.M):
        yield before + written.replace(" ⏎ ", "\n") + "\n", place + " ".join(said.split())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *cases(IN_A_POOL, ":3: pools.tag.", POOL),
        *cases(BESIDE_A_POOL, "", POOL),
        *cases(WHOLE_FILES, ""),
        ("", f": pools: no pool is configured; add a table [pools.NAME] with {EITHER}"),
        (f'{POOL}memory_budget = "{"9" * 400}B"', ":3: pools.tag.memory_budget: it is larger than any memory"),
        (
            f"{POOL}retry = {{ jitter = 1{'0' * 310} }}",
            f":3: pools.tag.retry.jitter: must be at most 1.0, not 1{'0' * 17}...{'0' * 19}",
        ),
    ],
)
def test_a_fault_is_told_in_words_that_say_what_to_write(toml: Path, text: str, problem: str) -> None:
    assert problems(toml, text) == [f"supervisor.toml{problem}"]


@pytest.mark.parametrize(
    "listen", ["x", "8787", ":80", "::1:80", "127.0.0.1:65536", "127.0.0.1:http", "[::1]", "unix:"]
)
def test_what_is_no_address(toml: Path, listen: str) -> None:
    words = 'is not an address; write it like "127.0.0.1:8787", "[::1]:8787" or "unix:admin.sock"'
    found = problems(toml, f'{POOL}[admin]\nlisten = "{listen}"')
    assert found == [f"supervisor.toml:4: admin.listen: {listen!r} {words}"]


@pytest.mark.parametrize("listen", ["0.0.0.0:8787", "[::]:8787", "192.168.1.2:80", "[2001:db8::1]:80"])
def test_an_address_that_other_machines_can_reach_must_be_allowed(toml: Path, listen: str) -> None:
    advice = "put a reverse proxy before 127.0.0.1, or set allow_remote = true"
    found = problems(toml, f'{POOL}[admin]\nlisten = "{listen}"')
    assert found == [
        f"supervisor.toml:4: admin.listen: {listen} can be reached from other machines, unencrypted; {advice}"
    ]


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


@pytest.mark.parametrize("when", ['"lost"', '"oldest_due"', '"given_up > 5m"', "5"])
def test_what_an_alert_may_be_about_is_listed(toml: Path, when: str) -> None:
    with pytest.raises(ConfigError, match=r"alerts\[0\]\.when: must be 'given_up', .* or 'oldest_due > 5m', not "):
        loaded(toml, f'{POOL}[[alerts]]\nwhen = {when}\nenqueue = "tag"\n')


def test_whoever_is_about_to_run_the_admin_process_is_told_what_to_install(
    toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in ("fastapi", "uvicorn") else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert loaded(toml, f"{POOL}[admin]\n").admin
    with pytest.raises(ConfigError) as caught:
        load(toml, to_run=())
    assert caught.value.problems == [
        "supervisor.toml:3: admin: it needs fastapi, uvicorn: pip install './job-supervisor[admin]'"
    ]


NO_URL = "is not an SQLite or PostgreSQL URL"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql:user:secret@host/db", f"'…@host/db' {NO_URL}"),
        ("sqlite://", "in-memory"),
        ("sqlite:///", "in-memory"),
        ("sqlite:///:memory:", "in-memory"),
        ("sqlite:///file:x?mode=memory", "in-memory"),
        ("sqlite://jobs.db", NO_URL),
        ("", NO_URL),
        ("mysql://user:secret@host/db", f"'mysql://…@host/db' {NO_URL}; write it like"),
        ("mysql://host/db?password=secret", f"'mysql://host/db?…' {NO_URL}"),
        ("mysql+psycopg://user:secret@host/db", f"'mysql+psycopg://…@host/db' {NO_URL}"),
        ("sqlite:///jobs.db?mode=ro", "leave out"),
        ("sqlite:///folder/", "is not the name of a file"),
        ("sqlite:///a\\u0000b", "is not the name of a file"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused(toml: Path, url: str, words: str) -> None:
    (problem,) = problems(toml, f'database = "{url}"\n{POOL}')
    assert problem.startswith("supervisor.toml:1: database: ")
    assert words in problem
    assert "secret" not in problem


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


@pytest.mark.parametrize(("own", "word"), [('command = ["x", "y"]', "command"), ('handler = "jobs:t"', "handler")])
def test_two_pools_may_not_run_the_same_jobs_with_different_programs(toml: Path, own: str, word: str) -> None:
    text = '[pools.a]\ncommand = ["x"]\ntypes = ["t"]\n[pools.b]\ntypes = ["t"]\n'
    said = f"supervisor.toml:4: pools.b: it takes t with the same capabilities as pools.a, but has another {word}"
    assert problems(toml, text + own) == [said]
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


def no_text(path: Path) -> None:
    path.write_bytes(b"# fine\n# caf\xe9\n")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (no_text, "it cannot be read: 'utf-8' codec can't decode byte 0xe9"),
        (Path.exists, "the file does not exist; `supervisor init` writes"),
        (lambda path: path.symlink_to(path.name), "it cannot be read: Too many levels of symbolic links$"),
        (Path.mkdir, "it cannot be read: Is a directory$"),
    ],
    ids=["no text", "missing", "a link to itself", "a folder"],
)
def test_what_cannot_be_read_is_named(toml: Path, make: Callable[[Path], object], said: str) -> None:
    make(toml)
    with pytest.raises(ConfigError, match=f"^supervisor.toml: {said}"):
        load(toml)
