"""Logging out ends a session, whoever has a copy of its cookie."""

from __future__ import annotations

import time

from supervisor.admin.keys import SESSION_SECONDS, Keys, Left

from .test_gate import TOKEN, Door, log_in

NOW = 1_800_000_000.0


def test_a_session_that_was_left_lets_nobody_in() -> None:
    door = Door(Keys(TOKEN, None, "supervisor_8787"))
    mine, other = ({"cookie": log_in(door, TOKEN).cookie} for _ in range(2))
    assert door.ask(headers=mine).status == 200

    door.ask("/logout", mine, method="POST")

    assert door.ask(headers=mine).status == 401
    assert door.ask(headers=other).status == 200


def test_a_session_ends_with_the_process_that_gave_it() -> None:
    session = Keys(TOKEN, None, "c").session("admin", time.time())
    assert Keys(TOKEN, None, "c").role_of_session(session, time.time()) is None


def test_a_session_is_over_for_as_long_as_its_cookie_would_count() -> None:
    keys = Keys(TOKEN, None, "c")
    session = keys.session("admin", NOW)
    keys.leave(session, NOW)
    for later in (0, 1, SESSION_SECONDS - 1, SESSION_SECONDS + 1):
        assert keys.role_of_session(session, NOW + later) is None
    keys.leave("nonsense", NOW)
    keys.leave("admin.x.y", NOW)


def test_too_many_that_were_left_end_all_that_have_begun_and_none_counts_again() -> None:
    left = Left(most=3)
    ends = {f"s{number}": int(NOW) + SESSION_SECONDS + number for number in range(5)}
    for number, (name, until) in enumerate(ends.items()):
        left.add(name, until, NOW + number)
    assert all(left.has(name, until) for name, until in ends.items())
    assert not left.has("new", int(NOW) + SESSION_SECONDS + 10)
