"""docs/benchmarks.md says what bench/ does."""

from __future__ import annotations

import re
import subprocess
import sys

from bench.measurements import MEASUREMENTS
from bench.peers import PEERS
from tests.docs.markdown import ROOT, named, table

PAGE = "docs/benchmarks.md"


def test_every_measurement_is_described_in_the_order_of_a_run() -> None:
    assert named(table(PAGE, "measurements")) == list(MEASUREMENTS)


def test_every_peer_is_described() -> None:
    assert named(table(PAGE, "peers")) == list(PEERS)


def test_every_option_is_described() -> None:
    told = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "run.py"), "--help"], capture_output=True, text=True, check=True
    )
    options = set(re.findall(r"^  (--[a-z]+)", told.stdout, re.M))
    assert set(named(table(PAGE, "options: bench"))) == options
    assert options
