"""Alerts: enqueues a job when something has gone wrong, at most one in a time for each type, pool or schedule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from supervisor.domain.alerts import FAILURES, Alert, Event, State, job_of, of_failures
from supervisor.domain.duty import Duty, Needs, Result, moved
from supervisor.domain.schedule import GRACE, Schedule
from supervisor.domain.text import human
from supervisor.store.base import JobSelector, MaintenanceStore, Planned
from supervisor.system.scoreboard import Scoreboard
from supervisor.telemetry import events

_ATTEMPTS = 10_000  # failed attempts looked at per run
_MOST_HELD = 100_000  # the latest failed attempts that are looked at for news that had to wait


class RaiseAlert(Duty):
    """One alert, so that each fails on its own. Its state and its jobs are committed together: no event has two,
    and what could not be committed comes later. If several supervisors have it, the database decides which enqueues.

    `pools` are the supervisor's, `planned` its schedules; its `board` says which pools cannot start their workers.
    """

    needs = Needs.WRITING

    def __init__(
        self,
        alert: Alert,
        store: MaintenanceStore,
        pools: Mapping[str, JobSelector],
        planned: Iterable[Schedule],
        board: Scoreboard,
        host: str,
    ) -> None:
        self.name = f"alert {alert.when} by {alert.type}"
        self._alert = alert
        self._store, self._alerts = store, store.finished.alerts
        self._pools, self._board, self._host = pools, board, host
        self._timings = {schedule.name: schedule.timing for schedule in planned}
        self._state: State | None = None
        self._stored = ""
        self._next: float | None = None
        self._log = events(process="maintainer")
        self._look = {
            "pool_broken": self._broken_pools,
            "oldest_due": self._old_jobs,
            "schedule_missed": self._missed_schedules,
            "no_success": self._unsuccessful_schedules,
        }.get(alert.when)
        # Jobs become too old, and schedules late, at times that are known; a broken pool is announced by nothing.
        self.every = {"pool_broken": 5.0, "oldest_due": min(60.0, max(alert.over, 1.0))}.get(alert.when, 60.0)
        self.rest = 1.0 if alert.when in FAILURES else None

    def next_at(self, now: float) -> float | None:
        return self._next

    def run(self, now: float) -> Result:
        self._next = None
        state = self._state or self._read()
        self._state = None  # until this run has ended well
        if self._look is None:
            found, more = self._failures(state, now)
        else:
            found, more = [event for event in self._look(now) if self._may_alert(state, event.subject, now)], False
        if found:
            state.alert([event.subject for event in found], self._alert.every, now)
        changed = found or state.waiting != State.read(self._stored).waiting
        if changed and not self._commit(state, found, now):
            return Result(more=True)  # another supervisor was faster: look again at what is left
        self._state = state
        return moved(len(found), more=more)

    def _read(self) -> State:
        """A new alert is for what happens from now on."""
        text = self._alerts.state(self._alert.id)
        if text is None:
            text = self._alerts.begin(self._alert.id, State(self._alerts.latest_error()).written())
        self._stored = text
        return State.read(text)

    def _commit(self, state: State, found: list[Event], now: float) -> bool:
        alert, text = self._alert, state.written()
        jobs = [job_of(alert, event, self._host, now) for event in found]
        ids = self._alerts.advance(alert.id, self._stored, text, jobs, now)
        if ids is None:
            return False
        self._stored = text
        for event, job in zip(found, ids, strict=True):
            self._log.info("alert_raised", when=alert.when, subject=event.subject, type=alert.type, job=job)
        return True

    def _may_alert(self, state: State, subject: str, now: float) -> bool:
        if not self._alert.concerns(subject):
            return False
        may = state.may_alert(subject, self._alert.every, now)
        if not may:
            self._again(state.alerted[subject] + self._alert.every)
        return may

    def _again(self, at: float) -> None:
        self._next = at if self._next is None else min(self._next, at)

    # What is looked for

    def _failures(self, state: State, now: float) -> tuple[list[Event], bool]:
        """The types that have jobs which failed for good since their last alert."""
        store, alert = self._alerts, self._alert
        status, latest = FAILURES[alert.when], store.latest_error()
        before = min(state.reached, latest)  # lower if the attempts were renumbered
        reached = min(latest, before + _ATTEMPTS)
        found: dict[str, Event] = {}
        for type_, held in list(state.waiting.items()):
            if self._may_alert(state, type_, now):
                del state.waiting[type_]
                for group in store.failed(status, max(held, reached - _MOST_HELD), reached, type_):
                    found[type_] = of_failures(alert.when, *group)
        for group in store.failed(status, before, reached) if reached > before else ():
            type_ = group[0]
            if type_ in found or not alert.concerns(type_):
                continue
            if self._may_alert(state, type_, now):
                found[type_] = of_failures(alert.when, *group)
            else:
                state.waiting.setdefault(type_, before)
        state.reached = reached
        return list(found.values()), reached < latest

    def _broken_pools(self, now: float) -> list[Event]:
        """As the supervisor shows them."""
        shown = self._board.supervisor_status().get("pools", {})
        broken = {name: str(pool.get("problem", "")) for name, pool in shown.items() if pool.get("broken")}
        return [
            Event(pool, f"the pool {pool} cannot start its workers: {problem}", {"problem": problem})
            for pool, problem in broken.items()
        ]

    def _old_jobs(self, now: float) -> list[Event]:
        over, found = self._alert.over, []
        for pool, wanted in self._pools.items():
            if not self._alert.concerns(pool):
                continue
            depth = self._store.backlog.depth(wanted, now, 1)
            if depth.oldest is not None and (age := now - depth.oldest) > over:
                found.append(Event(pool, f"jobs of the pool {pool} have been due for {human(age)}", {"age": age}))
            elif depth.oldest is not None or depth.next_due is not None:
                first = depth.oldest if depth.oldest is not None else depth.next_due or now
                self._again(first + over + 0.001)
        return found

    def _missed_schedules(self, now: float) -> list[Event]:
        found = []
        for row in self._planned():
            if (late := now - row.next_at) > GRACE:
                found.append(Event(row.name, f"the schedule {row.name} is {human(late)} late", {"late": late}))
            else:
                self._again(row.next_at + GRACE + 0.001)
        return found

    def _unsuccessful_schedules(self, now: float) -> list[Event]:
        found = []
        self._store.schedules.note_successes()
        for row in self._planned():
            if silent := row.silent(now):
                summary = f"no job of the schedule {row.name} has succeeded for {human(silent)}"
                found.append(Event(row.name, summary, {"silent": silent, "job": row.last_job}))
            elif row.expect_within is not None and row.expected_from is not None:
                self._again(row.expected_from + row.expect_within + 0.001)
        return found

    def _planned(self) -> Iterator[Planned]:
        """The schedules that this alert concerns: ours, and those that were made at run time."""
        for row in self._store.schedules.planned():
            ours = row.definition is not None or self._timings.get(row.name) == row.timing
            if ours and row.paused_at is None and self._alert.concerns(row.name):
                yield row
