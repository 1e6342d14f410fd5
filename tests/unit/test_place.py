"""What a worker is told about threads and devices, and when it is too large from its beginning."""

from __future__ import annotations

import os
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import pytest

from supervisor.config import PoolSettings, load
from supervisor.worker.environment import THREADS, Place, check_memory, kept_memory, limit_threads, take, threads_of
from supervisor.worker.handler import HandlerError

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


def numbers(configured: dict[str, PoolSettings]) -> dict[str, int]:
    return {name: threads.number for name, threads in threads_of(configured).items()}


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
    assert numbers(pools(tmp_path, text)) == {"forked": 1, "late": 1, "spawned": 1, "program": 7}
    without = text.replace("[pools.forked]", "[pools.forked]\ncpu_affinity = [3]").replace("[3]", "[2]")
    assert numbers(pools(tmp_path, without)) == {"forked": 1, "late": 2, "spawned": 1, "program": 7}


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ('gpus = ["0"]', "4 (its share of the cores)"),
        ('gpus = ["0"]\nworkers = 2', "2 (its share of the cores)"),
        ('gpus = ["0"]\nthreads = 3', "3 (as configured)"),
        ("", "1 (threads do not survive the fork of a preloaded handler)"),
    ],
)
def test_a_model_on_a_device_has_its_workers_share_of_the_cores(tmp_path: Path, keys: str, said: str) -> None:
    """It is set up after the fork."""
    workers = "" if "workers" in keys else "workers = 1\n"

    assert str(threads_of({"tag": pool(tmp_path, workers + keys)})["tag"]) == said


THREADED = """
import json, os, sys
from supervisor.system import child
from supervisor.worker.environment import Place, limit_threads, take
from supervisor.config import load
from pathlib import Path

pool = load(Path(sys.argv[1])).pools["tag"]
limit_threads(pool, 1)
import ctypes
gomp = ctypes.CDLL("libgomp.so.1")  # an image that has loaded a library with threads, and has not used it
assert gomp.omp_get_max_threads() == 1
if (pid := os.fork()) == 0:
    take(pool, Place(3, "0"))
    os._exit(gomp.omp_get_max_threads() * 10 + int(os.environ["OMP_NUM_THREADS"]))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_library_that_the_image_has_loaded_gets_the_threads_after_the_fork(tmp_path: Path) -> None:
    if find_library("gomp") is None:
        pytest.skip("there is no libgomp here")
    pool(tmp_path, 'gpus = ["0"]')
    told = [sys.executable, "-c", THREADED, str(tmp_path / "supervisor.toml")]

    ended = subprocess.run(told, capture_output=True, text=True, check=True, timeout=60, env=dict(os.environ))

    assert ended.stdout == "33\n"


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        ("", 0),
        ("batch_size = 16", 256),
        ('gpus = ["0"]', 256),
        ('gpus = ["0"]\nmax_memory = "512MiB"', 64),
        ('batch_size = 16\nmemory_budget = "1GiB"\nworkers = 2', 64),
    ],
)
def test_how_much_freed_memory_a_worker_keeps(tmp_path: Path, keys: str, kept: int) -> None:
    assert kept_memory(pool(tmp_path, keys)) == kept * MIB


FREEING = """
import resource, sys
from pathlib import Path
from supervisor.config import load
from supervisor.worker.environment import Place, take

take(load(Path(sys.argv[1])).pools["tag"], Place())
import numpy

def batch():  # sixteen pictures, decoded and as the model takes them
    pictures = [numpy.full((500, 500, 3), 1, numpy.uint8) for _ in range(16)]
    return numpy.stack([picture[:224, :224].astype(numpy.float32) for picture in pictures]).sum()

for _ in range(3):
    batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    batch()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 20)
"""


def test_a_worker_with_batches_does_not_take_its_memory_anew_for_each(tmp_path: Path) -> None:
    pytest.importorskip("numpy")

    def faults(keys: str) -> int:
        """Of pages, for a batch."""
        pool(tmp_path, keys)
        told = [sys.executable, "-c", FREEING, str(tmp_path / "supervisor.toml")]
        return int(subprocess.run(told, capture_output=True, text=True, check=True, timeout=60).stdout)

    kept, returned = faults("batch_size = 16"), faults("")
    assert kept * 10 < returned, (kept, returned)


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
