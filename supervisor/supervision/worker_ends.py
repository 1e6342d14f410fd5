"""What becomes of the workers that were asked for: templates fork them, and they end. Each end is explained
(`exit_reason`), reported, and made up for.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import dataclass
from functools import partial

from supervisor.domain.text import shortened
from supervisor.maintenance.deaths import DeathReport
from supervisor.supervision.exit_reason import Cause, Circumstances, accused_of, explain
from supervisor.supervision.maintainer_client import MaintainerClient
from supervisor.supervision.pool import Pool
from supervisor.supervision.pools import Pools
from supervisor.supervision.templates import TemplateProcess, Templates
from supervisor.supervision.watchdog import look_at
from supervisor.supervision.worker_output import Outputs
from supervisor.supervision.worker_process import Process, WorkerProcess, named
from supervisor.system import child, ending, kernel, signals
from supervisor.system.channel import Message
from supervisor.system.resources import OomCounter
from supervisor.system.signals import Reactor
from supervisor.telemetry import events

_STATUS_PATIENCE = 2.0  # seconds to wait for the template's report of how a worker ended; no other can be forked before
_ORPHANED = 5.0  # seconds after a template's death in which we inherit processes of its workers


@dataclass(eq=False)
class Ends:
    """Each end of a worker is reported to the maintainer, which settles its jobs. Times are monotonic seconds."""

    pools: Pools
    templates: Templates
    reactor: Reactor
    maintainer: MaintainerClient
    outputs: Outputs
    finished_jobs: int = 0  # by workers that have ended

    def __post_init__(self) -> None:
        self._oom = OomCounter()
        self._look_at = self._orphans_until = 0.0
        self._inherited = frozenset(kernel.children(os.getpid()) or ())  # children of a program that became us by exec

    # What the templates say

    def hear(self) -> None:
        """Process the templates' messages."""
        for template in list(self.templates):
            template.child.channel.flush()
            if template.child.gone or self.reactor.is_readable(template.child.descriptor):
                for message, descriptors in template.receive():
                    try:
                        self._obey(template, message, descriptors)
                    except (LookupError, TypeError, ValueError) as error:
                        # The handler's code shares the template's process, and may have written into the channel.
                        log = events(process="supervisor")
                        log.error("message_garbled", of=f"template {template.child.pid}", error=repr(error))
            if template.child.gone:
                self._lose(template)

    def _obey(self, template: TemplateProcess, message: Message, descriptors: list[int]) -> None:
        find = self.pools.find
        if "forked" in message:
            self._forked(find(message["forked"]), int(message["pid"]), descriptors)
        elif "exited" in message:
            if (worker := find(message["exited"])) is not None:
                worker.ended(time.monotonic(), message["status"], message["peak_memory"])
        elif "swept" in message:
            self.pools.sweep(message["swept"])
        elif "unforked" in message:
            if (worker := find(message["unforked"])) is not None:
                self.give_up(worker, f"no worker can be forked: {message['error']}")
        elif "ready" in message:
            template.ready = True
        elif "broken" in message:
            template.broken = shortened(str(message["broken"]))
            self.give_up_all(template)

    def _forked(self, worker: WorkerProcess | None, pid: int, descriptors: list[int]) -> None:
        if not descriptors:  # they were lost, and the template kills it
            if worker is not None:
                worker.process.pid = pid
                worker.kill(Cause.UNSTARTED)
                worker.release.back_off(f"no worker can be watched: {os.strerror(errno.EMFILE)}", time.monotonic())
            return
        pidfd, stderr = descriptors
        if worker is None or not worker.living:  # given up in the meantime
            ending.send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
            os.close(stderr)
            return
        process = Process(pid, pidfd, self.outputs.open(stderr, worker.request.name, worker.slot))
        worker.forked(process, time.monotonic())
        self.reactor.watch(pidfd, partial(self._notice, worker))

    def _notice(self, worker: WorkerProcess) -> None:
        worker.ended(time.monotonic())
        self.reactor.unwatch(worker.process.pidfd)  # it stays readable forever; once is enough

    def give_up(self, worker: WorkerProcess, why: str = "") -> None:
        """A worker is not forked: because of its code, if this says why, or because nobody needs it any more."""
        now = time.monotonic()
        if why and not worker.request.template.retired:
            worker.release.back_off(why, now)
        worker.kill(Cause.UNSTARTED)
        worker.ended(now)

    def give_up_all(self, template: TemplateProcess) -> None:
        """The code of a template cannot be loaded: whoever waits for it is told why."""
        for worker in self.pools.unforked():
            if worker.request.template is template:
                self.give_up(worker, template.why_broken(worker.release.pool))

    # What the kernel says

    def reap(self) -> None:
        """Reap our children: maintainers, admin processes, templates, and workers whose template died before them."""
        for pid, status, peak_memory in child.reap():
            for template in self.templates:
                if template.child.pid == pid:
                    template.child.status = status
            for worker in self.pools.workers():
                if worker.process.pid == pid:
                    worker.ended(time.monotonic(), status, peak_memory)

    def await_children(self, seconds: float, spare: frozenset[int]) -> frozenset[int]:
        """Wait until all children but these have ended, then kill the rest. Returns those that cannot be killed."""
        deadline = time.monotonic() + seconds
        pause = 0.002
        while time.monotonic() < deadline and set(kernel.children(os.getpid()) or ()) - spare:
            self.reap()
            time.sleep(pause)
            pause = min(pause * 1.3, 0.02)
        ending.kill_children(spare)
        return frozenset(kernel.children(os.getpid()) or ()) - spare

    def look_around(self, now: float) -> None:
        """Read the kernel's out-of-memory counter. Only once a second, so that a death that is handled a moment later
        still sees its change.
        """
        if now >= self._look_at:
            self._look_at = now + 1.0
            self._oom.look()

    # Ends of workers

    def moments(self) -> list[float | None]:
        """When each end must be handled even if its cause is not known yet."""
        return [_explained_at(worker) for worker in self.pools.workers()]

    def unsettled(self) -> bool:
        """Whether some end has not been reported, or not been settled yet."""
        return bool(self.maintainer.unacknowledged) or any(not worker.living for worker in self.pools.workers())

    def report(self, now: float) -> None:
        """Find the cause of each end, report it to settle the jobs, and make room for a successor."""
        for worker in self.pools.workers():
            at = _explained_at(worker)
            if at is not None and now >= at:
                self._report(worker, now)
        if now < self._orphans_until:
            self._kill_orphans()

    def _report(self, worker: WorkerProcess, now: float) -> None:
        pool, settings, output = self.pools[worker.release.pool], worker.release.settings, worker.process.output
        look_at(pool, worker, now)  # it may have been set up, and have worked, since the scoreboard was last read
        slot, request, end = worker.slot.read(), worker.request, worker.end
        known = Circumstances(
            end.status,
            kill=end.killed,
            tail=b"" if output is None else output.drain(),
            peak_memory=end.peak_memory,
            out_of_memory=self._oom.struck,
            timeout=round(slot.deadline - slot.started, 3) if slot.deadline else settings.timeout,
            ran=now - slot.started if slot.job else None,
            cautious=request.caution > 0,
            suspects=frozenset(pool.deaths.suspects),
            unproven=pool.name not in request.template.proven,
        )
        why = explain(slot, known)
        job, token = why.run
        policy, number = settings.policy.encode(), request.number
        self.maintainer.report(
            DeathReport(
                request.incarnation, request.name, why.charge, job, token, policy, why.failure, number, why.batch
            )
        )
        self._forget(pool, worker)
        self.finished_jobs += slot.done
        worker.release.ended(why, worker.asked_at, now)
        pool.deaths.ended(why, request.caution, worker.stale)
        if why.reason == Cause.UNSTARTED.word:
            return  # the pool's problem is in the log
        log = events(process="supervisor")
        unknown = why.reason == Cause.HELD_DATABASE.word and why.batch > 1  # which of its jobs it was
        (log.debug if why.expected else log.warning)(
            "worker_left" if why.expected else "worker_died",
            **named(worker),
            reason=why.reason,
            detail=why.message,
            job=None if unknown else job or None,
        )

    def _forget(self, pool: Pool, worker: WorkerProcess) -> None:
        incarnation, template, process = worker.request.incarnation, worker.request.template, worker.process
        del pool.workers[incarnation]
        if worker.serving and process.pid and not (worker.end.swept or template.child.gone):
            pool.workers.unswept[incarnation] = template
        self.reactor.unwatch(process.pidfd)
        if process.output is not None:
            self.reactor.unwatch(process.output.descriptor)
        process.close()

    # Ends of templates

    def _lose(self, template: TemplateProcess) -> None:
        """A template has ended, and its workers die with it."""
        now = time.monotonic()
        if template.loading and not template.retired:
            # The code it was loading has ended it, and may do so again.
            self.reap()
            status = template.child.status
            how = "" if status is None else f" ({signals.ending(os.waitstatus_to_exitcode(status))})"
            template.broken = f"the template ended while it was loading the handler{how}"
            self.give_up_all(template)
        self.templates.lose(template)
        self._orphans_until = now + _ORPHANED
        for pool in self.pools.values():
            pool.workers.forget_unswept(template)
        its = [worker for worker in self.pools.workers() if worker.request.template is template]
        orphaned = [worker for worker in its if worker.process.pid or worker.living]
        for worker in orphaned:
            look_at(self.pools[worker.release.pool], worker, now)
        if orphaned or not (template.retired or template.broken):
            events(process="supervisor").error("template_died", pid=template.child.pid, workers=len(orphaned))
        releases = [release for release in template.releases.values() if release.current]
        accused = accused_of(
            [worker.slot.read() for worker in orphaned],
            wanted=template.ready and bool(releases) and not template.dismissed,
            isolated=template.spec.alone and any(one.template_deaths.isolated(now) for one in releases),
            unproven=len(template.releases) == 1 and not template.proven,
        )
        for release in releases if accused is not None else ():
            release.template_died(accused or 0, now)
        for worker in orphaned:
            if worker.end.status in (None, signal.SIGKILL):
                # The kernel kills them with it, and may already have done so.
                worker.kill(Cause.ALONE if accused else Cause.TEMPLATE)
            if not worker.process.pid:
                worker.ended(now)

    def _kill_orphans(self) -> None:
        """Kill processes started by the workers of a dead template: they become our children one after another."""
        spared = self._inherited | {worker.process.pid for worker in self.pools.workers()}
        for pid in set(kernel.children(os.getpid()) or ()) - spared:
            if not child.is_ours(pid):
                ending.signal_child(pid, signal.SIGKILL)  # our own unreaped child


def _explained_at(worker: WorkerProcess) -> float | None:
    """When its end must be handled even if its cause is not known yet; None before its end."""
    end = worker.end
    known = end.status is not None or not worker.process.pid
    return (end.at if known else end.at + _STATUS_PATIENCE) if end.at else None
