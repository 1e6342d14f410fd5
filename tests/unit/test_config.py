"""The configuration: which file is read, what loads, and what it then means."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.config import RetentionSettings, load, locate
from supervisor.config.pool_settings import Trial
from supervisor.config.settings import AdminSettings, MachineSettings, SpoolSettings, untaken
from supervisor.domain.alerts import Alert
from supervisor.domain.errors import ConfigError
from supervisor.domain.settlement import RetryPolicy
from tests.unit.conftest import POOL, loaded

USUAL = AdminSettings("127.0.0.1:8787", None, None, (), show_payloads=False, allow_remote=False)
MIB, GIB = 1 << 20, 1 << 30

SAMPLE = """\
database = "sqlite:///./jobs.db"     # relative to this file
[defaults]                           # any key of a pool
[pools.tag]
types = ["tag"]                      # default: the pool's name
handler = "handlers.tag:Tagger"      # or: command = ["python", "tag.py"]
workers = 2                          # or min_workers / max_workers / jobs_per_worker / scale_down_delay
capabilities = ["cpu", "tag@2"]
prefetch = "auto"                    # or 1..256
batch_size = 1                       # >1 or "auto": the handler gets lists
batch_wait = "20ms"
timeout = "2m"
startup_timeout = "5m"
shutdown_grace = "30s"
heartbeat_timeout = "60s"            # no beat and no CPU used for so long: stuck
lock_time = "60s"
max_memory = "2GiB"                  # a worker above it is replaced after its job
memory_budget = "6GiB"               # the pool never grows beyond it
max_crashes = 3
start = "fork"                       # or "spawn"
preload = true                       # import the handler before forking
preload_setup = false                # with true its setup runs before forking, too
gpus = []                            # device ids, shared out round robin as CUDA_VISIBLE_DEVICES
threads = "auto"                     # of numerical libraries in each worker, or 1..1024
cpu_affinity = []                    # cores; all if empty
nice = 0
env = {}
recover = "pending"                  # or "failed": what start-up does with interrupted jobs
retry = { max_attempts = 5, backoff = "exponential", base = "2s", max = "10m", jitter = 0.1 }
retry_failed_every = "0s"            # >0: failed jobs go back to pending this often
[[schedules]]                        # name, cron or every, timezone, type, payload, misfire
[[alerts]]                           # when, enqueue, payload, every, only
[retention]                          # done = "7d", failed = "30d"
[admin]                              # listen = "127.0.0.1:8787" or "unix:/run/…", token_file = "…"
[log]                                # format = "auto" | "json" | "console", level
"""


def test_the_file_given_wins_then_the_one_here_then_the_environment_s(
    toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPERVISOR_CONFIG", "/etc/jobs.toml")
    assert locate(None) == Path("/etc/jobs.toml")
    toml.write_text("")
    assert locate(None) == Path("supervisor.toml")
    assert locate(Path("other.toml")) == Path("other.toml")


@pytest.mark.parametrize("value", [None, ""])
def test_without_any_file_the_user_learns_what_to_do(
    toml: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("SUPERVISOR_CONFIG", raising=False)
    if value is not None:
        monkeypatch.setenv("SUPERVISOR_CONFIG", value)

    with pytest.raises(ConfigError, match="`supervisor init` writes a starter"):
        locate(None)


def test_the_values_of_the_sample_are_the_defaults(toml: Path) -> None:
    documented = loaded(toml, SAMPLE).pools["tag"]
    names = 'types = ["tag"]\ncapabilities = ["cpu", "tag@2"]\nmax_memory = "2GiB"\nmemory_budget = "6GiB"\n'
    short = loaded(toml, f'[pools.tag]\nhandler = "handlers.tag:Tagger"\n{names}')

    assert short.pools["tag"] == documented
    assert (documented.timeout, documented.batch_wait, documented.max_memory) == (120.0, 0.02, 2 * GIB)
    assert short.database == f"sqlite:///{Path.cwd()}/jobs.db"


def test_a_canary_is_for_the_pool_s_only_type(toml: Path) -> None:
    text = f'{POOL}[pools.tag.canary]\npayload = {{ path = "a.png" }}\nexpect = ["cat"]\ntolerance = 0.5\n'
    pool = loaded(toml, text).pools["tag"]
    assert pool.canary == Trial("tag", '{"path":"a.png"}', '["cat"]', 0.5)
    assert pool.warmup is None


def test_a_pool_takes_the_type_of_its_name_if_it_lists_none(toml: Path) -> None:
    assert loaded(toml, POOL).pools["tag"].types == ("tag",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", (2, 2)),
        ("workers = 3", (3, 3)),
        ("min_workers = 0\nmax_workers = 4", (0, 4)),
        ("max_workers = 4", (1, 4)),
        ("min_workers = 0", (0, len(os.sched_getaffinity(0)))),
        ("min_workers = 500", (500, 500)),
    ],
)
def test_the_size_of_a_pool_is_one_number_or_a_range(toml: Path, text: str, expected: tuple[int, int]) -> None:
    pool = loaded(toml, POOL + text).pools["tag"]

    assert (pool.min_workers, pool.max_workers) == expected


@pytest.mark.parametrize(
    ("defaults", "own", "expected"),
    [
        ("workers = 3", "", (3, 3)),
        ("workers = 3", "max_workers = 5", (1, 5)),
        ("min_workers = 0\nmax_workers = 5", "workers = 3", (3, 3)),
        ("min_workers = 0", "max_workers = 5", (1, 5)),
    ],
)
def test_a_pool_s_own_way_to_say_its_size_puts_the_default_s_aside(
    toml: Path, defaults: str, own: str, expected: tuple[int, int]
) -> None:
    pool = loaded(toml, f"[defaults]\n{defaults}\n{POOL}{own}").pools["tag"]

    assert (pool.min_workers, pool.max_workers) == expected


def test_a_pool_overrides_the_defaults_and_lays_tables_over_them_key_by_key(toml: Path) -> None:
    pools = loaded(
        toml,
        """
        [defaults]
        timeout = "10s"
        recover = "failed"
        retry = { max_attempts = 9, base = "1s" }
        env = { A = "1", B = "1" }
        options.model = { size = 1 }
        [pools.tag]
        handler = "jobs:tag"
        timeout = "20s"
        retry.base = "5s"
        env.B = "2"
        [pools.plain]
        handler = "jobs:plain"
        """,
    ).pools

    assert (pools["tag"].timeout, pools["plain"].timeout) == (20.0, 10.0)
    assert pools["tag"].recover == "failed"
    assert pools["tag"].retry == RetryPolicy(max_attempts=9, base=5.0)
    assert pools["plain"].retry == RetryPolicy(max_attempts=9, base=1.0)
    assert pools["tag"].env == {"A": "1", "B": "2"}
    assert pools["plain"].env == {"A": "1", "B": "1"}
    assert pools["tag"].options == {"model": {"size": 1}}


def test_finished_jobs_can_be_kept_for_ever(toml: Path) -> None:
    assert loaded(toml, f'{POOL}[retention]\ndone = "forever"\nfailed = "0s"').retention == RetentionSettings(
        done=None, failed=0.0
    )


def test_devices_are_kept_as_text_however_they_are_written(toml: Path) -> None:
    ids = '[1, 0, "2", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "MIG-GPU-8932f937/1/0"]'

    found = loaded(toml, f"{POOL}gpus = {ids}").pools["tag"].gpus

    assert found == ("1", "0", "2", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "MIG-GPU-8932f937/1/0")


@pytest.mark.parametrize(
    ("keys", "loads"),
    [
        ('handler = "jobs:tag"', True),
        ('handler = "jobs:tag"\npreload = false', False),
        ('handler = "jobs:tag"\nstart = "spawn"', False),
        ('command = ["true"]', False),
    ],
)
def test_an_image_is_loaded_only_where_workers_are_forked_from_it(toml: Path, keys: str, loads: bool) -> None:
    assert loaded(toml, f"[pools.tag]\n{keys}\n").pools["tag"].preloads is loads


def test_only_who_runs_the_pool_minds_that_its_cores_are_not_there(toml: Path) -> None:
    toml.write_text(f'{POOL}cpu_affinity = [4095]\n[pools.other]\nhandler = "jobs:tag"\n')

    assert load(toml).pools["tag"].cpu_affinity == (4095,)
    assert load(toml, to_run=["other"]).pools
    with pytest.raises(ConfigError, match=r"toml:3: pools.tag.cpu_affinity: core 4095 is not available; there are "):
        load(toml, to_run=["tag"])


def test_settings_travel_to_another_process_unchanged(toml: Path) -> None:
    settings = loaded(toml, SAMPLE)

    assert pickle.loads(pickle.dumps(settings)) == settings


def test_settings_reach_a_worker_without_their_reader() -> None:
    script = "import sys, supervisor.config; sys.exit('supervisor.config.reader' in sys.modules)"

    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_an_empty_command_is_none(toml: Path) -> None:
    assert loaded(toml, f"{POOL}command = []\n").pools


def test_what_is_read_of_the_tables(toml: Path) -> None:
    here = Path.cwd()
    plain = loaded(toml, POOL)
    assert (plain.machine, plain.spool, plain.alerts) == (MachineSettings(None, 30.0, 60.0, {}), SpoolSettings(), ())
    found = loaded(
        toml,
        f"""
        {POOL}
        gpus = [0, "GPU-1"]
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
        payload = {{ to = "ops" }}
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
    found = loaded(toml, f'{POOL}[[alerts]]\nwhen = "given_up"\nenqueue = "mial"\nonly = ["tagg"]\n')
    (_, first), (_, second) = untaken(found)
    assert first.startswith("no pool takes the type mial of the alert about given_up")
    assert second.startswith("no pool takes the type tagg that the alert about given_up is for")


