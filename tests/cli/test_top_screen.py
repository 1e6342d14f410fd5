"""What `top` shows and what its keys mean, with plain values."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

from supervisor import __version__
from supervisor.cli.top import frame, keys
from supervisor.cli.top.actions import Cancel, Pause, Retry, Scale
from supervisor.cli.top.panes import most_interesting, panes
from supervisor.cli.top.poller import Seen
from supervisor.cli.top.side import chart
from supervisor.cli.top.view import Pressed, Subject, View, press
from supervisor.domain.history import Minute
from supervisor.ops.views import AdminView, Overview, PoolView, SupervisorView, TypeView, WorkerView

EVIL = "\x1b[31mboom\x07\r\n\u202e\x9b2J 画像 \ud800"


def pool(name: str, **given: Any) -> PoolView:
    values: dict[str, Any] = {
        "supervisor": 7, "types": [name], "capabilities": [], "size": 2, "target": 3, "why": "3 due", "min_workers": 0,
        "max_workers": 4, "fixed": None, "due": 3, "oldest_age": 12.0, "next_due_in": None, "rate": 0.5, "deaths": 0,
        "problem": None, "paused": [], "memory": 1 << 20,
    }  # fmt: skip
    return PoolView(name=name, **values | given)


def worker(name: str, **given: Any) -> WorkerView:
    values: dict[str, Any] = {
        "pool": name.rpartition("-")[0], "supervisor": 7, "pid": 100, "state": "busy", "job": 12, "running_for": 3.0,
        "progress": 0.25, "text": "picture 25", "running": 1, "claims": 1, "done": 4, "memory": 1 << 20,
        "beat_age": 0.1, "leaving": None, "device": None,
    }  # fmt: skip
    return WorkerView(name=name, **values | given)


def type_(name: str, **given: Any) -> TypeView:
    values: dict[str, Any] = {
        "jobs": {"pending": 3, "failed": 2}, "paused": False, "handled": True, "failures_last_hour": 0,
        "mean_seconds": 0.5, "longest_seconds": 1.0, "due": 3, "oldest_age": 12.0,
    }  # fmt: skip
    return TypeView(type=name, **values | given)


def supervisor(pid: int = 7, **given: Any) -> SupervisorView:
    values: dict[str, Any] = {
        "id": str(pid), "host": "here", "alive": True, "visible": True, "started_at": 1000.0, "version": "1",
        "config": "supervisor.toml", "maintainer": 8, "stopping": "", "trouble": "", "admin": None,
    }  # fmt: skip
    return SupervisorView(pid=pid, **values | given)


def overview(**given: Any) -> Overview:
    values: dict[str, Any] = {
        "database": "sqlite:////srv/app/data/app.db", "time": 1060.0, "supervisors": [supervisor()],
        "pools": [pool("mail"), pool("tag")], "workers": [worker("mail-1"), worker("tag-1", job=13)],
        "jobs": {"pending": 6, "running": 2, "done": 12345, "failed": 4}, "types": [type_("mail"), type_("tag")],
        "paused": [], "unhandled": [], "failures_last_hour": {}, "slowest": [], "schedules": [],
    }  # fmt: skip
    return Overview(**values | given)


def plain(screen: list[str]) -> list[str]:
    """Lines without their colours. Nothing but colours may be left to take away."""
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in screen]


def shown(
    of: Overview | None, view: View | None = None, *, width: int = 80, height: int = 24, **seen: Any
) -> list[str]:
    at = seen.pop("at", 100.0)
    return plain(frame.lines(Seen(overview=of, at=at, **seen), view or View(), width, height, 100.0))


def line_of(screen: list[str], word: str) -> str:
    return next(line for line in screen if word in line)


def after(view: View, *pressed: str, of: Overview | None = None) -> Pressed:
    of = of or overview()
    result = Pressed(view)
    for key in pressed:
        result = press(result.view, key, panes(of, {}), of)
    return result


def test_one_screen_tells_everything() -> None:
    screen = shown(overview(), failures={"mail": "SMTP says no"})

    assert len(screen) == 24
    assert "app.db" in screen[0]
    assert "6 pending  2 running  12,345 done  4 failed" in screen[0]
    assert "supervisor 7, up 60s" in screen[1]
    assert line_of(screen, "›mail").split() == ["›mail", "2/3", "3", "12s", "0.5/s", "3", "due"]
    assert "25% picture 25" in line_of(screen, "mail-1")
    assert "SMTP says no" in line_of(screen, "SMTP")
    assert "q quit" in screen[-1]


def test_on_several_hosts_each_row_says_where() -> None:
    """Also in containers, where supervisors have the same pid."""
    both = overview(
        supervisors=[supervisor(id=host, host=host, version=__version__) for host in ("alpha", "beta")],
        types=[],
        pools=[pool("tag", host="alpha"), pool("tag", host="beta", target=1, types=["other"])],
        workers=[worker("tag-1", host="alpha"), worker("tag-1", host="beta", job=13)],
    )
    screen = shown(both, width=110)
    assert "supervisor 7 on alpha, up 60s; supervisor 7 on beta, up 60s" in screen[1]
    assert [line.split()[:3] for line in screen if "tag " in line] == [["›tag", "alpha", "2/3"], ["tag", "beta", "2/1"]]
    assert [line.split()[:2] for line in screen if "tag-1  " in line] == [["›tag-1", "alpha"], ["tag-1", "beta"]]
    assert after(View(), "down", "+", of=both).action == Scale("tag", 2)
    assert panes(both, {})["workers"].rows[1].types == ("other",)
    assert "HOST" not in "".join(shown(overview(), width=110))
    assert "alpha" in line_of(shown(both, width=60), "supervisor 7")  # where there is no room, rows go without it


def test_a_worker_with_several_jobs_shows_how_many_more() -> None:
    assert "12 +49" in line_of(shown(overview(workers=[worker("mail-1", running=50)])), "mail-1")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (61, 13), (200, 60), (20, 5), (80, 11)])
@pytest.mark.parametrize("many", [0, 1, 60])
def test_no_line_is_wider_than_the_screen_and_there_are_never_more(width: int, height: int, many: int) -> None:
    names = [f"pool-with-quite-a-long-name-{number}" for number in range(many)]
    full = overview(
        pools=[pool(name, why="because " * 20, oldest_age=3e5, due=10_000) for name in names],
        workers=[worker(f"{name}-1", text="word " * 30) for name in names],
        types=[type_(name) for name in names],
        unhandled=names,
        supervisors=[supervisor(n, trouble="disk full " * 9) for n in range(many)],
    )
    for view in (View(), View(help=True), View(pane="types", message="m " * 99), View(typed="12")):
        screen = shown(
            full, view, width=width, height=height, trouble="gone " * 30, failures=dict.fromkeys(names, EVIL)
        )
        assert len(screen) <= height
        if width >= frame.NARROWEST and height >= frame.LOWEST:
            assert screen[-1].startswith(
                "m m" if view.message and height < 18 else "workers: 12" if view.typed and height < 18 else "q quit"
            )
            # One line each, whatever they say; on a low screen the header has one line for what is wrong.
            assert "gone" in screen[1 if height < 18 else 2]
            assert height < 18 or screen[1].startswith(("supervisor ", "no supervisor"))
            assert many == 0 or height < 18 or "no pool takes" in screen[3]
        assert max(map(cell_len, screen)) <= width


def test_whatever_a_row_holds_reaches_the_terminal_as_text() -> None:
    evil = overview(
        database=f"sqlite:////x/{EVIL}",
        pools=[pool(EVIL, why=EVIL), pool("b", problem=EVIL, broken=True), pool("c", types=[EVIL])],
        workers=[worker(EVIL, text=EVIL), worker("b-1", leaving=EVIL, progress=None, text="", job=None)],
        types=[type_(EVIL), type_("b")],
        paused=[EVIL],
        unhandled=[EVIL],
        supervisors=[supervisor(trouble=EVIL)],
    )
    for view in (View(), View(message=EVIL), after(View(), "r", of=evil).view, after(View(), "p", of=evil).view):
        for width in (80, 200):
            screen = shown(evil, view, width=width, trouble=EVIL, failures={"b": EVIL})
            assert all(char.isprintable() for line in screen for char in line), screen


def test_rows_without_room_are_counted_and_the_selected_one_is_shown() -> None:
    many = overview(
        pools=[pool(f"p{n:02}", oldest_age=None, due=0) for n in range(45)],
        workers=[worker(f"w-{n}", state="idle", job=None, running_for=None, progress=None, text="") for n in range(45)],
    )
    broken = replace(many, pools=[*many.pools, pool("zz", problem="no such module", broken=True)])

    screen = shown(broken, View(pane="types", selected={"pools": "p44@7@"}))

    assert "BROKEN: no such module" in line_of(screen, " zz ")
    assert "›p44" in line_of(screen, "p44")
    assert re.search(r"… and 4\d more pools", line_of(screen, "more pools"))
    assert "more workers" in line_of(screen, "more workers")


def test_arrows_scroll_through_the_rows() -> None:
    many = overview(pools=[pool(f"p{n:02}") for n in range(45)])
    view = after(View(), *["down"] * 20, of=many).view
    screen = shown(many, view)
    rows = [line.split()[0].lstrip("›") for line in screen if re.match(r"[ ›]p\d\d ", line)]
    assert "p20" in rows
    assert rows == [f"p{n:02}" for n in range(int(rows[0][1:]), int(rows[0][1:]) + len(rows))]
    assert after(view, "pageup", of=many).view.selected == {"pools": "p10@7@"}
    assert after(view, "G", of=many).view.selected == {"pools": "p44@7@"}
    assert after(view, "pagedown", "home", of=many).view.selected == {"pools": "p00@7@"}


@pytest.mark.parametrize(("width", "height"), [(40, 10), (61, 13), (80, 11)])
def test_a_small_screen_shows_one_pane_whose_rows_scroll(width: int, height: int) -> None:
    many = overview(workers=[worker(f"w-{n:02}", job=n + 1, running_for=float(99 - n)) for n in range(30)])
    pools = shown(many, width=width, height=height)
    assert "6 pending  2 running  12,345 done" in pools[0]  # these come before clock and database
    assert line_of(pools, "▸pools 2").rstrip().endswith("workers 30  types 2")
    assert [line.split()[0] for line in pools if "3 due" in line] == ["›mail", "tag"]
    assert not any(line.startswith("supervisor 7") for line in pools)

    screen = shown(many, after(View(), "tab", *["down"] * 15, of=many).view, width=width, height=height)
    assert re.search(r"▸workers \d+–\d+ of 30", line_of(screen, "▸workers"))
    assert "picture 25" in line_of(screen, "›w-15")
    assert sum("picture" in line for line in screen) >= height - 5
    assert screen[-1].startswith("q quit  ? help  Tab pane")
    asked = shown(many, after(View(), "tab", "c", of=many).view, width=width, height=height)
    assert asked[-1] == "cancel job 1 of w-00? y/n"
    helped = "\n".join(shown(many, View(help=True), width=width, height=height))
    assert all(f"{key} " in helped for key in ("Tab", "p", "l", "c", "r", "a", "Enter"))


def test_a_wide_screen_has_charts_and_the_log_of_the_selected_job() -> None:
    minutes = [Minute(1020.0 - 60 * back - 60, "mail", done=back, failed=back == 3, waiting=7) for back in range(60)]
    log = "\n".join(f"line {number} {EVIL}" for number in range(100))
    for width, height in ((200, 50), (140, 40), (90, 60)):
        screen = shown(overview(), width=width, height=height, minutes=minutes, log=(12, log))
        assert len(screen) == height
        assert max(map(cell_len, screen)) <= width
        assert "0 now, 59 at most" in line_of(screen, "DONE A MINUTE")
        assert "0 now, 1 at most" in line_of(screen, "FAILED ATTEMPTS")
        assert "7 now" in line_of(screen, "WAITING")
        assert "█" in "".join(screen)
        assert "LOG OF JOB 12, mail-1" in line_of(screen, "LOG OF")
        assert "\\x1b[31mboom" in line_of(screen, "line 99")
        assert all(char.isprintable() for line in screen for char in line)
    assert not any("A MINUTE" in line for line in shown(overview()))


def test_l_shows_the_log_of_the_selected_workers_job_on_any_screen() -> None:
    of = overview()
    view = after(View(), "tab", "down", "l", of=of).view
    assert view.subject(panes(of, {})) == Subject(13, "tag-1")
    screen = shown(of, view, width=40, height=10, log=(13, "one\ntwo\n"))
    assert screen[1:4] == ["LOG OF JOB 13, tag-1", "one", "two"]
    assert "…" in shown(of, view, log=(12, "another job's"))[3]
    assert "nothing yet" in shown(of, view, log=(13, ""))[3]
    assert after(view, "l", of=of).view.log is False
    assert after(view, "escape", of=of).view.log is False
    idle = overview(workers=[worker("w-1", job=None)])
    assert "no job is running" in shown(idle, View(log=True))[2]


@pytest.mark.parametrize(
    ("values", "width", "bars"),
    [
        ([0, 4, 8], 3, ["  █", "·██"]),
        ([0, 1, 1000], 6, ["    ██", "··▁▁██"]),
        ([5, 6, 7], 2, ["▆█", "██"]),
        ([0, 0], 2, ["", "··"]),
    ],
)
def test_charts_show_the_latest_values_on_the_right(values: list[int], width: int, bars: list[str]) -> None:
    assert chart(values, width, 2) == bars


def test_the_longest_running_job_is_among_those_shown() -> None:
    busy = [worker(f"w-{n}", running_for=float(n), job=n) for n in range(50)]
    screen = shown(overview(workers=busy))

    assert "49" in line_of(screen, "›w-49")


def test_a_database_that_cannot_be_used_for_a_while_is_shown_with_what_was_known() -> None:
    assert "disk is gone" in shown(None, trouble="the disk is gone")[1]
    screen = shown(overview(), trouble="the disk is gone", at=90.0)
    assert "10s old: the disk is gone" in screen[2]
    assert line_of(screen, "›mail")
    assert "does not answer" in shown(overview(), at=90.0)[2]


def test_trouble_of_supervisors_is_told_first() -> None:
    several = [supervisor(1), supervisor(2, trouble="read-only"), supervisor(3, alive=False)]
    assert shown(overview(supervisors=several))[1].startswith("supervisor 2: the database cannot be used")
    admin = AdminView(None, "127.0.0.1:8787", "the address is in use")
    assert "admin process unavailable: the address" in shown(overview(supervisors=[supervisor(admin=admin)]))[1]
    assert "no supervisor is running" in shown(overview(supervisors=[], pools=[], workers=[]))[1]


@pytest.mark.parametrize(("wants", "room", "given"), [
    ([2, 3, 4], 20, [2, 3, 4]), ([50, 2, 50], 14, [6, 2, 6]), ([9, 9, 9], 4, [2, 1, 1]), ([9, 9, 9], -3, [0, 0, 0]),
])  # fmt: skip
def test_panes_share_the_room(wants: list[int], room: int, given: list[int]) -> None:
    assert frame.share(wants, room) == given


def test_interesting_rows_keep_their_order() -> None:
    rows = panes(overview(pools=[pool(n, oldest_age=a) for n, a in [("a", 1), ("b", 9), ("c", 5), ("d", 7)]]), {})[
        "pools"
    ].rows
    assert [row.pool for row in most_interesting(rows, 2, "")] == ["b", "d"]
    assert [row.pool for row in most_interesting(rows, 2, "a@7@")] == ["a", "b"]
    assert most_interesting(rows, 0, "") == ()


def test_arrows_select_and_tab_changes_the_pane() -> None:
    assert after(View(), "down").view.row(panes(overview(), {})).pool == "tag"  # type: ignore[union-attr]
    assert after(View(), "j", "j", "k").view.selected == {"pools": "mail@7@"}
    assert after(View(), "tab").view.pane == "workers"
    assert after(View(), "backtab").view.pane == "types"
    assert after(View(), "down", "tab", "tab", "tab").view.selected == {"pools": "tag@7@"}


def test_a_selection_that_is_gone_falls_to_the_first_row() -> None:
    view = after(View(), "down").view
    assert view.row(panes(overview(pools=[pool("new")]), {})).pool == "new"  # type: ignore[union-attr]


def test_p_pauses_the_selected_pools_types_and_lets_them_go_on() -> None:
    both = overview(pools=[pool("mail", types=["mail", "sms"])])
    assert after(View(), "p", of=both).action == Pause(("mail", "sms"), paused=True)
    assert after(View(), "p", of=replace(both, paused=["sms"])).action == Pause(("mail",), paused=True)
    assert after(View(), "p", of=replace(both, paused=["sms", "mail"])).action == Pause(("mail", "sms"), paused=False)
    assert after(View(pane="types"), "down", "p").action == Pause(("tag",), paused=True)


def test_keys_scale_the_selected_pool() -> None:
    assert after(View(), "down", "+").action == Scale("tag", 4)
    assert after(View(), "-", of=overview(pools=[pool("mail", fixed=7)])).action == Scale("mail", 6)
    assert after(View(), "a").action == Scale("mail", None)
    assert after(View(), "1", "2", "enter").action == Scale("mail", 12)
    assert after(View(), "1", "2", "backspace", "enter").action == Scale("mail", 1)


def test_a_size_that_is_probably_a_typing_error_must_be_confirmed() -> None:
    asked = after(View(), "5", "0", "0", "enter")
    assert asked.action is None
    assert asked.view.question is not None
    assert asked.view.question.text == "scale mail to 500 workers?"
    assert after(View(), "5", "0", "0", "enter", "y").action == Scale("mail", 500)
    assert after(View(), "1", "0", "0", "enter").action == Scale("mail", 100)
    assert after(View(), "1", "escape").action is None
    assert after(View(), "1", "x").view.typed == ""
    assert after(View(), "-", of=overview(pools=[pool("mail", fixed=0)])).action is None
    assert after(View(pane="types"), "+").action is None
    assert "Tab" in after(View(pane="types"), "5").view.message


def test_retry_and_cancel_ask_and_only_y_is_yes() -> None:
    asked = after(View(pane="types"), "r")
    assert asked.action is None
    assert asked.view.question is not None
    assert asked.view.question.text == "retry 2 jobs of mail?"
    assert "retry 2 jobs of mail? y/n" in shown(overview(), asked.view)[-2]
    assert after(asked.view, "y").action == Retry(("mail",), 2)
    for key in ("n", "q", "enter", "r"):
        assert after(asked.view, key) == Pressed(View(pane="types", message="nothing was changed"))
    assert after(View(pane="workers"), "c", "y").action == Cancel(12)
    assert after(View(), "c").view.question is None
    assert "has failed" in after(View(), "r", of=overview(types=[])).view.message


def test_nothing_to_act_upon_is_said() -> None:
    empty = overview(pools=[], workers=[], types=[])
    for key in ("p", "+", "a", "r", "c", "3", "down"):
        assert after(View(), key, of=empty).action is None
    assert press(View(), "p", panes(empty, {}), None).view.message


def test_q_leaves_also_from_the_help() -> None:
    assert after(View(), "q").view.quitting
    assert after(View(), "?", "q").view.quitting
    assert after(View(), "?").view.help
    assert not after(View(), "?", "x").view.help
    assert any("press it again to resume" in line for line in shown(overview(), View(help=True)))


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        (b"jk", ["j", "k"]),
        (b"\x1b[A\x1bOB\x1b[1;5B", ["up", "down", "down"]),
        (b"\t\x1b[Z", ["tab", "backtab"]),
        (b"12\r", ["1", "2", "enter"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[15~\x1b[200~", []),
        (b"\xff\x00", []),
        (b"\x7f", ["backspace"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1bOF\x1b[1~\x1b[4~", ["pageup", "pagedown", "home", "end", "home", "end"]),
    ],
)
def test_what_terminals_send_is_understood(sent: bytes, meant: list[str]) -> None:
    assert keys.decode(sent) == meant
