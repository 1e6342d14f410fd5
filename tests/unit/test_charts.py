"""Charts and the numbers in them."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from supervisor.admin import charts
from supervisor.admin.charts import PERIODS, ChartData, Series
from supervisor.admin.rendering import ENVIRONMENT
from supervisor.domain import history
from supervisor.domain.history import OTHERS, Minute

NOW = 1_700_000_010.0
MINUTE = NOW - NOW % 60 - 60  # the last one that is over


drawn: Any = ENVIRONMENT.get_template("charts.html").module


def minute(ago: int, type_: str = "tag", **fields: float) -> Minute:
    return Minute(MINUTE - 60 * ago, type_, **fields)


def last_hour(rows: list[Minute]) -> ChartData:
    return ChartData(rows, PERIODS["1h"], NOW)


def bars(series: list[Series]) -> list[dict[str, str]]:
    picture = ElementTree.fromstring(drawn.bars(series, [60.0 * n for n in range(len(series[0].values))], "text"))
    return [shape.attrib for shape in picture.iter("rect") if shape.attrib["class"] != "place"]


def test_the_hour_has_sixty_minutes_and_nothing_from_outside_it() -> None:
    hour = last_hour([minute(0, done=2), minute(59, done=3), minute(60, done=100), minute(-1, done=100)])

    [done, failed] = hour.by_state()
    assert (len(hour.times), hour.times[0], hour.times[-1]) == (60, MINUTE - 59 * 60, MINUTE)
    assert (done.values[0], done.values[-1], done.total, failed.total) == (3, 2, 5, 0)


@pytest.mark.parametrize(("name", "count", "step"), [("1h", 60, 60), ("1d", 96, 900), ("30d", 120, 21_600)])
@pytest.mark.parametrize("now", [NOW, MINUTE + 60, MINUTE // 86_400 * 86_400, MINUTE // 86_400 * 86_400 + 60])
def test_the_last_step_of_a_period_has_the_last_full_minute(name: str, count: int, step: float, now: float) -> None:
    period = PERIODS[name]
    times = period.times(now)
    last = now // 60 * 60 - 60
    assert (len(times), times[-1] % step, times[-1] <= last < times[-1] + step) == (count, 0, True)
    assert {after - before for before, after in itertools.pairwise(times)} == {step}
    assert times[0] >= history.minutes_begin(now) or name == "30d"

    data = ChartData([Minute(times[0], "a", 1), Minute(last, "a", 2), Minute(last + 60, "a", 4)], period, now)
    [done, _] = data.by_state()
    assert (done.values[0], done.values[-1], done.total) == (1, 2, 3)
    assert data.of(["b"]).total() == history.QUIET
    assert data.of(["a"]).total() == data.total()


def test_types_have_colours_by_their_names_and_the_rare_ones_stand_together() -> None:
    minutes = [minute(1, name, done=count) for name, count in zip("gfedcba", range(1, 8), strict=True)]

    series = last_hour([*minutes, minute(2, OTHERS, failed=4)]).by_type()

    assert [(one.key, one.label, one.total) for one in series] == [
        ("type-0", "a", 7),
        ("type-1", "b", 6),
        ("type-2", "c", 5),
        ("type-3", "d", 4),
        ("type-4", "e", 3),
        ("type-others", "others", 2 + 1 + 4),
    ]


def test_means_are_over_all_runs_and_unknown_without_any() -> None:
    hour = last_hour(
        [
            minute(1, done=3, failed=1, run_seconds=8.0, wait_seconds=2.0),
            minute(2, "mail", done=1, run_seconds=100.0),
            minute(3, "idle", waiting=9),
        ]
    )

    assert hour.of(["tag"]).total() == history.Hour(done=3, failed=1, mean_wait=0.5, mean_run=2.0)
    assert hour.of(["tag"]).total().failing == 0.25
    assert hour.total().runs == 5
    assert history.combined([hour.of(["tag"]).total(), history.QUIET]) == hour.of(["tag"]).total()
    assert history.combined(hour.of([type_]).total() for type_ in ("tag", "mail")) == hour.of(["tag", "mail"]).total()
    assert (hour.of(["idle"]).total(), hour.of([]).total().failing) == (history.QUIET, None)


@pytest.mark.parametrize(
    ("value", "top"),
    [(0, 4), (1, 4), (4, 4), (4.5, 5), (7, 8), (10, 10), (10.5, 12), (61, 80), (99, 100), (104, 120), (4e6, 4e6)],
)
def test_a_scale_ends_at_a_round_number(value: float, top: float) -> None:
    assert charts.top([Series("done", "done", (value,))]) == top


def test_bars_stand_on_each_other_and_fill_the_scale() -> None:
    done, failed = Series("done", "done", (6.0, 0.0)), Series("failed", "failed", (2.0, 4.0))

    shapes = bars([done, failed])

    assert [(shape["class"], float(shape["y"]), float(shape["height"])) for shape in shapes] == [
        ("fill-done", 25.0, 75.0),
        ("fill-failed", 0.0, 25.0),
        ("fill-failed", 50.0, 50.0),
    ]
    assert float(shapes[2]["x"]) > charts.WIDTH / 2


@pytest.mark.parametrize(
    ("series", "at", "dated", "title"),
    [
        (Series("done", "done", (1200.0,)), 0.0, False, r'[^"]+">\d\d:\d\d: 1,200 done'),
        (
            Series("done", "done", (3.0,)),
            NOW,
            True,
            r'2023-11-14T[^"]+">11-1\d \d\d:\d\d: 3 done',
        ),
    ],
)
def test_pointing_at_a_bar_tells_its_time_and_its_numbers(series: Series, at: float, dated: bool, title: str) -> None:
    none = Series("failed", "failed", (0.0,))
    assert re.search(f'<title data-at="{title}</title>', drawn.bars([series, none], [at], "text", dated=dated))


def test_a_chart_holds_text_alone_and_nothing_has_a_style_of_its_own() -> None:
    hostile = '"><img src=x onerror=alert(1)>'
    bar, line = Series("type-0", hostile, (1.0, 0.0)), Series("done", "x", (1.0, 2.0))
    for picture in (drawn.bars([bar], [0.0, 60.0], hostile), drawn.spark(line, hostile)):
        assert "<img" not in picture
        for element in ElementTree.fromstring(picture).iter():
            assert not {"style", "fill", "stroke", "onclick"} & set(element.attrib)


def test_a_small_chart_without_anything_is_a_flat_line() -> None:
    picture = ElementTree.fromstring(drawn.spark(Series("done", "done", (0.0,) * 60), "text"))

    [line] = picture.iter("polyline")
    assert {point.split(",")[1] for point in line.attrib["points"].split()} == {"98.00"}