def test_there_is_an_admin_process_if_the_table_is_there_an_empty_one_too(toml: Path) -> None:
    assert loaded(toml, POOL).admin is None
    assert loaded(toml, f"{POOL}[admin]").admin == USUAL


def test_paths_start_at_the_file_s_folder(toml: Path) -> None:
    here = Path.cwd()
    admin = loaded(
        toml, f'{POOL}[admin]\nlisten = "unix:run/x.sock"\ntoken_file = "t"\nread_token_file = "/etc/r"'
    ).admin

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
    admin = loaded(toml, f'{POOL}[admin]\nlisten = "{listen}"').admin
    assert admin is not None
    assert admin.address == address


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:///./data/jobs.db", "sqlite:///{folder}/data/jobs.db"),
        ("sqlite:///../jobs.db", "sqlite:///{folder.parent}/jobs.db"),
        ("sqlite:////srv/my jobs.db", "sqlite:////srv/my jobs.db"),
        ("sqlite+aiosqlite:///jobs.db", "sqlite:///{folder}/jobs.db"),
        ("postgresql+asyncpg://jobs@db/shop?a=b", "postgresql://jobs@db/shop?a=b"),
    ],
)
def test_the_database_s_path_starts_at_the_file_s_folder(tmp_path: Path, toml: Path, url: str, expected: str) -> None:
    (tmp_path / "sub").mkdir()
    path = Path("sub/supervisor.toml")
    path.write_text(f'database = "{url}"\n{POOL}')

    assert load(path).database == expected.format(folder=tmp_path / "sub")
    assert load(path, database="sqlite:///x.db").database == f"sqlite:///{tmp_path}/x.db"
    assert load(path, database="sqlite+pysqlite:///x.db").database == f"sqlite:///{tmp_path}/x.db"
    with pytest.raises(ConfigError, match=r"^--database: 'x\.db' is not an SQLite or PostgreSQL URL; write it like"):
        load(path, database="x.db")


def test_without_one_in_the_file_the_database_is_that_of_the_environment(
    tmp_path: Path, toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPERVISOR_DATABASE", "sqlite:///env.db")
    toml.write_text(POOL)
    assert load(toml).database == f"sqlite:///{tmp_path}/env.db"
    assert load(toml, database="sqlite:///x.db").database == f"sqlite:///{tmp_path}/x.db"
    monkeypatch.setenv("SUPERVISOR_DATABASE", "postgresql://pooler/shop")
    monkeypatch.setenv("SUPERVISOR_LISTEN_DATABASE", "postgresql://db/shop")
    found = load(toml)
    assert (found.database, found.listen_database) == ("postgresql://pooler/shop", "postgresql://db/shop")
    toml.write_text(f'database = "sqlite:///own.db"\n{POOL}')
    found = load(toml)
    assert (found.database, found.listen_database) == (f"sqlite:///{tmp_path}/own.db", None)
    toml.write_text(POOL)
    monkeypatch.setenv("SUPERVISOR_DATABASE", "x.db")
    with pytest.raises(ConfigError, match=r"^\$SUPERVISOR_DATABASE: 'x\.db' is not an SQLite or PostgreSQL URL"):
        load(toml)
