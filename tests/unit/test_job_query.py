"""Addresses of lists of jobs, and back."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from starlette.datastructures import QueryParams

from supervisor.admin.pages.jobs import FINISHED, JobQueryForm, read
from supervisor.domain.job import Status
from supervisor.store.base import Filter, Sort


def asked(query: str) -> JobQueryForm:
    return read(QueryParams(query), show_payloads=True)


def test_everything_that_can_be_asked_for_becomes_a_filter() -> None:
    query = asked(
        "status=failed&status=quarantined&type=tag&type=mail,sms&error=no+such&key=a%20b&requires=gpu"
        "&priority=-5&finished=1h&before=77&text=Sofa&sort=-attempts"
    )

    assert query.which(10_000.0) == Filter(
        statuses=(Status.FAILED, Status.QUARANTINED),
        types=("tag", "mail", "sms"),
        error="no such",
        unique_key="a b",
        requires="gpu",
        priority=-5,
        finished_after=6_400.0,
        text="Sofa",
    )
    assert (query.by, query.descending) == (Sort.ATTEMPTS, True)
    assert query.before == 77
    assert asked("finished=older-7d").which(1e6).finished_before == 1e6 - 7 * 86_400


def test_an_address_means_the_same_when_it_is_read_again() -> None:
    query = asked(
        "status=failed&type=tag&error=%22x%26y&key=%C3%A4&requires=gpu&priority=0&finished=15m&before=9&text=a+b&sort=type"
    )

    assert asked(urlsplit(query.address(before=9)).query) == query
    assert asked("").address() == "/jobs"
    assert "before" not in query.address(status=())


def test_the_filter_of_a_bulk_action_means_the_same_jobs_in_fewer_states() -> None:
    query = asked("type=tag&error=x&finished=1h")

    assert query.as_filter(10_000.0, (Status.FAILED,)) == {
        "status": ["failed"],
        "type": ["tag"],
        "error": "x",
        "finished_after": 6_400.0,
    }


@pytest.mark.parametrize(
    "query",
    ["status=lost", "priority=high", "priority=1.5", "before=-", "before=99999999999999999999", "finished=soon"],
)
def test_what_cannot_be_understood_is_told(query: str) -> None:
    """And nothing is shown: a filter with a part left out would mean more jobs than were asked for."""
    assert len(asked(query).problems) == 1


def test_empty_fields_of_the_form_ask_for_nothing() -> None:
    query = asked("status=&type=&error=+&key=&requires=&priority=&finished=&id=")

    assert query == JobQueryForm()
    assert not query.is_narrow


def test_what_the_form_offers_is_understood() -> None:
    assert [asked(f"finished={value}").problems for value in FINISHED] == [()] * len(FINISHED)
