"""What a handler gets as its payload, and what it does not get."""

from __future__ import annotations

import pytest

from supervisor.worker.executor import decoded
from supervisor.worker.handler import BadPayload


@pytest.mark.parametrize("payload", ["NaN", '{"a": NaN}', "[Infinity]", "[[-Infinity]]", "{", "", b"\xff", "[" * 99999])
def test_what_is_not_json_reaches_no_handler(payload: str | bytes) -> None:
    with pytest.raises(BadPayload, match="not valid"):
        decoded(payload)


@pytest.mark.parametrize(("payload", "value"), [('{"a": 1.5}', {"a": 1.5}), (b"[null]", [None]), ('"NaN"', "NaN")])
def test_what_is_json_does(payload: str | bytes, value: object) -> None:
    assert decoded(payload) == value
