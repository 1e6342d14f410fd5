"""A pool's code as it was loaded at one moment: whether it works, whether it still serves, and when it is tried again.

    candidate ──a worker is ready───────────────────────────────▶ serving
      │  ▲                                                           │ a reload
      │  └──after a back-off── refused ◀──its set-up failed          ▼
      │                           │                               outgoing
      └──────────────a reload─────┴──▶ retired ◀── newer code serves ─┘

The set-up of a worker includes the pool's warm-up and canary. `outgoing` code keeps up the number of workers while a
candidate is tried; it also retires when no template is left that has it. If a worker was being set up at the reload and
is ready after all, while no other code has worked, a retired release is outgoing again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from supervisor.config.pool_settings import PoolSettings
from supervisor.domain.process_health import Restarts, TemplateDeaths
from supervisor.domain.scaling import OLD_VERSION
from supervisor.supervision.exit_reason import Effect, ExitReport
from supervisor.telemetry import events

_TRIALS = {"canary": "canary", "warmup": "warm-up", "set-up": "set-up"}


class ReleaseState(Enum):
    """A candidate whose set-up has failed is `refused` for people; it is tried again."""

    CANDIDATE = "no worker has been ready with it"
    SERVING = "it has worked"
    OUTGOING = "it has worked, and newer code has not"
    RETIRED = "no worker starts with it any more"


@dataclass(eq=False, slots=True)
class Release:
    """`reloaded_at`: when it was to take the place of older code, in monotonic seconds; 0.0 if there was none.

    `on_trial`: it came with a reload, and its pool has workers, or starts one for the canary, that will show whether
    it works. If the pool has none, the next one uses it first.
    """

    settings: PoolSettings
    on_trial: bool = False
    reloaded_at: float = 0.0
    state: ReleaseState = ReleaseState.CANDIDATE
    restarts: Restarts = field(default_factory=Restarts)
    template_deaths: TemplateDeaths = field(default_factory=TemplateDeaths)
    told: str = ""  # the outcome that the log has

    # Questions

    @property
    def pool(self) -> str:
        return self.settings.name

    @property
    def current(self) -> bool:
        """Whether no reload has come after it."""
        return self.state in (ReleaseState.CANDIDATE, ReleaseState.SERVING)

    @property
    def failed(self) -> bool:
        """Whether its last set-up has failed."""
        return self.restarts.failed_setups > 0

    @property
    def is_doubtful(self) -> bool:
        """Whether older code, if there is any, keeps up the numbers."""
        return self.failed or self.on_trial

    @property
    def not_before(self) -> float:
        """The earliest time for the next worker to start."""
        return max(self.restarts.not_before, self.template_deaths.not_before)

    def problem(self, now: float, *, old_serves: bool) -> str:
        """The current problem, for people; "" if there is none."""
        wrong = self.restarts.problem(now)
        replaces = old_serves or (self.state is ReleaseState.CANDIDATE and self.reloaded_at > 0.0)
        return new_code_failed(wrong, old_serves=old_serves) if wrong and self.failed and replaces else wrong

    def outcome(self, *, asleep: bool) -> str:
        """What a reload reports of it, once it is known; `asleep`: its pool has no worker and needs none."""
        if self.state is not ReleaseState.CANDIDATE:
            return "accepted"
        if self.failed:
            return "failed"
        return "untried" if asleep and not self.on_trial else "waiting"

    def why_older_stays(self) -> str:
        """Why a worker with the code from before a reload is still there, for people."""
        if not self.failed:
            return f"{OLD_VERSION}, to be replaced"
        failed = next((trial for trial in ("canary", "warmup") if f"{trial} failed: " in self.restarts.why), "set-up")
        return f"{OLD_VERSION}; the new one failed its {failed}"

    # Transitions

    def works(self) -> None:
        """A worker is ready with it."""
        self.state = ReleaseState.SERVING if self.current else ReleaseState.OUTGOING
        self.on_trial = False

    def ended(self, end: ExitReport, asked_at: float, now: float) -> None:
        """A worker has ended that was requested then: what that means for the next one."""
        if end.effect is Effect.SET_UP_FAILED:
            self.restarts = self.restarts.broken(now, end.message, born=asked_at)
        elif end.effect in (Effect.DIED, Effect.DIED_EARLY):
            self.restarts = self.restarts.died(now, early=end.effect is Effect.DIED_EARLY, born=asked_at)

    def template_died(self, accused: int, now: float) -> None:
        """A job may have killed its template, perhaps this one, which is charged."""
        deaths = self.template_deaths
        if accused:
            deaths = deaths.charge(accused, self.settings.max_crashes)
        deaths = self.template_deaths = deaths.died(now)
        if deaths.isolated(now):
            events(process="supervisor").warning("pool_isolated", pool=self.pool, deaths=len(deaths.at))

    def back_off(self, why: str, now: float) -> None:
        """Nobody can be started with it now: once in each back-off."""
        if now >= self.restarts.not_before:
            self.restarts = self.restarts.broken(now, why)
            events(process="supervisor").error("pool_broken", pool=self.pool, problem=why)

    def supersede(self) -> None:
        """A reload: it goes on only if it has worked."""
        self.state = ReleaseState.OUTGOING if self.state is ReleaseState.SERVING else ReleaseState.RETIRED
        self.template_deaths = TemplateDeaths()

    def retire(self) -> None:
        self.state = ReleaseState.RETIRED


class Releases:
    """The code of one pool: the `current` release, and the `old` one until the current one has worked."""

    def __init__(self, first: Release) -> None:
        self.current = first
        self.old: Release | None = None

    def begin(self, settings: PoolSettings, now: float) -> None:
        """A reload. A candidate that has not worked goes, so that there are two at most."""
        self.current.supersede()
        if self.current.state is not ReleaseState.RETIRED:
            self.drop_old()
            self.old = self.current
        self.current = Release(settings, on_trial=True, reloaded_at=now)

    def works(self, release: Release) -> None:
        """A worker is ready with this code; it does not bring back that of a pool which was removed meanwhile."""
        if self.current.state is ReleaseState.RETIRED:
            return
        if release is self.current:
            release.works()
            self.drop_old()
        elif self.old is None and self.current.state is ReleaseState.CANDIDATE:
            release.works()
            self.old = release

    def drop_old(self) -> None:
        """Start no more workers with the code from before a reload."""
        if self.old is not None:
            self.old.retire()
            self.old = None

    def retire(self) -> None:
        """Its pool is no longer in the configuration."""
        self.current.retire()
        self.drop_old()


def new_code_failed(why: str, *, old_serves: bool) -> str:
    """One sentence from the error of a failed set-up, which names the trial that failed."""
    trial, failed, rest = why.partition(" failed: ")
    if failed and trial in _TRIALS:
        what = f"the new code failed its {_TRIALS[trial]}: {rest}"
    else:
        what = f"the new code cannot be loaded: {why}"
    return f"{what}; " + ("the old code keeps running" if old_serves else "no older code is loaded")
