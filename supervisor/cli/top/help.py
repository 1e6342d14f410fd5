"""The keys: as a page, and as the last line of the screen. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.cli.top.panes import Name

HELP = """\
↑ ↓, j k          select a row
PgUp PgDn, g G    ten rows, first row, last row
Tab, Shift-Tab    next pane, previous pane
p                 pause the selected pool's types, or the selected type;
                  press it again to resume
+ -               one worker more or less for the selected pool
7 Enter           set its number of workers, here 7
a                 return it to automatic scaling
r                 retry the failed and quarantined jobs of the selected type or
                  pool; asks
c                 cancel the job of the selected worker; asks
l                 the log of the selected worker's job; again to go back
q, Ctrl-C         quit

If there is no room for every row, the most important are shown: those that
are broken or paused, have waited or run longest, or fail. Arrows scroll.

Press any key to close this help."""

_BRIEF = (
    "↑↓ jk select", "PgUp PgDn scroll", "Tab next pane", "p pause/resume", "+ - workers", "7 Enter size",
    "a autoscale", "r retry failed", "c cancel job", "l log", "q quit",
)  # fmt: skip
_CELL = 19  # cells of an entry and the space behind it

_SIZE = (("+-", "size"), ("p", "pause"), ("r", "retry"))
_OF_PANE: Mapping[Name, tuple[tuple[str, str], ...]] = {
    "pools": (*_SIZE, ("l", "log"), ("c", "cancel")),
    "workers": (("l", "log"), ("c", "cancel"), ("+-", "size"), ("p", "pause"), ("r", "retry")),
    "types": (("p", "pause"), ("r", "retry"), ("l", "log")),
}


def help_page(width: int, height: int) -> str:
    """The whole page, or without room for it the keys alone, in columns."""
    if HELP.count("\n") < height and width >= max(map(len, HELP.split("\n"))):
        return HELP
    columns = max(1, width // _CELL)
    lines = -(-len(_BRIEF) // columns)
    return "\n".join("".join(f"{entry:<{_CELL}}" for entry in _BRIEF[row::lines]).rstrip() for row in range(lines))


def key_line(pane: Name, width: int) -> str:
    """The keys that work here, as many as fit: the first ones say how to find the others."""
    line = "q quit  ? help  Tab pane"
    for key, what in (("↑↓", "select"), *_OF_PANE[pane]):
        more = f"{line}  {key} {what}"
        if len(more) > width:
            break
        line = more
    return line
