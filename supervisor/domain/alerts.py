"""Alerts: jobs that are enqueued when something has gone wrong. Their payloads, how often, and what is remembered."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from supervisor.domain.job import NewJob

FACTS = "alert"  # the key of the payload with the facts, and of the meta by which an alert's own jobs are known
FAILURES = {"given_up": "failed", "quarantined": "quarantined"}  # and the status of their jobs
WHEN = (*FAILURES, "pool_broken", "oldest_due", "schedule_missed", "no_success")


class Alert(NamedTuple):
    """One of `[[alerts]]`: a job of `type` is enqueued `when` something happens to one of `only` (all if empty), at
    most one in `every` seconds for each. `over` is seconds, of "oldest_due" alone; `payload` is the JSON text of an
    object.
    """

    when: str
    over: float
    type: str
    payload: str
    every: float
    only: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The same for the same settings, but for `every`: under this its state is stored."""
        import hashlib  # slow to import, and every command reads the configuration

        settings = json.dumps([self.when, self.over, self.type, self.payload, self.only])
        return f"alert:{hashlib.sha256(settings.encode()).hexdigest()[:16]}"

    def concerns(self, subject: str) -> bool:
        return not self.only or subject in self.only


class Event(NamedTuple):
    """What has happened to a type, a pool or a schedule. `more` are facts for programs."""

    subject: str
    summary: str
    more: Mapping[str, Any]


@dataclass(eq=False, repr=False)
class State:
    """What is remembered: up to which failed attempt the table was read, when there was last an alert for each subject
    (Unix seconds), and from which failed attempt on a subject has failures that must wait for the next one. Its stored
    form is read by other releases, too.
    """

    reached: int
    alerted: dict[str, float] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> State:
        """Raises ValueError for a text that is not ours."""
        try:
            found = json.loads(text)
            return cls(int(found["reached"]), dict(found["told"]), dict(found["held"]))
        except (TypeError, KeyError) as error:
            raise ValueError(f"the state of an alert cannot be read: {error!r}") from None

    def written(self) -> str:
        return json.dumps({"reached": self.reached, "told": self.alerted, "held": self.waiting}, sort_keys=True)

    def may_alert(self, subject: str, every: float, now: float) -> bool:
        """Whether its time has come again. A last time in the future means that the clock was set back."""
        at = self.alerted.get(subject)
        return at is None or not 0 <= now - at < every

    def alert(self, subjects: Iterable[str], every: float, now: float) -> None:
        """Note that there is an alert for these now, and forget what no longer matters."""
        self.alerted |= dict.fromkeys(subjects, now)
        self.alerted = {
            subject: at for subject, at in self.alerted.items() if 0 <= now - at < every or subject in self.waiting
        }


def job_of(alert: Alert, event: Event, host: str, now: float) -> NewJob:
    """The job for an event. One for a lasting state is not enqueued while an equal one waits."""
    facts = {"when": alert.when, "subject": event.subject, "summary": event.summary, "at": now, "host": host}
    payload = {**json.loads(alert.payload), FACTS: {**facts, **event.more}}
    lasting = alert.when not in FAILURES
    return NewJob(
        alert.type,
        json.dumps(payload, ensure_ascii=False),
        unique_key=f"{alert.id}:{event.subject}"[:1000] if lasting else None,
        extra={"meta": json.dumps({FACTS: {"when": alert.when, "subject": event.subject}}, ensure_ascii=False)},
    )


def of_failures(when: str, type_: str, jobs: int, job: int, error: str) -> Event:
    """`job` is the latest of these `jobs`, `error` its message."""
    whose = f"a job of the type {type_} has" if jobs == 1 else f"{jobs} jobs of the type {type_} have"
    what = "failed for good" if when == "given_up" else "been quarantined because workers died with them"
    return Event(type_, f"{whose} {what}", {"jobs": jobs, "job": job, "error": error})
