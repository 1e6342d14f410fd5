"""Which files of requests a job still names, and since when it has succeeded."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.domain.job import NewJob, Status
from supervisor.engine import open_engine
from tests.store.kit import NOW, T0, Desk

NAME = "0" * 32 + "-" + "a" * 64


def put(desk: Desk, key: str, name: str = NAME, **fields: object) -> int:
    job = NewJob("tag", f'{{"path":"/x/{name}"}}', scheduled_at=T0, unique_key=key)
    return desk.producer.put(job._replace(**fields))[0]  # type: ignore[arg-type] - any field


def named(desk: Desk, key: str = "run:k", type: str = "tag") -> dict[str, float | None]:
    return desk.operations.backlog.spooled([(NAME, type, key), ("f" * 97, type, key)])


@pytest.mark.parametrize("status", [Status.FAILED, Status.QUARANTINED])
def test_a_job_that_has_not_succeeded_names_its_file(desk: Desk, status: Status) -> None:
    job = put(desk, "run:k")
    assert named(desk) == {NAME: None}

    desk.finish(job, status)
    assert named(desk) == {NAME: None}


def test_the_time_of_success_is_told(desk: Desk) -> None:
    desk.finish(put(desk, "run:k"))

    assert named(desk) == {NAME: NOW}


def test_nobody_names_the_file_of_a_deleted_job(desk: Desk) -> None:
    job = put(desk, "run:k")
    desk.finish(job)
    desk.operations.actions.delete([job])

    assert named(desk) == {}


def test_a_job_with_another_key_type_or_payload_does_not(desk: Desk) -> None:
    put(desk, "run:k", name="b" * 97)
    put(desk, "run:other")

    assert named(desk) == {}
    assert named(desk, "run:other", "caption") == {}


def test_a_job_that_was_given_another_payload_does_not_any_more(desk: Desk) -> None:
    job = put(desk, "run:k")
    desk.finish(job, Status.FAILED)
    assert desk.operations.actions.rerun(job, NOW, payload="{}", done=False).changed

    assert named(desk) == {}


@pytest.mark.parametrize("query", ["spooled", "find_once"])
def test_a_key_is_found_without_walking_over_others(tmp_path: Path, query: str) -> None:
    desk = Desk.at(open_engine(f"sqlite:///{tmp_path}/jobs.db"))
    connection = desk.producer._connection  # type: ignore[attr-defined] - only the store knows its plans
    parameters = {"files": "[]", "type": "tag", "unique_key": "run:k"}
    plan = connection.rows(f"EXPLAIN QUERY PLAN {getattr(connection.queries, query)}", parameters)
    desk.close()

    assert any("INDEX jobs_once (type=? AND unique_key=?)" in row[3] for row in plan), plan
