"""The tables of the configuration beside the pools: what is read of them, and what is said of mistakes."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from supervisor.config import Settings, load
from supervisor.config.settings import AdminSettings, MachineSettings, SpoolSettings, untaken
from supervisor.domain.alerts import Alert
from supervisor.domain.errors import ConfigError

POOL = '[pools.tag]\nhandler = "jobs:tag"\ngpus = [0, "GPU-1"]\n'
ALERT = '[[alerts]]\nwhen = "given_up"\nenqueue = "tag"\n'
USUAL = AdminSettings("127.0.0.1:8787", None, None, (), show_payloads=False, allow_remote=False)
MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration's path, as a user in its folder would give it."""
    monkeypatch.chdir(tmp_path)
    return Path("supervisor.toml")


def loaded(path: Path, text: str) -> Settings:
    path.write_text(POOL + text)
    return load(path)


def test_what_is_read_of_the_tables(toml: Path) -> None:
    here = Path.cwd()
    plain = loaded(toml, "")
    assert (plain.machine, plain.spool, plain.alerts) == (MachineSettings(None, 30.0, 60.0, {}), SpoolSettings(), ())
    found = loaded(
        toml,
        """
        [machine]
        memory = "6GiB"
        min_residency = "5s"
        max_wait = "2m"
        [devices.0]
        memory = "14GiB"
        [devices.GPU-1]
        memory = "7GiB"
        [spool]
        folder = "files"
        max_file = "2MiB"
        max_total = "9MiB"
        done = "forever"
        [[alerts]]
        when = "oldest_due > 5m"
        enqueue = "tag"
        payload = { to = "ops" }
        every = "1h"
        only = ["tag"]
        [[alerts]]
        when = "given_up"
        enqueue = "tag"
        """,
    )
    assert found.machine == MachineSettings(6 * GIB, 5.0, 120.0, {"0": 14 * GIB, "GPU-1": 7 * GIB})
    assert found.spool == SpoolSettings(here / "files", 2 * MIB, 9 * MIB, None)
    assert found.alerts == (
        Alert("oldest_due", 300.0, "tag", '{"to":"ops"}', 3600.0, ("tag",)),
        Alert("given_up", 0.0, "tag", "{}", 600.0),
    )


def test_an_alert_whose_type_no_pool_takes_is_a_warning(toml: Path) -> None:
    found = loaded(toml, '[[alerts]]\nwhen = "given_up"\nenqueue = "mial"\nonly = ["tagg"]\n')
    (_, first), (_, second) = untaken(found)
    assert first.startswith("no pool takes the type mial of the alert about given_up")
    assert second.startswith("no pool takes the type tagg that the alert about given_up is for")


MISTAKES = [
    ("[machine]\nmemory = 6", ":5: machine.memory: 6 is not a size; write it like 512MiB or 2GiB"),
    ('[machine]\nmemry = "6GiB"', ":5: machine.memry: unknown key; did you mean memory?"),
    ("[devices.0]\n", ':4: devices.0.memory: is missing; write memory = "14GiB"'),
    ('[devices.7]\nmemory = "1GiB"', ":4: devices.7: no pool has this device in its gpus; they name 0, GPU-1"),
    ('[spool]\nmax_file = "2GiB"', ":5: spool.max_file: 2GiB is more than max_total, which is 1GiB"),
    ("[spool]\ndone = 5", ':5: spool.done: 5 is not a duration; write it like 250ms, 10s, 5m, 2h or 7d, or "forever"'),
    ('[[alerts]]\nenqueue = "tag"', ":4: alerts[0]: `when` is missing"),
    ('[[alerts]]\nwhen = "given_up"', ":4: alerts[0]: `enqueue` is missing"),
    (f"{ALERT}payload = [1]", ":7: alerts[0].payload: must be a table: the facts are added to it"),
    (
        f"{ALERT}payload = {{ alert = 1 }}",
        ":7: alerts[0].payload.alert: this key is for the facts; choose another name",
    ),
    (f'{ALERT}every = "10ms"', ":7: alerts[0].every: '10ms' is out of range; it must be from 1s to 36500d"),
    (
        f'{ALERT.replace("given_up", "pool_broken")}only = ["tagg"]',
        ":7: alerts[0].only: there is no pool 'tagg'; did you mean tag?",
    ),
    (f'{ALERT.replace("given_up", "schedule_missed")}only = ["x"]', ":7: alerts[0].only: there is no schedule 'x'"),
    (f"{ALERT}{ALERT}", ":7: alerts[1]: another alert says the same"),
    *(
        (
            f'[admin]\nlisten = "{listen}"',
            f":5: admin.listen: '{listen}' is not an address; "
            'write it like "127.0.0.1:8787", "[::1]:8787" or "unix:admin.sock"',
        )
        for listen in ("x", "8787", ":80", "::1:80", "127.0.0.1:65536", "127.0.0.1:http", "[::1]", "unix:")
    ),
    *(
        (
            f'[admin]\nlisten = "{listen}"',
            f":5: admin.listen: {listen} can be reached from other machines, unencrypted; "
            "put a reverse proxy before 127.0.0.1, or set allow_remote = true",
        )
        for listen in ("0.0.0.0:8787", "[::]:8787", "192.168.1.2:80", "[2001:db8::1]:80")
    ),
    ('[admin]\ntoken_file = ""', ":5: admin.token_file: '' is not the name of a file"),
    (
        '[admin]\nhosts = ["https://jobs.example.org"]',
        ":5: admin.hosts: 'https://jobs.example.org' is not a host name; "
        "write it like jobs.example.org, without a scheme or a port",
    ),
    ('[admin]\nshow_payloads = "yes"', ":5: admin.show_payloads: must be true or false, not 'yes'"),
    ('[admin]\ntoken = "geheim"', ":5: admin.token: unknown key; did you mean token_file?"),
    ("[admin]\nworkers = 2", ":5: admin.workers: unknown key; it belongs in [pools.NAME]"),
    (
        '[admin]\ntoken_file = "t"\nread_token_file = "t"',
        ":6: admin.read_token_file: it is the same file as token_file; read-only access needs another file",
    ),
    (
        '[admin]\nlisten = "unix:x"\nread_token_file = "t"',
        ":6: admin.read_token_file: without token_file, requests on the Unix socket need no token; set both or neither",
    ),
]


