"""The history of some types, as charts: how many runs ended how, and how many jobs waited."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse

from supervisor.admin.chart_data import PERIODS
from supervisor.admin.pages import route
from supervisor.admin.state import TheState
from supervisor.ops.views import MOST_TYPES

router = route.router()


@dataclass(frozen=True, slots=True)
class Choice:
    """A period that can be chosen, with the address of the page that shows it."""

    words: str
    address: str
    chosen: bool


@router.get("/history")
async def history(request: Request, state: TheState) -> HTMLResponse:
    shown = await state.watch.overview()
    name = chosen(request)
    types = tuple(dict.fromkeys(request.query_params.getlist("type")))[:MOST_TYPES]
    data = await state.watch.chart_data(PERIODS[name], shown.time)
    return await route.page(
        request,
        "history.html",
        shown,
        types=types,
        data=data.of(types) if types else data,
        periods=choice("/history", name, types),
    )


def chosen(request: Request) -> str:
    """The name of the period in the address. If it is missing or unknown, that of the first period."""
    name = request.query_params.get("since", "")
    return name if name in PERIODS else next(iter(PERIODS))


def choice(path: str, name: str, types: tuple[str, ...] = ()) -> list[Choice]:
    """Links to the same page for each period."""
    return [
        Choice(
            period.words,
            f"{path}?{urlencode([('since', key), *(('type', type_) for type_ in types)], errors='replace')}",
            key == name,
        )
        for key, period in PERIODS.items()
    ]
