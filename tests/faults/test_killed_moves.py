"""A move that is killed at any of its steps leaves something that a repetition completes."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor import Queue
from supervisor.ops import move as moving
from tests.armed import in_a_child
from tests.postgres_server import Databases
from tests.store.movable import Tables, contents, empty_server, fill

JOBS = 60
WAYS = ("there", "back")
SOME = ["closed", "copied", "copied@12", "arrived", "finished"]


class Ground:
    """A source with rows of every kind, and an empty target each time."""

    def __init__(self, postgres: Databases, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._postgres, self._folder, self._env = postgres, folder, monkeypatch
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        monkeypatch.setattr(moving, "BLOCK", 10)
        self._first = f"sqlite:///{folder}/first.db"
        fill(self._first, JOBS)
        self.rows: Tables = contents(self._first)

    def databases(self, way: str) -> tuple[str, str]:
        server = empty_server(self._postgres, self._env)
        number = len(list(self._folder.iterdir()))
        if way == "there":
            source = self._folder / f"{number}.db"
            shutil.copy(self._folder / "first.db", source)
            return f"sqlite:///{source}", server
        fill(server, JOBS)
        return server, f"sqlite:///{self._folder}/{number}.db"


@pytest.fixture
def ground(postgres: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    return Ground(postgres, tmp_path, monkeypatch)


def moved(source: str, target: str) -> moving.MoveReport:
    return moving.move(source, target)


def completes(ground: Ground, source: str, target: str) -> None:
    report = moved(source, target)
    assert contents(target) == ground.rows
    assert report.rows["jobs"] == JOBS
    assert Queue(source).enqueue("tag") > 1000  # it follows
    again = moved(source, target)
    assert again.moved_at is not None
    assert replace(again, moved_at=None) == replace(report, moved_at=None)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("point", SOME)
def test_a_move_that_was_killed_is_completed_by_another(ground: Ground, way: str, point: str) -> None:
    source, target = ground.databases(way)
    place, _, number = point.partition("@")
    points = f"move.{place}=kill@{number or 1}"
    assert in_a_child(lambda: moved(source, target), points)
    completes(ground, source, target)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", ["move.copied", "commit.before", "commit", "begin"])
def test_a_move_is_killed_at_each_block(ground: Ground, way: str, place: str) -> None:
    """Statements are those of SQLite."""
    for number in range(1, 1000):
        source, target = ground.databases(way)
        ended = in_a_child(lambda: moved(source, target), f"{place}=kill@{number}")  # noqa: B023 - called at once
        completes(ground, source, target)
        if not ended:
            assert number > 1
            return
    raise AssertionError("it was killed every time")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", WAYS)
def test_a_move_is_killed_at_any_time_and_again(ground: Ground, way: str) -> None:
    chance = random.Random(7)
    kills = 0
    for _ in range(15):
        source, target = ground.databases(way)
        for _ in range(4):
            kills += in_a_child(lambda: moved(source, target), after=chance.uniform(0.01, 0.4))  # noqa: B023
        completes(ground, source, target)
    assert kills  # how many, depends on how quick the machine is
