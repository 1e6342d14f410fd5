"""`[admin]` of the configuration: what it becomes, and what is said of a fault."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from supervisor.config import Settings, load
from supervisor.config.settings import AdminSettings
from supervisor.domain.errors import ConfigError

POOL = '[pools.tag]\nhandler = "jobs:tag"\n'
USUAL = AdminSettings("127.0.0.1:8787", None, None, (), show_payloads=False, allow_remote=False)


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("supervisor.toml")


def loaded(path: Path, admin: str) -> Settings:
    path.write_text(f"{POOL}{admin}")
    return load(path)


def test_there_is_an_admin_process_if_the_table_is_there_an_empty_one_too(toml: Path) -> None:
    assert loaded(toml, "").admin is None
    assert loaded(toml, "[admin]").admin == USUAL


def test_paths_start_at_the_file_s_folder(toml: Path) -> None:
    here = Path.cwd()
    admin = loaded(toml, '[admin]\nlisten = "unix:run/x.sock"\ntoken_file = "t"\nread_token_file = "/etc/r"').admin

    assert admin is not None
    assert admin.listen == f"unix:{here}/run/x.sock"
    assert admin.unix_path == here / "run/x.sock"
    assert admin.address is None
    assert (admin.token_file, admin.read_token_file) == (here / "t", Path("/etc/r"))


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:8787", ("127.0.0.1", 8787)),
        ("127.1.2.3:0", ("127.1.2.3", 0)),
        ("localhost:1", ("127.0.0.1", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_an_address_of_this_machine_needs_no_leave(toml: Path, listen: str, address: tuple[str, int]) -> None:
    admin = loaded(toml, f'[admin]\nlisten = "{listen}"').admin

    assert admin is not None
    assert admin.address == address


@pytest.mark.parametrize("listen", ["0.0.0.0:8787", "[::]:8787", "192.168.1.2:80", "[2001:db8::1]:80"])
def test_any_other_address_is_refused_unless_it_is_said_to_be_meant(toml: Path, listen: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(toml, f'[admin]\nlisten = "{listen}"')
    assert caught.value.problems == [
        f"supervisor.toml:4: admin.listen: {listen} can be reached from other machines, unencrypted; "
        "put a reverse proxy before 127.0.0.1, or set allow_remote = true"
    ]

    admin = loaded(toml, f'[admin]\nlisten = "{listen}"\nallow_remote = true').admin
    assert admin is not None
    assert admin.listen == listen


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        *(
            (
                f'listen = "{listen}"',
                f"listen: '{listen}' is not an address; "
                'write it like "127.0.0.1:8787", "[::1]:8787" or "unix:admin.sock"',
            )
            for listen in ("x", "8787", ":80", "::1:80", "127.0.0.1:65536", "127.0.0.1:http", "[::1]", "unix:")
        ),
        ("listen = 8787", 'listen: must be text in quotes, like "text", not 8787'),
        ('token_file = ""', "token_file: '' is not the name of a file"),
        ('read_token_file = "x/"', "read_token_file: 'x/' is not the name of a file"),
        (
            'hosts = ["https://jobs.example.org"]',
            "hosts: 'https://jobs.example.org' is not a host name; "
            "write it like jobs.example.org, without a scheme or a port",
        ),
        (
            'hosts = ["jobs.example.org:443"]',
            "hosts: 'jobs.example.org:443' is not a host name; "
            "write it like jobs.example.org, without a scheme or a port",
        ),
        ('hosts = ["a", "a"]', "hosts: 'a' is listed twice"),
        ('hosts = "a"', 'hosts: must be a list, like ["a", "b"], not \'a\''),
        ('show_payloads = "yes"', "show_payloads: must be true or false, not 'yes'"),
        ("allow_remote = 1", "allow_remote: must be true or false, not 1"),
        ('token = "geheim"', "token: unknown key; did you mean token_file?"),
        ('workers = 2', "workers: unknown key; it belongs in [pools.NAME]"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_file_line_and_key(toml: Path, line: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(toml, f"[admin]\n{line}")
    assert caught.value.problems == [f"supervisor.toml:4: admin.{problem}"]


def test_the_two_tokens_need_two_files_and_a_socket_both_or_neither(toml: Path) -> None:
    with pytest.raises(ConfigError, match=r":5: admin\.read_token_file: it is the same file as token_file"):
        loaded(toml, '[admin]\ntoken_file = "t"\nread_token_file = "t"')
    with pytest.raises(
        ConfigError, match=r":5: admin\.read_token_file: without token_file, requests on the Unix socket"
    ):
        loaded(toml, '[admin]\nlisten = "unix:x"\nread_token_file = "t"')


def test_it_is_no_table(toml: Path) -> None:
    toml.write_text(f"admin = true\n{POOL}")
    with pytest.raises(ConfigError) as caught:
        load(toml)
    assert caught.value.problems == ["supervisor.toml:1: admin: must be a table, not true"]


def test_whoever_is_about_to_run_it_is_told_what_to_install(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in ("fastapi", "uvicorn") else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    toml.write_text(f"{POOL}[admin]\n")
    assert load(toml).admin == USUAL
    with pytest.raises(ConfigError) as caught:
        load(toml, to_run=())
    assert caught.value.problems == [
        "supervisor.toml:3: admin: it needs fastapi, uvicorn: pip install './job-supervisor[admin]'"
    ]
    toml.write_text(POOL)
    assert load(toml, to_run=()).admin is None
