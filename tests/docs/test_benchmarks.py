"""The pages of results in bench/results are what their figures say, and describe every measurement and peer."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from bench import report
from bench.measurements import MEASUREMENTS
from bench.peers import PEERS
from bench.postgres import contestants, measures
from bench.postgres import report as on_postgres
from bench.record import Record
from bench.serving import contestants as servers
from bench.serving import measures as serving
from bench.serving import report as beside_servers
from tests.docs.markdown import ROOT


@pytest.mark.parametrize(
    ("name", "markdown", "described"),
    [
        ("results", report.markdown, [*MEASUREMENTS, *PEERS]),
        ("postgres", on_postgres.markdown, [*measures.MEASURES, *contestants.PEERS]),
        ("models", beside_servers.markdown, [*serving.MEASURES, *servers.PEERS]),
    ],
)
def test_a_page_of_results_is_drawn_from_its_figures_and_describes_them(
    name: str, markdown: Callable[[Record], str], described: Iterable[str]
) -> None:
    results = ROOT / "bench" / "results"
    page = (results / f"{name}.md").read_text(encoding="utf-8")
    assert page == markdown(Record.from_json((results / f"{name}.json").read_text(encoding="utf-8")))
    lines = page.partition("## What is measured")[2].splitlines()
    told = dict(line.removeprefix("- ").split(": ", 1) for line in lines if line.startswith("- "))
    assert list(told) == [f"`{one}`" for one in described]
    assert all(told.values())
