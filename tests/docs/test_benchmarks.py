"""docs/benchmarks.md says what bench/ does."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping

import pytest

from bench.measurements import MEASUREMENTS
from bench.peers import PEERS
from bench.postgres import contestants, measures
from bench.serving import contestants as servers
from bench.serving import measures as serving
from tests.docs.markdown import ROOT, named, table

PAGE = "docs/benchmarks.md"


@pytest.mark.parametrize(
    ("marker", "names"),
    [
        ("measurements", MEASUREMENTS),
        ("peers", PEERS),
        ("postgres measurements", measures.MEASURES),
        ("postgres peers", contestants.PEERS),
        ("models measurements", dict.fromkeys(serving.MEASURES)),
        ("models peers", servers.PEERS),
    ],
)
def test_every_measurement_and_every_peer_is_described_in_the_order_of_a_run(
    marker: str, names: Mapping[str, object]
) -> None:
    assert named(table(PAGE, marker)) == list(names)


@pytest.mark.parametrize(
    ("marker", "program"),
    [
        ("options: bench", "run.py"),
        ("options: bench-postgres", "run_postgres.py"),
        ("options: bench-models", "run_models.py"),
    ],
)
def test_every_option_is_described(marker: str, program: str) -> None:
    told = subprocess.run(
        [sys.executable, str(ROOT / "bench" / program), "--help"], capture_output=True, text=True, check=True
    )
    options = set(re.findall(r"^  (--[a-z]+)", told.stdout, re.M))
    assert set(named(table(PAGE, marker))) == options
    assert options
