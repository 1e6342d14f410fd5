"""`[machine]` and `[devices.NAME]`: what is read of them, and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.config import Settings, load
from supervisor.config.settings import MachineSettings
from supervisor.domain.errors import ConfigError

POOL = '[pools.tag]\nhandler = "jobs:tag"\ngpus = [0, "GPU-1"]\n'
GIB = 1 << 30


def loaded(folder: Path, text: str) -> Settings:
    (folder / "supervisor.toml").write_text(text)
    return load(folder / "supervisor.toml")


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(folder, text)
    return [problem.partition("supervisor.toml")[2] for problem in caught.value.problems]


def test_nothing_is_stated_by_default(tmp_path: Path) -> None:
    assert loaded(tmp_path, POOL).machine == MachineSettings(None, 30.0, 60.0, {})


def test_the_budgets_of_the_machine_and_of_devices(tmp_path: Path) -> None:
    text = f"""{POOL}
[machine]
memory = "6GiB"
min_residency = "5s"
max_wait = "2m"
[devices.0]
memory = "14GiB"
[devices.GPU-1]
memory = "7GiB"
"""
    expected = MachineSettings(6 * GIB, 5.0, 120.0, {"0": 14 * GIB, "GPU-1": 7 * GIB})
    assert loaded(tmp_path, text).machine == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[machine]\nmemory = 6", ":5: machine.memory: 6 is not a size; write it like 512MiB or 2GiB"),
        ('[machine]\nmemry = "6GiB"', ":5: machine.memry: unknown key; did you mean memory?"),
        (
            "[machine]\nmax_wait = 5",
            ":5: machine.max_wait: 5 is not a duration; write it like 250ms, 10s, 5m, 2h or 7d",
        ),
        ("[devices.0]\n", ':4: devices.0.memory: is missing; write memory = "14GiB"'),
        ('[devices.7]\nmemory = "1GiB"', ":4: devices.7: no pool has this device in its gpus; they name 0, GPU-1"),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path: Path, text: str, problem: str) -> None:
    assert problems(tmp_path, f"{POOL}{text}\n") == [problem]
