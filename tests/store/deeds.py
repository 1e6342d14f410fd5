"""One database with a little of everything in it, and everything that a role can do to it, once each.

For tests in which each statement of each deed fails in turn. A deed has a name, the role that does it, and is
`repeatable` if doing it again after it had been done comes to the same.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from supervisor.domain.history import Minute
from supervisor.domain.job import AlikeJobs, Claim, NewJob, Status
from supervisor.domain.limits import Limits
from supervisor.domain.settlement import (
    FollowUps,
    Settlement,
    Usage,
    cancelled,
    crashed,
    done,
    failed,
    released,
    suspected,
)
from supervisor.store.base import (
    BatchView,
    Claims,
    Cursor,
    Engine,
    Filter,
    JobSelector,
    MaintenanceStore,
    Operations,
    Planned,
    Producer,
    Sort,
    SupervisorRecord,
)
from supervisor.store.sqlite import maintenance as duties
from tests.ledger import query
from tests.store.kit import BROKEN, LOCK, NOW, POLICY, T0, Desk, supervisor_record, worker_record

WANTED = JobSelector(("tag", "mail"), "gpu")
OLD = T0 - 1e5  # when what has to be pruned had ended


def _schedules(engine: Engine) -> MaintenanceStore:
    """With the connection that they have of their own."""
    with contextlib.ExitStack() as failed:
        store = failed.enter_context(contextlib.closing(engine.maintenance()))
        store.schedules.planned()
        failed.pop_all()
    return store


ROLES: dict[str, Callable[[Engine], Any]] = {
    "producer": lambda engine: engine.producer(),
    "claims": lambda engine: engine.claims(),
    "maintenance": lambda engine: engine.maintenance(),
    "schedules": _schedules,
    "operations": lambda engine: engine.operations(),
}


def make_world(engine: Engine) -> None:
    """Deeds know its jobs by their numbers: 1-6 are held by w1, of which 2 is to be cancelled, 7 by a foreign
    program, 8 and 9 are due, 10-12 are due elsewhere, 13 has failed, 14 is quarantined, 15 and 16 are old,
    17 requires what cannot be read, or what nobody has, 18 is alone of its type; 19 is held at the gate of its type,
    21 at that of its key, 22 until it is due, 23 until 18 has ended, 24 has expired; rows of the application point at
    15.
    """
    desk = Desk.at(engine)
    desk.maintenance.registry.register(supervisor_record("s1", engine, "nowhere"))
    desk.maintenance.registry.register(supervisor_record("gone", engine, "nowhere"))
    desk.claims.register(worker_record("w1", "s1"))
    held = [desk.put() for _ in range(6)]
    desk.claim(want=6)
    desk.operations.actions.cancel(held[1], NOW)
    _foreign(engine, "INSERT INTO jobs(type, status, lock_expires_at) VALUES ('tag', 'running', 1)")
    for _ in range(2):
        desk.put(max_attempts=2)
    desk.put("mail", priority=5)
    desk.put("mail", requires="gpu", unique_key="k")
    desk.put("mail", priority=5, requires="gpu")
    for number, status in enumerate((Status.FAILED, Status.QUARANTINED)):
        desk.finish(desk.put(f"end{number}", max_attempts=1), status)
    for number, status in enumerate((Status.DONE, Status.FAILED)):
        desk.finish(desk.put(f"old{number}", at=OLD, max_attempts=1), status, at=OLD)
    _foreign(engine, "INSERT INTO jobs(type, requires, scheduled_at) VALUES ('tag', 'nothing', ?)", T0)
    desk.put("solo")
    _foreign(engine, "INSERT INTO job_limits (type, max_running, applied) VALUES ('narrow', 0, 1)")
    for values in ("'narrow', NULL, 1", "'wide', 'k', 1", "'wide', 'k', 1", "'wide', 'k', 4e9"):
        _foreign(engine, f"INSERT INTO jobs (type, concurrency_key, scheduled_at) VALUES ({values})")
    _foreign(engine, "INSERT INTO jobs (type, status, hold) VALUES ('last', 'held', 'after')")
    _foreign(engine, "INSERT INTO job_after (after_id, job_id) VALUES (18, 23)")
    _foreign(engine, "INSERT INTO jobs (type, expires_at) VALUES ('stale', 1)")
    for number, closed in ((1, 1), (2, 0), (3, 1)):  # 8 is of the first, and 4 lets it grow; all of the third are gone
        _foreign(engine, f"INSERT INTO job_batches (id, closed) VALUES ({number}, {closed})")
    _foreign(engine, "UPDATE jobs SET batch = 1 WHERE id IN (4, 8)")
    _foreign(engine, "CREATE TABLE pictures (job INTEGER REFERENCES jobs (id))")
    _foreign(engine, "INSERT INTO pictures VALUES (15)")
    _foreign(engine, "INSERT INTO job_batch_limits VALUES (8, 2)")
    desk.maintenance.schedules.plan("nightly", "{}", T0)
    desk.maintenance.schedules.define(Planned("made", "{}", T0, type="tag", definition="{}"), None, T0)
    desk.maintenance.schedules.plan("watched", "{}", T0, type="tag", expect_within=60.0, expected_from=T0)
    succeeded = "(SELECT ' ' || id FROM jobs WHERE type = 'old0')"
    _foreign(engine, f"UPDATE job_schedules SET watched = {succeeded} WHERE name = 'watched'")
    assert desk.maintenance.history.record("s1", "{}", "{1}", [Minute(T0, "tag", done=1)])
    desk.maintenance.finished.alerts.begin("alert:old", "{}")
    desk.operations.controls.pause("quiet", NOW)
    desk.operations.controls.scale("tag", 2, NOW)
    desk.operations.controls.drain("a host", NOW)
    desk.close()


def _foreign(engine: Engine, sql: str, *parameters: object) -> None:
    query(engine.url if engine.database.file is None else engine.database.file, sql, *parameters)


def contents(engine: Engine) -> dict[str, list[tuple[Any, ...]]]:
    """Everything that is in it, apart from times of which nothing is decided."""
    if engine.database.file is None:
        return _contents_of_server(engine.url)
    found = {}
    with contextlib.closing(sqlite3.connect(engine.database.file)) as connection:
        connection.text_factory = bytes
        tables = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
        for name, definition in tables:
            if definition not in _SELECTS:
                columns = [row[1].decode() for row in connection.execute(f"PRAGMA table_info({name.decode()})")]
                _SELECTS[definition] = _select(name.decode(), columns)
            found[name.decode()] = connection.execute(_SELECTS[definition]).fetchall()
    return found


def _contents_of_server(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Without what is by the server's clock, and without the numbers of rows that nothing refers to."""
    import psycopg

    with psycopg.connect(url) as connection:
        columns: dict[str, list[str]] = {}
        for table, column in connection.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
            " ORDER BY table_name, ordinal_position"
        ):
            columns.setdefault(table, []).append(column)
        own = {"job_errors": {"id"}, "job_runs": {"number"}, "job_supervisors": {"lease_until"}}
        return {
            table: connection.execute(_select(table, set(names) - own.get(table, set()))).fetchall()
            for table, names in columns.items()
        }


