"""docs/http.md names every address of the API and every error that it may answer with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.admin.app import make_app
from tests.docs.markdown import named, table


@pytest.fixture(scope="module")
def paths() -> dict[str, dict[str, Any]]:
    office: Any = SimpleNamespace()  # no request is made
    found: dict[str, dict[str, Any]] = make_app(office).openapi()["paths"]
    return found


def test_every_address_of_the_api_is_listed(paths: dict[str, dict[str, Any]]) -> None:
    served = {f"{method.upper()} {path}" for path, operations in paths.items() for method in operations}

    assert set(named(table("docs/http.md", "endpoints"))) == served


def test_every_error_that_the_api_answers_with_is_listed(paths: dict[str, dict[str, Any]]) -> None:
    answers = {
        code
        for operations in paths.values()
        for operation in operations.values()
        for code in operation["responses"]
        if code >= "400"
    }

    assert set(named(table("docs/http.md", "errors"))) == answers


def test_every_address_says_what_it_does(paths: dict[str, dict[str, Any]]) -> None:
    for path, operations in paths.items():
        for method, operation in operations.items():
            assert operation["description"], f"{method} {path}"
            assert operation["tags"], f"{method} {path}"
            assert ("security" in operation) == (path != "/healthz"), f"{method} {path}"
