"""The state machine can fail: with a guard taken out of a statement, it finds a history that goes wrong.

Three guards can be taken out with no difference, since the schema or another guard stands behind them.
`AND status = 'running'` of settle and settle_done: the end of each claim clears locked_by, and no owner
is NULL. `claim_token + 1` of retry: a finished row that becomes pending with the token it had is stamped
by the schema's trigger, which raises it.
"""

from __future__ import annotations

import logging
import pkgutil
from importlib import import_module

import pytest

import supervisor.store.sqlite
from supervisor.store.sqlite.connection import QUERIES
from tests.model.histories import EXAMPLES, PATIENCE, histories
from tests.model.machine import StoreMachine
from tests.model.processes import Processes

CANCELLED = """CASE WHEN :status IN ('pending', 'failed') AND cancel_requested_at IS NOT NULL THEN 'cancelled'
                ELSE :status END"""
pytestmark = pytest.mark.long  # it tests the test
SELDOM = pytest.mark.skipif(not EXAMPLES, reason="takes many histories: make model")


@pytest.fixture
def broken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One statement of queries.sql with a part of it taken out or exchanged, wherever the engine keeps its text."""
    name, part, instead = request.param
    right = QUERIES.statements[name]
    assert part in right
    wrong = right.replace(part, instead)
    monkeypatch.setattr(QUERIES, name, wrong)
    for info in pkgutil.iter_modules(supervisor.store.sqlite.__path__, "supervisor.store.sqlite."):
        module = import_module(info.name)
        for attribute, value in vars(module).items():
            if value == right:
                monkeypatch.setattr(module, attribute, wrong)


def found(machine: type[Processes]) -> bool:
    """Whether a history goes wrong; it is logged, not shrunk."""
    with pytest.raises(Exception) as wrong:  # noqa: PT011 - an assertion, or what came of it
        histories("sqlite", lambda _, folder: f"sqlite:///{folder}/jobs.db", machine, until_found=True)
    logging.getLogger(__name__).info("\n".join(getattr(wrong.value, "__notes__", [])))
    return True


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(("settle_done", "AND claim_token = ?", "AND ? IS NOT NULL"), id="success without the token"),
        pytest.param(("settle_done", "AND locked_by = ?", "AND ? IS NOT NULL"), id="success without the owner"),
        pytest.param(("settle", "AND claim_token = :token", ""), id="settle without the token"),
        pytest.param(("settle", "AND locked_by = :owner", ""), id="settle without the owner"),
        pytest.param(
            ("settle", "WHEN claim_token < 9007199254740991 THEN claim_token + 1 ELSE 1 END", "ELSE claim_token END"),
            id="settle leaves the token",
        ),
        pytest.param(("claim_group", "claim_token = claim_token + 1, ", ""), id="claim leaves the token"),
        pytest.param(("claim_group", "ORDER BY j.scheduled_at, j.id", "ORDER BY j.id"), id="claims by id"),
        pytest.param(("peek_group", "ORDER BY scheduled_at, id", "ORDER BY id"), id="claims by id among groups"),
        pytest.param(
            ("renew", "locked_by IN (SELECT value FROM json_each(:owners)) AND ", ""), id="renew without the owner"
        ),
        pytest.param(("renew", "AND lock_expires_at < :renew_before", ""), id="renew needlessly", marks=SELDOM),
        pytest.param(
            ("claim_of", "AND coalesce(lock_expires_at, 0) = :expires_at", ""),
            id="reclaim a renewed lock",
            marks=SELDOM,
        ),
    ],
    indirect=True,
)
def test_a_guard_taken_out_of_what_our_processes_do_is_found(broken: None) -> None:
    assert found(Processes)


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(("settle", CANCELLED, ":status"), id="settle forgets that it was cancelled"),
        pytest.param(("cancel_pending", "THEN claim_token + 1", "THEN claim_token"), id="cancel leaves the token"),
        pytest.param(("retry", "OR IGNORE", "OR REPLACE"), id="retry takes a unique key"),
        pytest.param(("rerun", "(:done AND status = 'done')", "status = 'done'"), id="what has succeeded runs again"),
        pytest.param(("claim_of", " AND claim_token = :token", ""), id="reclaim another claim", marks=SELDOM),
        pytest.param(("delete_finished", "status NOT IN ('pending', 'running', 'held')", "1"), id="delete unfinished"),
    ],
    indirect=True,
)
def test_a_guard_taken_out_of_what_others_rely_on_is_found(broken: None) -> None:
    assert found(StoreMachine)