_SELECTS: dict[bytes, str] = {}  # by the table's definition: the same tables are looked at thousands of times


def _select(table: str, columns: Iterable[str]) -> str:
    names = set(columns) - {"created_at", "updated_at"}
    if table == "job_batches":
        names = names - {"id", "ended_at"} | {"ended_at IS NULL"}
    kept = ", ".join(sorted(names))
    return f"SELECT {kept} FROM {table} ORDER BY {kept}"


def _claim(number: int, type_: str = "tag") -> Claim:
    """One of the claims that w1 holds."""
    return Claim(number, 1, type_, "{}", 1, None, 0)


def _new(**fields: Any) -> NewJob:
    return NewJob("tag", "{}", scheduled_at=T0, **fields)


def _settle(claims: Claims, *settlements: Settlement, want: int = 0, wanted: JobSelector = WANTED) -> Any:
    return claims.settle_and_claim("w1", settlements, wanted, want, LOCK, NOW)


_USAGE = Usage(started_at=NOW, duration=3.0)


class Deed(NamedTuple):
    name: str
    role: str
    act: Callable[[Any], Any]
    repeatable: bool = True


def _of_producer() -> dict[str, tuple[Callable[[Producer], Any], bool]]:
    return {
        "enqueue many": (lambda r: r.enqueue([_new(), _new()]), False),
        "enqueue alike": (lambda r: r.enqueue(AlikeJobs(_new(), ["[{},{}]", "[{}]"], 3)), False),
        "enqueue": (lambda r: r.enqueue([_new(), _new(unique_key="new"), _new(extra={"meta": "{}"})]), False),
        "enqueue after others": (lambda r: r.enqueue([_new(after=(8, 9))]), False),
        "put a known key": (lambda r: r.put(_known()), True),
        "put a recent key": (lambda r: r.put(_new(unique_key="new", extra={"unique_for": 9.0})), True),
        "put a key that waits": (lambda r: r.put(_new(unique_key="new", extra={"waiting_key": "new"})), True),
        "replace a job": (lambda r: r.put(_known()._replace(on_duplicate="replace", scheduled_at=T0)) and None, False),
        "put": (lambda r: r.put(_new(unique_key="new")), True),
        "put a request": (lambda r: r.put(_new(unique_key="run:new", once=True, max_waiting=100)), True),
        "put each": (lambda r: _ids(r.put_each([_new(unique_key="a"), _known(), _new(unique_key="b")])), True),
        "job": (lambda r: r.job(1), True),
        "events": (lambda r: r.events([1]), True),
    }


