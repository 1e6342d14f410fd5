"""What is found wrong, from plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from supervisor.ops.diagnosis import diagnose, unmet
from supervisor.ops.views import AdminView, DutyView, MemoryView, ScheduleView
from supervisor.store.base import ErrorGroup, GoneView, KeeperView, ServerView, TableView
from tests.cli.test_top_screen import overview, pool, supervisor, type_


def server(*keepers: KeeperView, tables: Sequence[TableView] = (), notifications: float = 0.0) -> ServerView:
    return ServerView(0.0, False, 1, 100, notifications, True, list(tables), list(keepers))


def names(**given: Any) -> list[str]:
    return [finding.name for finding in diagnose(overview(**{"supervisors": [supervisor()]} | given))]


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert names() == []
    sound = server(KeeperView("transaction", "pid 7", 5.0, 10**6), tables=[TableView("jobs", 9, 50_000)])
    assert names(server=sound) == []


def test_without_a_supervisor_only_jobs_that_wait_are_counted() -> None:
    def advice(**jobs: int) -> str:
        return diagnose(overview(supervisors=[], jobs=jobs))[0].advice

    assert advice(pending=0) == "`supervisor run` starts one"
    assert advice(pending=2) == "`supervisor run` starts one; 2 jobs wait until then"
    assert advice(pending=1, held=4) == "`supervisor run` starts one; 5 jobs wait until then"


EVERYTHING: list[tuple[str, str, bool, dict[str, Any]]] = [
    ("no_supervisor", "fault", True, {"supervisors": []}),
    ("database_trouble", "fault", True, {"supervisors": [supervisor(trouble="read-only")]}),
    ("duty_failing", "fault", False, {"supervisors": [supervisor(duties=[DutyView("prune", 1000.0, "no such row")])]}),
    ("admin_unavailable", "warning", False, {"supervisors": [supervisor(admin=AdminView(None, "x", "in use"))]}),
    ("not_visible", "warning", True, {"supervisors": [supervisor(visible=False)]}),
    ("not_visible", "warning", False, {"supervisors": [supervisor(), supervisor(8, visible=False)]}),
    ("log_lost", "note", False, {"supervisors": [supervisor(log_lost=1)]}),
    (
        "memory_exceeded",
        "warning",
        False,
        {"supervisors": [supervisor(memory=MemoryView(60, True, {"tag": 61}, 0, []))]},
    ),
    ("no_lease", "fault", True, {"supervisors": [supervisor(lease_left=-0.1)]}),
    ("drained", "note", True, {"supervisors": [supervisor(lease_left=14.0, drained=True)]}),
    ("stopping", "note", True, {"supervisors": [supervisor(stopping="SIGTERM")]}),
    ("other_version", "note", False, {"supervisors": [supervisor(version="0.0.1")]}),
    ("ended", "note", False, {"supervisors": [supervisor(), supervisor(8, alive=False)]}),
    ("host_gone", "note", False, {"gone": [GoneView("beta", 8, 1000.0, stopped=False)]}),
    ("pool_broken", "fault", True, {"pools": [pool("mail", problem="no module", broken=True)]}),
    ("pool_problem", "warning", False, {"pools": [pool("mail", problem="no module")]}),
    ("pool_starting", "note", True, {"pools": [pool("mail", why="starting")]}),
    ("unhandled", "warning", False, {"unhandled": ["mail"], "unhandled_types": 1}),
    ("capabilities", "warning", False, {"unmet": unmet([("mail", "gpu", 0)], [pool("mail", types=["mail"])])}),
    ("priority", "warning", False, {"unmet": unmet([("mail", "", 0)], [pool("mail", types=["mail"], min_priority=1)])}),
    ("quarantined", "warning", False, {"jobs": {"quarantined": 2}}),
    ("failed", "note", False, {"causes": [ErrorGroup("mail", "error", "no", 2, 2, 1000.0, 7)]}),
    ("paused", "note", False, {"paused": ["mail"]}),
    ("transaction", "warning", False, {"server": server(KeeperView("transaction", "pid 7, psql", 90.0, 4))}),
    ("prepared_transaction", "warning", False, {"server": server(KeeperView("prepared transaction", "x", 90.0, 4))}),
    ("replication_slot", "warning", False, {"server": server(KeeperView("replication slot", "slot a", None, 10**6))}),
    ("dead_rows", "warning", False, {"server": server(tables=[TableView("jobs", 60_000, 60_001)])}),
    ("notifications", "warning", False, {"server": server(notifications=0.3)}),
    ("powerless", "warning", False, {"server": server()._replace(powerless=["jobs_a"])}),
    ("schedule_late", "warning", False, {"schedules": [ScheduleView("nightly", -61.0, None, None)]}),
    ("no_success", "warning", False, {"schedules": [ScheduleView("nightly", 9.0, None, 7, silent=61.0)]}),
    ("no_success", "warning", False, {"schedules": [ScheduleView("nightly", 9.0, None, None, silent=61.0)]}),
    ("schedule_paused", "note", False, {"schedules": [ScheduleView("nightly", -61.0, None, None, 900.0)]}),
]


@pytest.mark.parametrize(("name", "level", "blocks", "given"), EVERYTHING)
def test_every_fault_is_found_and_says_what_to_do(name: str, level: str, blocks: bool, given: dict[str, Any]) -> None:
    [found] = diagnose(overview(**{"supervisors": [supervisor()]} | given))

    assert (found.name, found.level, found.blocks) == (name, level, blocks)
    assert found.advice
    assert found.fact[:1].islower() or found.fact[:1].isdecimal()  # a page capitalizes it


def test_the_most_serious_comes_first() -> None:
    found = names(paused=["mail"], unhandled=["tag"], unhandled_types=1, pools=[pool("a", problem="x", broken=True)])
    assert found == ["pool_broken", "unhandled", "paused"]


def test_a_few_types_without_a_pool_have_a_finding_each_and_many_share_one() -> None:
    few = overview(supervisors=[supervisor()], unhandled=["mail", "tag"], unhandled_types=2, pools=[pool("mial")])
    assert [(one.type, one.fact) for one in diagnose(few)] == [
        ("mail", "no pool takes the type mail: 3 jobs wait; did you mean mial?"),
        ("tag", "no pool takes the type tag: 3 jobs wait"),
    ]
    types = [type_(f"t{number}", handled=False, jobs={"pending": 1}) for number in range(30)]
    many = overview(
        supervisors=[supervisor()], types=types, unhandled=[view.type for view in types], unhandled_types=75
    )
    [found] = diagnose(many)
    assert found.fact.startswith("no pool takes 75 types: t0, t1, ")
    assert found.fact.endswith("t19 and 55 more; 30 jobs wait")


def test_the_causes_that_failed_most_jobs_are_told_and_neither_retries_nor_crashes() -> None:
    jobs = {"a": 1, "b": 9, "retried": 0, "c": 2, "d": 3}
    causes = [ErrorGroup(type_, "error", "OSError: " + "no" * 99, 9, count, 1000.0, 7) for type_, count in jobs.items()]
    causes.append(ErrorGroup("killed", "crash", "killed", 9, 9, 1000.0, 8))
    found = diagnose(overview(causes=causes))
    assert [one.type for one in found] == ["b", "d", "c"]
    assert found[0].fact.startswith("9 jobs of b failed in the last hour: OSError: nono")
    assert len(found[0].fact) < 170
    many = diagnose(overview(causes=[*causes, ErrorGroup("e", "error", "no", 500, 1, 1000.0, 7)]))
    assert many[0].fact.startswith("at least 9 jobs of b failed")


def test_supervisors_of_several_hosts_are_told_apart() -> None:
    several = [supervisor(trouble="full", host="a"), supervisor(trouble="full", host="b")]
    facts = [found.fact for found in diagnose(overview(supervisors=several))]
    assert [fact.partition(":")[0] for fact in facts] == ["supervisor 7 on a", "supervisor 7 on b"]


def test_a_supervisor_of_which_nothing_is_known_may_be_running() -> None:
    [found] = diagnose(overview(supervisors=[supervisor(alive=None, visible=False)]))
    assert found.fact.startswith("supervisor 7 may be running, but its workers are not visible")


def test_the_state_of_a_supervisor_is_told_in_a_word() -> None:
    worse = {"alive": None, "drained": True, "lease_left": -1.0, "stopping": "TERM", "trouble": "full"}
    found = [supervisor(**dict([*worse.items()][:n])).state for n in range(6)]
    assert found == ["running", "unknown", "drained", "no lease", "stopping", "problem"]
    assert supervisor(**worse | {"alive": False}).state == "dead"


def test_a_late_schedule_is_nothing_more_to_tell_while_no_supervisor_runs() -> None:
    assert names(supervisors=[], schedules=[ScheduleView("nightly", -9e5, None, None)]) == ["no_supervisor"]


def facts(*given: Any) -> list[str]:
    return [one.fact for one in unmet(*given)]


def test_requirements_are_unmet_only_if_no_pool_of_the_type_has_them() -> None:
    pools = [pool("a", types=["mail"], capabilities=["smtp"]), pool("b", types=["mail", "tag"])]
    assert facts([("mail", "smtp", 0), ("mail", "", -9), ("other", "gpu", 0)], pools) == []
    assert facts([("tag", "gpu", 0), ("mail", "gpu smtp", 0), ("tag", "gpu", 5)], pools) == [
        "no pool that takes tag has the capabilities that some of its jobs require: gpu",
        "no pool that takes mail has the capabilities that some of its jobs require: gpu smtp",
    ]


def test_jobs_below_every_pool_are_unmet_unless_one_with_their_capabilities_takes_all() -> None:
    urgent = pool("urgent", types=["tag"], capabilities=["cpu"], min_priority=10)
    very, all_ = pool("very", types=["tag"], min_priority=50), pool("all", types=["tag"])
    below = [("tag", "", 0), ("tag", "", 9), ("tag", "cpu", 9), ("tag", "", 10)]
    with_cpu = "no pool that takes tag and has cpu takes jobs below priority 10, and some wait"
    assert facts(below, [urgent, very]) == [with_cpu.replace(" and has cpu", ""), with_cpu]
    assert facts(below, [urgent, very, all_]) == [with_cpu]
    assert facts(below, [urgent, pool("all", types=["tag"], capabilities=["cpu"])]) == []


def test_a_host_that_stopped_by_itself_or_long_ago_is_no_finding() -> None:
    assert names(gone=[GoneView("beta", 8, 1000.0, stopped=True)]) == []
    assert names(gone=[GoneView("beta", 8, 1060.0 - 3601, stopped=False)]) == []


def test_on_several_hosts_a_pool_is_named_with_its_own() -> None:
    both = [supervisor(id="a", host="alpha"), supervisor(id="b", host="beta")]
    [found] = diagnose(overview(supervisors=both, pools=[pool("mail", host="beta", problem="no module")]))
    assert "of supervisor 7 on beta works" in found.fact
