"""Logging out ends sessions, whoever has a copy of their cookies."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from supervisor.admin.keys import SESSION_SECONDS, Keys, keys_of
from supervisor.config.settings import AdminSettings

from .test_access import READER, SETTINGS, TOKEN, Door, log_in

NOW = 1_800_000_000.0


@pytest.mark.fault(76)
def test_a_session_that_was_left_lets_nobody_in() -> None:
    door = Door(Keys(TOKEN, READER, "supervisor_8787"))
    mine, other, reader = ({"cookie": log_in(door, token).cookie} for token in (TOKEN, TOKEN, READER))
    assert door.ask(headers=mine).status == 200

    door.ask("/logout", mine, method="POST")

    assert door.ask(headers=mine).status == door.ask(headers=other).status == 401
    assert door.ask(headers=reader).status == 200
    assert door.ask(headers={"cookie": log_in(door, TOKEN).cookie}).status == 200


def settings_in(folder: Path) -> AdminSettings:
    token = folder / "admin-token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    return SETTINGS._replace(token_file=token, read_token_file=None)


@pytest.mark.fault(76)
def test_after_a_restart_a_session_counts_and_one_that_was_left_does_not(tmp_path: Path) -> None:
    now = time.time()
    settings = settings_in(tmp_path)
    before = keys_of(settings)
    left = before.session("admin", now)
    before.log_out(left, now)
    kept = before.session("admin", now)

    after = keys_of(settings)

    assert after.role_of_session(kept, now) == "admin"
    assert after.role_of_session(left, now) is None
    assert (tmp_path / "admin-token.left").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["admin-token", "admin-token.left"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"admin": "x"}', '{"admin": null}', '{"admin": 1e999}'])
def test_what_was_left_and_cannot_be_read_ends_all_sessions_that_have_begun(tmp_path: Path, content: str) -> None:
    settings = settings_in(tmp_path)
    session = keys_of(settings).session("admin", time.time())
    (tmp_path / "admin-token.left").write_text(content)
    after = keys_of(settings)
    assert after.role_of_session(session, time.time()) is None
    assert after.role_of_session(after.session("admin", time.time()), time.time()) == "admin"


@pytest.mark.fault(76)
def test_where_nothing_can_be_kept_sessions_end_with_the_process(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    (tmp_path / "admin-token.left").mkdir()  # nothing can take its place
    before = keys_of(settings)
    session = before.session("admin", time.time() + 2)
    assert before.role_of_session(session, time.time()) == "admin"
    assert keys_of(settings).role_of_session(session, time.time()) is None


def test_a_session_is_over_for_as_long_as_its_cookie_would_count() -> None:
    keys = Keys(TOKEN, None, "c")
    session = keys.session("admin", NOW)
    keys.log_out("nonsense", NOW)
    keys.log_out("admin.x.y", NOW)
    assert keys.role_of_session(session, NOW) == "admin"
    keys.log_out(session, NOW - 10)  # the clock was set back
    for later in (0, 1, SESSION_SECONDS - 1, SESSION_SECONDS + 1):
        assert keys.role_of_session(session, NOW + later) is None