@pytest.mark.parametrize(("text", "problem"), MISTAKES)
def test_mistakes_are_told_with_their_line(toml: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(toml, text)
    assert caught.value.problems == [f"supervisor.toml{problem}"]


@pytest.mark.parametrize("when", ['"lost"', '"oldest_due"', '"given_up > 5m"', "5"])
def test_what_an_alert_may_be_about_is_listed(toml: Path, when: str) -> None:
    with pytest.raises(ConfigError, match=r"alerts\[0\]\.when: must be 'given_up', .* or 'oldest_due > 5m', not "):
        loaded(toml, f'[[alerts]]\nwhen = {when}\nenqueue = "tag"\n')


def test_there_is_an_admin_process_if_the_table_is_there_an_empty_one_too(toml: Path) -> None:
    assert loaded(toml, "").admin is None
    assert loaded(toml, "[admin]").admin == USUAL


def test_paths_start_at_the_file_s_folder(toml: Path) -> None:
    here = Path.cwd()
    admin = loaded(toml, '[admin]\nlisten = "unix:run/x.sock"\ntoken_file = "t"\nread_token_file = "/etc/r"').admin

    assert admin is not None
    assert admin.listen == f"unix:{here}/run/x.sock"
    assert (admin.unix_path, admin.address) == (here / "run/x.sock", None)
    assert (admin.token_file, admin.read_token_file) == (here / "t", Path("/etc/r"))


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.1.2.3:0", ("127.1.2.3", 0)),
        ("localhost:1", ("127.0.0.1", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("0.0.0.0:80\"\nallow_remote = true\ntoken_file = \"t", ("0.0.0.0", 80)),
    ],
)  # fmt: skip
def test_addresses(toml: Path, listen: str, address: tuple[str, int]) -> None:
    admin = loaded(toml, f'[admin]\nlisten = "{listen}"').admin
    assert admin is not None
    assert admin.address == address


def test_whoever_is_about_to_run_the_admin_process_is_told_what_to_install(
    toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in ("fastapi", "uvicorn") else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert loaded(toml, "[admin]\n").admin == USUAL
    with pytest.raises(ConfigError) as caught:
        load(toml, to_run=())
    assert caught.value.problems == [
        "supervisor.toml:4: admin: it needs fastapi, uvicorn: pip install './job-supervisor[admin]'"
    ]


# The database's address


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:///./data/jobs.db", "sqlite:///{folder}/data/jobs.db"),
        ("sqlite:///../jobs.db", "sqlite:///{folder.parent}/jobs.db"),
        ("sqlite:////srv/my jobs.db", "sqlite:////srv/my jobs.db"),
    ],
)
def test_the_database_s_path_starts_at_the_file_s_folder(tmp_path: Path, toml: Path, url: str, expected: str) -> None:
    (tmp_path / "sub").mkdir()
    path = Path("sub/supervisor.toml")
    path.write_text(f'database = "{url}"\n{POOL}')

    assert load(path).database == expected.format(folder=tmp_path / "sub")
    assert load(path, database="sqlite:///x.db").database == f"sqlite:///{tmp_path}/x.db"
    with pytest.raises(ConfigError, match=r"^--database: 'x\.db' is not an SQLite or PostgreSQL URL; write it like"):
        load(path, database="x.db")


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
        ("postgresql+psycopg://user:secret@host/db", f"'postgresql+psycopg://…@host/db' {NO_URL}"),
        ("sqlite:///jobs.db?mode=ro", "leave out"),
        ("sqlite:///folder/", "is not the name of a file"),
        ("sqlite:///a\\u0000b", "is not the name of a file"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused(toml: Path, url: str, words: str) -> None:
    toml.write_text(f'database = "{url}"\n{POOL}')

    with pytest.raises(ConfigError) as caught:
        load(toml)

    (problem,) = caught.value.problems
    assert problem.startswith("supervisor.toml:1: database: ")
    assert words in problem
    assert "secret" not in problem
