"""Every interleaving of kills, deaths, forked children, ruined workers and the messages that tell of them.

What holds: a job ends cancelled only if somebody asked for that; a kill that was decided over one run is charged to
no other; a child settles nothing and leaves its worker's slot alone; no death is lost with the maintainer that it was
told to, and none takes a claim from the living; what a ruined worker had finished goes back uncharged once and is
charged when it happens again, so that every job ends and no innocent one is quarantined.
"""

from __future__ import annotations

import logging

import pytest

from tests.model.histories import EXAMPLES, PATIENCE
from tests.model.lives import Lives, Rules
from tests.model.search import Found, Search

QUICK = {
    "kills of a cancelled job": ({"ruins": False, "deaths": 0, "forks": 0, "kills": 1}, None),
    "a handler that forks": ({"ruins": False, "deaths": 0, "kills": 0}, None),
    "a job that ruins its worker": ({"cancel": False, "deaths": 0, "forks": 0, "kills": 0}, None),
    "maintainers that die": ({"jobs": 1, "ruins": False, "cancel": False, "forks": 0, "deaths": 2, "kills": 2}, None),
    "everything, as far as it goes": ({}, 5_000),
}
LONG = {
    "maintainers that die over several jobs": ({"ruins": False, "cancel": False, "forks": 0, "kills": 1}, None),
    "three jobs": ({"jobs": 3, "kills": 0, "deaths": 0}, None),
    "everything, far": ({"kills": 2, "deaths": 2}, 100 * EXAMPLES),
}


def search(name: str, **rules: bool) -> Found:
    world, most = (QUICK | LONG)[name]
    found = Search(Lives(Rules(**rules), **world), most or 10**9).run()
    logging.getLogger(__name__).info("%s", found)
    return found


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("name", [*QUICK, *(LONG if EXAMPLES else [])])
def test_nothing_that_must_not_happen_can_be_reached(name: str) -> None:
    found = search(name)

    assert not found.violation, str(found)
    assert found.lost == 0, f"no end can be reached from {found.lost} states"
    assert found.complete or (QUICK | LONG)[name][1]


BROKEN = {
    "kill_names_its_run": "kills of a cancelled job",
    "child_ends_with_its_handler": "a handler that forks",
    "child_leaves_the_slot": "a handler that forks",
    "report_is_kept_until_acknowledged": "maintainers that die",
    "reports_go_to_the_next_maintainer": "maintainers that die",
    "acknowledged_only_when_settled": "maintainers that die",
    "settling_names_the_dead": "maintainers that die",
    "unsettled_is_told": "a job that ruins its worker",
    "second_time_it_is_a_crash": "a job that ruins its worker",
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_rule_taken_out_is_missed(rule: str) -> None:
    found = search(BROKEN[rule], **{rule: False})

    assert found.violation or found.lost
    assert len(found.trace) <= 20
