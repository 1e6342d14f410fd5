"""What a worker is told about threads and devices, and when it is too large from its beginning."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.config import PoolSettings, load
from supervisor.system import autogroup
from supervisor.worker.environment import THREADS
from supervisor.worker.loader import HandlerError
from supervisor.worker.placement import Place, check_memory, limit_threads, take, threads_of

MIB = 1 << 20


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any of the variables at hand, and as it was afterwards."""
    for name in (*THREADS, "ORT_DISABLE_TELEMETRY", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})


def pools(folder: Path, text: str) -> dict[str, PoolSettings]:
    (folder / "supervisor.toml").write_text(text)
    return dict(load(folder / "supervisor.toml").pools)


def pool(folder: Path, keys: str = "") -> PoolSettings:
    return pools(folder, f'[pools.tag]\nhandler = "jobs:tag"\n{keys}\n')["tag"]


@pytest.mark.usefixtures("four_cores")
def test_an_image_has_one_thread_and_others_share_the_cores(tmp_path: Path) -> None:
    text = """
        [defaults]
        workers = 1
        [pools.forked]
        handler = "jobs:a"
        [pools.late]
        handler = "jobs:b"
        preload = false
        cpu_affinity = [0, 1]
        [pools.spawned]
        handler = "jobs:c"
        start = "spawn"
        cpu_affinity = [2, 3]
        [pools.program]
        command = ["sh"]
        threads = 7
        cpu_affinity = [3]
        """

    # Of four cores `forked` may use all, so that each of the others has one rival more.
    assert threads_of(pools(tmp_path, text)) == {"forked": 1, "late": 1, "spawned": 1, "program": 7}
    without = text.replace("[pools.forked]", "[pools.forked]\ncpu_affinity = [3]").replace("[3]", "[2]")
    assert threads_of(pools(tmp_path, without)) == {"forked": 1, "late": 2, "spawned": 1, "program": 7}


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    ("keys", "inherited", "expected"),
    [
        ("", None, "3"),
        ("", "5", "5"),  # as the environment says
        ("threads = 3", "5", "3"),  # but the pool has the last word
        ('threads = 3\nenv = { OMP_NUM_THREADS = "9" }', "5", "9"),
        ('env = { OMP_NUM_THREADS = "9" }', "5", "9"),
    ],
)
def test_env_wins_over_threads_and_these_over_what_was_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str, inherited: str | None, expected: str
) -> None:
    if inherited is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", inherited)

    limit_threads(pool(tmp_path, keys), 3)

    assert os.environ["OMP_NUM_THREADS"] == expected
    assert os.environ["MKL_NUM_THREADS"] == "3"
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"


@pytest.mark.usefixtures("environment")
def test_a_worker_sees_its_own_device_alone(tmp_path: Path) -> None:
    take(pool(tmp_path), Place(1, "GPU-1"))

    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert "OMP_NUM_THREADS" not in os.environ  # the image's, which has been loaded with it


GROUPED = Path("/proc/self/autogroup").exists()


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(("enabled", "keys", "expected"), [("1", "nice = 7", 7), ("0", "nice = 7", 0), ("1", "", 0)])
def test_a_nice_value_holds_between_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: str, keys: str, expected: int
) -> None:
    if os.nice(0) > 0:  # what is inherited holds, too
        expected = max(expected, os.nice(0)) if enabled == "1" else 0
    monkeypatch.setattr(autogroup, "ENABLED", tmp_path / "enabled")
    (tmp_path / "enabled").write_text(f"{enabled}\n")
    its_own = pool(tmp_path, keys)

    def given() -> bool:
        take(its_own, Place())
        return not GROUPED or Path("/proc/self/autogroup").read_text().split()[1:] == ["nice", str(expected)]

    assert os.waitstatus_to_exitcode(os.waitpid(_in_a_session(given), 0)[1]) == 0


def test_workers_that_start_at_once_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    enabled = os.memfd_create("enabled")  # any user may read it
    os.write(enabled, b"1")
    monkeypatch.setattr(autogroup, "ENABLED", Path(f"/proc/self/fd/{enabled}"))
    children = [_in_a_session(_set_nice) for _ in range(4)]
    os.close(enabled)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4


def _in_a_session(work: Callable[[], bool]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads that pytest has
        child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return child


def _set_nice() -> bool:
    """As an ordinary user, whom the kernel makes wait."""
    if os.getuid() == 0:
        os.setuid(65534)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: its files in /proc are its own again
    autogroup.set_nice(5)
    return not GROUPED or Path("/proc/self/autogroup").read_text().split()[1:] == ["nice", "5"]


def test_cores_that_cannot_be_used_are_a_fault_of_the_set_up(tmp_path: Path) -> None:
    with pytest.raises(HandlerError, match="cpu_affinity: none of the cores 4095 can be used: Invalid argument"):
        take(pool(tmp_path, "cpu_affinity = [4095]"), Place())


def test_a_worker_over_its_limit_from_the_beginning_is_told_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.system.kernel.memory_of_family", lambda pid: 350 * MIB)

    check_memory(None)
    check_memory(350 * MIB)
    words = "max_memory = 200MiB is less than the 350MiB that a worker uses after its set-up: raise it above that"
    with pytest.raises(HandlerError, match=words):
        check_memory(200 * MIB)
