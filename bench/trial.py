"""The parts of a run: a measurement is a list of trials, which take turns round by round."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from bench.peers.base import Peer

T = TypeVar("T")
Reading = Mapping[str, Sequence[float]]  # values by figure
AS_SAID = (1, 1000)  # rounds: as many as the run says


@dataclass(frozen=True)
class Trial:
    """One contestant in one case; `measure` does it once and returns the values of this round."""

    contestant: str
    case: str
    measure: Callable[[], Reading]


@dataclass(frozen=True)
class Session:
    """What a run is made with: the peers that can be had, a scratch folder, and how thorough it is."""

    peers: tuple[Peer, ...]
    folder: Path
    quick: bool

    def pick(self, thorough: T, quick: T) -> T:
        return quick if self.quick else thorough

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder for one trial."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class Measurement(Protocol):
    """A module in bench/measurements. Its docstring says what is measured, in the results, too."""

    __doc__: str | None

    @property
    def TITLE(self) -> str:  # noqa: N802 - a module's constant, here as below
        """A line for people."""
        ...

    @property
    def UNITS(self) -> Mapping[str, str]:  # noqa: N802
        """The figures that the trials yield, with their units."""
        ...

    @property
    def ROUNDS(self) -> tuple[int, int]:  # noqa: N802
        """How often the trials take turns at the least and at the most, whatever the run says."""
        ...

    def trials(self, session: Session) -> list[Trial]: ...