def _known() -> NewJob:
    return NewJob("mail", "{}", unique_key="k")


def _ids(answers: list[tuple[int, bool] | Exception]) -> list[int]:
    """Whoever was told an error enqueues again."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return [answer[0] for answer in answers if not isinstance(answer, Exception)]


def _of_claims() -> dict[str, tuple[Callable[[Claims], Any], bool]]:
    ends = (
        done(_claim(1), '"ok"', started_at=NOW),
        cancelled(_claim(2)),
        failed(_claim(3), BROKEN, POLICY, chance=0.5, pause=60.0),
        done(_claim(4), None, started_at=NOW, children=(_new(), _new(extra={"batch": 1})))._replace(
            follow=FollowUps("next")
        ),
        suspected(_claim(5), 4),
        done(_claim(6), None, started_at=NOW, usage=_USAGE),
    )
    return {
        "register worker": (lambda r: r.register(worker_record("w2", "s1", name="tag-9")), True),
        "settle all kinds": (lambda r: _settle(r, *ends), False),
        "settle plain": (lambda r: _settle(r, *(done(_claim(n), None) for n in range(1, 7))), False),
        "claim one": (lambda r: _settle(r, want=1, wanted=JobSelector(("solo",))), False),
        "claim several": (lambda r: _settle(r, want=2, wanted=JobSelector(("solo",))), False),
        "claim groups": (lambda r: _settle(r, want=3), False),
        "settle and claim": (lambda r: _settle(r, ends[0], want=2), False),
        "limits": (lambda r: r.limits([8, 9]), True),
        "show progress": (lambda r: r.show_progress("w1", [(1, 1), (2, 1)], 0.5, "half", NOW), True),
        "held by a worker": (lambda r: r.held_by("w1"), True),
    }


def _of_maintenance() -> dict[str, tuple[Callable[[Any], Any], bool]]:
    dead = [crashed(_claim(1), BROKEN, POLICY, 3, chance=0.5), *(released(_claim(n)) for n in range(2, 7))]
    return {
        "supervisors": (lambda r: r.registry.supervisors(), True),
        "register": (
            lambda r: r.registry.register(
                SupervisorRecord("s2", 1, "here", "m", "b", "lock", "board", "conf", "0", T0)
            ),
            True,
        ),
        "forget supervisor": (lambda r: r.registry.forget("gone", NOW), True),
        "workers": (lambda r: (r.registry.workers_of("s1"), r.registry.worker("w1")), True),
        "held": (lambda r: r.locks.held_by("w1"), True),
        "settle dead": (lambda r: r.locks.settle_dead("w1", dead, NOW, worker="tag-1"), False),
        "renew": (lambda r: r.locks.renew(["w1"], NOW + 2 * LOCK, NOW + 3 * LOCK), False),
        "expired": (lambda r: r.locks.expired(NOW, 10), True),
        "writable": (lambda r: r.locks.writable() or True, True),
        "reclaim": (
            lambda r: [
                r.locks.reclaim(seen, lambda claim, owner: released(claim), NOW) for seen in r.locks.expired(NOW, 10)
            ],
            False,
        ),
        "cancels": (lambda r: r.controls.cancels("s1", 9), True),
        "any_due": (lambda r: r.backlog.any_due(WANTED, NOW), True),
        "depth": (lambda r: r.backlog.depth(WANTED, NOW, 100).oldest, True),
        "unhandled": (lambda r: r.backlog.unhandled(["tag"]), True),
        "unfinished": (lambda r: r.backlog.unfinished(JobSelector(("nothing",)), NOW, 600.0), True),
        "bring forward": (lambda r: r.backlog.bring_forward(T0 - 9000, T0 - 8000), False),
        "count from now": (lambda r: r.gates.count_from(NOW), True),
        "has_claims": (lambda r: r.locks.has_claims("s1"), True),
        "progress": (lambda r: (r.backlog.progress_of(["tag"], T0), r.backlog.left_behind(["tag"], 9)), True),
        "controls": (lambda r: r.controls.current(), True),
        "prune": (lambda r: r.finished.prune(0, 100, T0 - 10, T0 - 10), False),
        "prune at the end": (lambda r: r.finished.prune(10**6, 100, 5e9, 5e9), True),
        "revive": (lambda r: r.finished.redrive(JobSelector(("end0",)), 1, Cursor(0.0, 0), NOW, 10, NOW)[1], False),
        "queue_sizes": (lambda r: r.backlog.queue_sizes(NOW), True),
        "record minutes": (
            lambda r: (r.history.counted("s1"), r.history.record("s1", "{1}", "{2}", [Minute(T0, "tag", done=2)]))[0],
            False,
        ),
        "roll up": (lambda r: r.history.roll_up(NOW), False),
        "forget history": (lambda r: r.history.forget(NOW), False),
    }


def _of_gates() -> dict[str, tuple[Callable[[MaintenanceStore], Any], bool]]:
    few = {"mail": Limits(max_running=1, interval=60.0), "nothing": Limits(max_running=1, fair=True)}
    return {
        # Without the sweep that follows: "sweep" and "limit", which sweeps, are deeds, too.
        "configure": (lambda r: (r.gates.configure(few, ("mail", "narrow", "nothing"), NOW), None)[1], True),
        "next due": (lambda r: r.gates.next_due()[1], True),
        "admit due": (lambda r: (r.gates.admit_due(5e9), None)[1], True),
        "cancel expired": (lambda r: (r.gates.cancel_expired(NOW), None)[1], True),
        "sweep": (lambda r: (r.gates.sweep(NOW), None)[1], True),
    }


def _of_sqlite() -> dict[str, tuple[Callable[[Any], Any], bool]]:
    return {
        "version": (lambda r: r._connection.version() > 0, True),
        "checkpoint": (lambda r: duties.checkpoint(r._connection), True),
        "truncate": (lambda r: duties.truncate_log(r._connection), True),
        "inserted": (lambda r: duties.inserted_so_far(r._connection), True),
        "free pages": (lambda r: (duties.FreePages(r._connection).run(NOW), None)[1], True),
    }


def _of_schedules() -> dict[str, tuple[Callable[[MaintenanceStore], Any], bool]]:
    nightly, made = Planned("nightly", "{}", T0), Planned("new", "{}", T0, type="tag", definition='{"every": "5s"}')
    return {
        "plan": (lambda r: r.schedules.plan("hourly", "{}", NOW), True),
        "plan otherwise": (lambda r: r.schedules.plan("nightly", "{1}", NOW), True),
        "define": (lambda r: r.schedules.define(made, None, NOW), False),
        "define otherwise": (lambda r: r.schedules.define(made._replace(name="made"), "{}", NOW), False),
        "remove": (lambda r: r.schedules.remove("made", "{}", NOW), False),
        "note successes": (lambda r: r.schedules.note_successes(), True),
        "pause": (lambda r: r.schedules.pause("nightly", NOW), True),
        "resume": (lambda r: r.schedules.resume("nightly", NOW), True),
        "run": (lambda r: r.schedules.run("nightly", NOW), False),
        "fire": (lambda r: r.schedules.fire(nightly, [_new(), _new()], NOW + 60, NOW), False),
    }


def _of_alerts() -> dict[str, tuple[Callable[[MaintenanceStore], Any], bool]]:
    def advance(store: MaintenanceStore) -> Any:
        return store.finished.alerts.advance("alert:old", "{}", "{1}", [_new(), _new()], NOW)

    def failed_so_far(store: MaintenanceStore) -> Any:
        return store.finished.alerts.failed("failed", 0, store.finished.alerts.latest_error())

    return {
        "begin an alert": (lambda r: r.finished.alerts.begin("alert:new", "{}"), True),
        "advance an alert": (advance, False),
        "read what has failed": (failed_so_far, True),
    }


def _of_operations() -> dict[str, tuple[Callable[[Operations], Any], bool]]:
    every = Filter()
    return {
        "list": (
            lambda r: (
                len(r.jobs.latest(status=None, type=None, before=None, limit=9)),
                len(r.jobs.page(Filter(statuses=(Status.FAILED,), error="picture"), before=None, limit=9).jobs),
                r.jobs.some_ids(every, before=None, limit=3),
                r.jobs.ids(every),
                r.jobs.ids(Filter(statuses=(Status.RUNNING,))),
                r.jobs.ids(Filter(statuses=(Status.PENDING,))),
                r.jobs.count(every, limit=100),
            ),
            True,
        ),
        "look at one": (
            lambda r: (
                r.jobs.attempts(13),
                r.jobs.runs(6),
                r.jobs.latest_runs(None, 9),
                r.jobs.durations([6, 13]),
                r.registry.worker("nobody"),
                r.registry.gone(NOW),
            ),
            True,
        ),
        "look at all": (
            lambda r: (
                r.jobs.arranged(Filter(text="a"), by=Sort.CHANGED, descending=True, before=None, limit=9),
                r.statistics.error_groups(0.0, 9),
                r.history.minutes(0.0),
                r.history.added_up(0.0, NOW, 900.0),
                r.statistics.counts(),
                r.backlog.depth(JobSelector(("mail",)), NOW, 9),
                r.statistics.failures(0.0),
                r.statistics.held_counts(),
                r.statistics.speeds(),
                r.schedules.planned(),
                r.statistics.anomalies(NOW),
                r.backlog.unhandled(["tag"]),
                r.controls.current(),
                r.registry.supervisors(),
            ),
            True,
        ),
        "spooled": (lambda r: r.backlog.spooled([("0" * 97, "tag", "run:k")]), True),
        "backlog": (lambda r: (r.backlog.by_type(NOW, 9)["mail"], r.backlog.due_groups(NOW)), True),
        "retry": (lambda r: r.actions.retry([13, 14, 1], NOW), False),
        "rerun": (lambda r: r.actions.rerun(13, NOW, payload='{"a": 2}', done=True), False),
        "cancel pending": (lambda r: r.actions.cancel(8, NOW), False),
        "cancel running": (lambda r: r.actions.cancel(1, NOW), True),
        "cancel all": (lambda r: r.actions.cancel_all([1, 8, 9], NOW), False),
        "delete": (lambda r: r.actions.delete([13, 16, 1]), False),
        "run now": (lambda r: r.actions.run_now(23, NOW), False),
        "pause": (lambda r: r.controls.pause("tag", NOW), True),
        "resume": (lambda r: r.controls.resume("quiet"), False),
        "scale": (lambda r: r.controls.scale("tag", 4, NOW), True),
        "scale back": (lambda r: r.controls.scale("tag", None, NOW), True),
        "scale on a host": (lambda r: r.controls.scale("tag", 4, NOW, "a host"), True),
        "scale back on a host": (lambda r: r.controls.scale("tag", None, NOW, "a host"), True),
        "reload": (lambda r: r.controls.request_reload(NOW), False),
        "look at what is held": (
            lambda r: [(r.jobs.held(j := r.jobs.get(n)), r.jobs.twin(j)) for n in range(13, 24)],
            True,
        ),
        "limit": (lambda r: r.gates.choose("tag", Limits(max_running=1), NOW), True),
        "drain": (lambda r: r.controls.drain("another host", NOW), False),
        "undrain": (lambda r: r.controls.undrain("a host"), False),
        "writing": (lambda r: r.check(writable=True), True),
        "look at batches": (lambda r: (_counts(r.batches.get(1)), list(map(_counts, r.batches.latest()))), True),
        "list a batch": (lambda r: r.jobs.ids(Filter(batch=1)), True),
        "open a batch": (lambda r: r.batches.open("sum", "{}") and None, False),
        "close a batch": (lambda r: r.batches.close(2), True),
    }


def _counts(view: BatchView) -> tuple[Any, ...]:
    return view.id, view.state, view.counts


def _deeds(*groups: tuple[str, dict[str, tuple[Callable[[Any], Any], bool]]]) -> list[Deed]:
    return [Deed(name, role, *deed) for role, deeds in groups for name, deed in deeds.items()]


EVERYWHERE = _deeds(
    ("producer", _of_producer()),
    ("claims", _of_claims()),
    ("maintenance", _of_maintenance()),
    ("schedules", _of_schedules()),
    ("maintenance", _of_gates()),
    ("maintenance", _of_alerts()),
    ("operations", _of_operations()),
)
DEEDS = {
    "sqlite": EVERYWHERE + _deeds(("maintenance", _of_sqlite())),
    "postgres": EVERYWHERE,
}
