"""What `top` shows and what its keys mean, with plain values."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from supervisor import __version__
from supervisor.cli.live import decode
from supervisor.cli.screen import Action, View, cancel, panes, pause, retry, scale
from supervisor.cli.screen import screen as drawn
from supervisor.ops.views import AdminView, Overview, PoolView, SupervisorView, TypeView, WorkerView

EVIL = "\x1b[31mboom\x07\r\n\u202e\x9b2J 画像 \ud800"


def pool(name: str, **given: Any) -> PoolView:
    values: dict[str, Any] = {
        "supervisor": 7, "types": [name], "capabilities": [], "size": 2, "target": 3, "why": "3 due", "max_workers": 4,
        "due": 3, "oldest_age": 12.0, "next_due_in": None, "rate": 0.5, "paused": [], "memory": 1 << 20,
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
        "id": str(pid), "host": "here", "alive": True, "visible": True, "started_at": 1000.0, "version": __version__,
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


def test_the_last_cell_of_a_type_says_how_far_its_limits_are_used() -> None:
    limits: dict[str, Any] = {"max_running": 5, "rate": "50/s"}
    call = type_("call", jobs={"running": 2, "held": 76}, limits=limits, breaker_open=True)
    rows = panes(overview(types=[call, type_("plain")]), {"call": "boom"})["types"]
    words = "2 of 5 running, rate 50/s, breaker open, 76 held; boom"
    assert {row.key: row.cells[-1] for row in rows} == {"call": words, "plain": ""}


def viewed(of: Overview, *pressed: str, failures: dict[str, str] | None = None) -> View:
    """The view after these keys."""
    view = View()
    view.see(of, failures or {})
    for key in pressed:
        view.press(key)
    return view


def action(*pressed: str, of: Overview | None = None) -> Action | None:
    """What the last key requests."""
    *first, last = pressed
    asked = viewed(of or overview(), *first).press(last)
    return asked and asked._replace(question="")


def shown(
    of: Overview | None = None,
    view: View | None = None,
    *,
    width: int = 80,
    height: int = 24,
    at: float = 100.0,
    trouble: str = "",
    failures: dict[str, str] | None = None,
) -> list[str]:
    """The lines of the screen, without colours and empty ends."""
    view = view or View()
    if of is not None:
        view.see(of, failures or {}, at)
    view.trouble = trouble
    console = Console(width=width, height=height, color_system=None)
    whole = drawn(view, width, height, 100.0)
    return ["".join(part.text for part in line).rstrip() for line in console.render_lines(whole)]


def line_of(screen: list[str], word: str) -> str:
    return next(line for line in screen if word in line)


def test_one_screen_tells_everything() -> None:
    screen = shown(overview(), failures={"mail": "SMTP says no"})

    assert len(screen) == 24
    assert screen[0].startswith("6 pending  2 running  12,345 done  4 failed  app.db  ")
    assert line_of(screen, "supervisor 7, up 60s")
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
    assert line_of(screen, "supervisor 7 on alpha, up 60s; supervisor 7 on beta, up 60s")
    assert [line.split()[:3] for line in screen if "tag " in line] == [["›tag", "alpha", "2/3"], ["tag", "beta", "2/1"]]
    assert [line.split()[:2] for line in screen if "tag-1  " in line] == [["›tag-1", "alpha"], ["tag-1", "beta"]]
    assert action("down", "+", of=both) == Action(scale, ("tag", 2))
    assert panes(both, {})["workers"][1].types == ["other"]
    assert "HOST" not in "".join(shown(overview(), width=110))


def test_a_worker_with_several_jobs_shows_how_many_more() -> None:
    assert "12 +49" in line_of(shown(overview(workers=[worker("mail-1", running=50)])), "mail-1")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 20), (200, 60)])
@pytest.mark.parametrize("many", [0, 1, 60])
def test_no_line_is_wider_than_the_screen_and_what_is_wrong_is_never_left_out(
    width: int, height: int, many: int
) -> None:
    names = [f"pool-with-quite-a-long-name-{number}" for number in range(many)]
    full = overview(
        pools=[pool(name, why="because " * 20, oldest_age=3e5, due=10_000) for name in names],
        workers=[worker(f"{name}-1", text="word " * 30) for name in names],
        types=[type_(name) for name in names],
        unhandled=names,
        supervisors=[supervisor(n, trouble="disk full " * 9) for n in range(many)],
    )
    for pressed in ("?", "p"):
        view = viewed(full, pressed) if many or pressed == "?" else View()
        screen = shown(full, view, width=width, height=height, trouble="gone " * 30)
        assert len(screen) == height
        assert max(map(cell_len, screen)) <= width
        assert "gone" in screen[1]
        assert screen[-1].startswith("q quit")


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
    said = viewed(evil)
    said.message = EVIL
    for view in (viewed(evil), said, viewed(evil, "down", "r"), viewed(evil, "tab", "c")):
        for width in (80, 200):
            screen = shown(evil, view, width=width, trouble=EVIL, failures={"b": EVIL})
            assert all(char.isprintable() for line in screen for char in line), screen


def test_rows_without_room_are_counted_and_the_important_ones_come_first() -> None:
    many = overview(
        pools=[*(pool(f"p{n:02}", due=0) for n in range(45)), pool("zz", problem="no such module", broken=True)],
        workers=[worker(f"w-{n}", state="idle", job=None, running_for=None) for n in range(45)]
        + [worker(f"b-{n}", running_for=float(n), job=n) for n in range(50)],
        types=[*(type_(f"t{n:02}", jobs={}) for n in range(45)), type_("bad", failures_last_hour=3)],
    )

    screen = shown(many)

    assert "BROKEN: no such module" in line_of(screen, "›zz")
    assert "49" in line_of(screen, "›b-49")
    assert line_of(screen, "›bad")
    for name in ("pools", "workers", "types"):
        assert re.search(rf"… and \d\d more {name}", line_of(screen, f"more {name}"))


def test_arrows_scroll_through_the_rows() -> None:
    many = overview(pools=[pool(f"p{n:02}") for n in range(45)])
    down = ["down"] * 20
    rows = [line.split()[0].lstrip("›") for line in shown(many, viewed(many, *down)) if re.match(r"[ ›]p\d\d ", line)]
    assert "p20" in rows
    assert rows == [f"p{n:02}" for n in range(int(rows[0][1:]), int(rows[0][1:]) + len(rows))]
    assert viewed(many, *down, "pageup").selected["pools"] == "p10@7@"
    assert viewed(many, *down, *["pagedown"] * 3).selected["pools"] == "p44@7@"


def test_a_database_that_cannot_be_used_for_a_while_is_shown_with_what_was_known() -> None:
    assert "the disk is gone" in shown(None, View(), trouble="the disk is gone")
    screen = shown(overview(), trouble="the disk is gone", at=90.0)
    assert screen[1] == "10s old: the disk is gone"
    assert line_of(screen, "›mail")
    assert "does not answer" in shown(overview(), at=90.0)[1]


def test_what_is_wrong_is_told_first() -> None:
    several = [supervisor(1), supervisor(2, trouble="read-only"), supervisor(3, alive=False)]
    assert shown(overview(supervisors=several))[1].startswith("supervisor 2: the database cannot be used")
    assert "no supervisor is running" in shown(overview(supervisors=[], pools=[], workers=[]))[1]
    admin = AdminView(None, "127.0.0.1:8787", "the address is in use")
    of = overview(supervisors=[supervisor(admin=admin, version=__version__)])
    assert "its admin process is not available: the address" in shown(of)[1]


def test_arrows_select_and_tab_changes_the_pane() -> None:
    of = overview()
    assert viewed(of, "j", "j", "k").selected["pools"] == "mail@7@"
    assert [viewed(of, key).pane for key in ("tab", "backtab")] == ["workers", "types"]
    assert viewed(of, "down", "tab", "tab", "tab").selected["pools"] == "tag@7@"


def test_the_selection_stays_on_its_row_and_goes_to_the_first_if_that_is_gone() -> None:
    view = viewed(overview())
    view.see(overview(pools=[pool("mail"), pool("tag", problem="broken")]), {})
    assert view.press("+") == Action(scale, ("mail", 4))  # and not the pool that came to the top meanwhile
    view.see(overview(pools=[pool("new")]), {})
    assert view.press("+") == Action(scale, ("new", 4))


SMS = overview(pools=[pool("mail", types=["mail", "sms"])])


@pytest.mark.parametrize(
    ("of", "keys", "requested"),
    [
        (SMS, "p", Action(pause, (["mail", "sms"], True))),
        (SMS._replace(paused=["sms"]), "p", Action(pause, (["mail"], True))),
        (SMS._replace(paused=["sms", "mail"]), "p", Action(pause, (["mail", "sms"], False))),
        (overview(), "backtab down p", Action(pause, (["tag"], True))),
        (overview(), "down +", Action(scale, ("tag", 4))),
        (overview(pools=[pool("mail", fixed=7)]), "-", Action(scale, ("mail", 6))),
        (overview(), "a", Action(scale, ("mail", None))),
        (overview(), "backtab +", None),
        (overview(), "backtab r y", Action(retry, (["mail"],))),
        (overview(), "tab c y", Action(cancel, (12,))),
        *((overview(), f"backtab r {key}", None) for key in ("n", "q", "enter", "r")),
    ],
)
def test_keys_request_a_change_of_what_is_selected(of: Overview, keys: str, requested: Action | None) -> None:
    assert action(*keys.split(), of=of) == requested


def test_retry_and_cancel_ask_and_only_y_is_yes() -> None:
    of = overview()
    assert line_of(shown(of, viewed(of, "backtab", "r")), "retry 2 jobs of mail? y/n")
    for key in ("n", "q", "enter", "r"):
        refused = viewed(of, "backtab", "r", key)
        assert (refused.message, refused.asked, refused.quitting) == ("nothing was changed", None, False)
    assert viewed(of, "c").asked is None
    assert "has failed" in viewed(overview(types=[]), "r").message
    assert "Tab" in viewed(of, "backtab", "+").message


def test_nothing_to_act_upon_is_said() -> None:
    empty = overview(pools=[], workers=[], types=[])
    for key in ("p", "+", "a", "r", "c", "down"):
        assert action(key, of=empty) is None
        assert viewed(empty, key).message
    assert View().press("p") is None


def test_q_leaves_also_from_the_help() -> None:
    of = overview()
    assert viewed(of, "q").quitting
    assert viewed(of, "?", "q").quitting
    assert line_of(shown(of, viewed(of, "?")), "p pause/resume")
    assert line_of(shown(of, viewed(of, "?", "x")), "▸POOL")


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        (b"jk", ["j", "k"]),
        (b"\x1b[A\x1bOB\x1b[1;5B", ["up", "down", "down"]),
        (b"\t\x1b[Z", ["tab", "backtab"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[15~\x1b[200~", []),
        (b"\xff\x00", []),
        (b"\x1b[5~\x1b[6~", ["pageup", "pagedown"]),
    ],
)
def test_what_terminals_send_is_understood(sent: bytes, meant: list[str]) -> None:
    assert decode(sent) == meant
