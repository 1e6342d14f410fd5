"""`@task`: from a call to a payload and back, and the database into which tasks go."""

from __future__ import annotations
import __future__

import asyncio
import contextlib
import dataclasses
import datetime
import decimal
import enum
import functools
import json
import os
import pickle
import sqlite3
import subprocess
import sys
import uuid
import zoneinfo
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType

import pydantic
import pytest

from supervisor import AsyncQueue, Context, InvalidJob, Queue, QueueError, configure, task, tasks
from supervisor.tasks.parameters import Mismatch
from supervisor.testing import context, run_due
from supervisor.worker.handler import Handler, HandlerError

UserId = NewType("UserId", int)

SINCE_314 = pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated at once before 3.14")


class Opaque:
    pass


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Picture:
    path: Path
    taken: datetime.date


def taking(annotation: Any) -> Any:
    """The task `f` of one value."""

    def f(value: Any) -> Any: ...

    f.__annotations__ = {"value": annotation, "return": annotation}
    return task(f)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with Queue(f"sqlite:///{tmp_path}/app.db") as queue:
        yield queue


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "registered", {})
    monkeypatch.setattr(tasks, "_queue", None)
    monkeypatch.delenv(tasks.VARIABLE, raising=False)


def test_it_is_just_the_function() -> None:
    @task
    def resize(path: str, width: int = 800) -> tuple[str, int]:
        """Resizes."""
        return path, width

    assert resize("cat.jpg") == ("cat.jpg", 800)
    assert (resize.__name__, resize.__doc__, resize.type) == ("resize", "Resizes.", "resize")
    assert resize.payload("cat.jpg", width=3) == {"path": "cat.jpg", "width": 3}
    assert resize.payload("cat.jpg") == {"path": "cat.jpg"}  # the default is that of the code that will run it


def test_the_context_is_no_part_of_the_payload() -> None:
    @task
    def tag(ctx: Context, path: str) -> tuple[int, str]:
        return ctx.job_id, path

    @task
    def note(text: str, ctx: Context | None = None) -> Any:
        return ctx

    assert tag(context(job_id=7), "cat.jpg") == (7, "cat.jpg")
    assert note("x") is None
    assert tag.payload("cat.jpg") == {"path": "cat.jpg"}
    assert tag.parameters.arguments({"path": "cat.jpg"}, 1) == {"path": "cat.jpg", "ctx": 1}
    assert note.parameters.arguments({"text": "x"}, 1) == {"text": "x", "ctx": 1}


VALUES: list[tuple[Any, Any, Any]] = [
    (str, "x", "x"),
    (int, 10**30, 10**30),
    (float, 1, 1),
    (bool, True, True),
    (int | None, None, None),
    (Literal["a", 1], "a", "a"),
    (list[int], [1], [1]),
    (dict[str, list[str]], {"a": ["b"]}, {"a": ["b"]}),
    (Any, {"a": [1.5, None]}, {"a": [1.5, None]}),
    (UserId, UserId(3), 3),
    (Colour, Colour.RED, "red"),
    (Path, Path("/a b"), "/a b"),
    (decimal.Decimal, decimal.Decimal("1.10"), "1.10"),
    (datetime.date, datetime.date(2026, 1, 2), "2026-01-02"),
    (tuple[int, str], (1, "a"), [1, "a"]),
    (frozenset[int], frozenset({1}), [1]),
    (Picture, Picture(Path("a"), datetime.date(2026, 1, 2)), {"path": "a", "taken": "2026-01-02"}),
]


@pytest.mark.parametrize(("annotation", "value", "stored"), VALUES)
def test_a_value_is_stored_as_json_and_comes_back(annotation: Any, value: Any, stored: Any) -> None:
    each = taking(annotation)
    assert each.payload(value) == {"value": stored}
    assert each.parameters.arguments({"value": stored}, None) == {"value": value}
    assert each.parameters.result(value) == stored


BAD: list[tuple[Any, Any, str]] = [
    (str, 1, "f: value must be a string, not 1"),
    (int, True, "f: value must be a whole number, not True"),
    (int | None, "1", "f: value must be a whole number or null, not '1'"),
    (Literal["a", 1], True, "f: value must be 'a' or 1, not True"),
    (list[int], ["1"], r"f: value must be list\[int\], not \['1'\]"),
    (uuid.UUID, "x", "f: value: Input should be a valid UUID"),
    (Picture, {"path": "a"}, r"f: value\['taken'\]: Field required"),
]


@pytest.mark.parametrize(("annotation", "value", "sentence"), BAD)
def test_what_does_not_fit_is_refused_on_both_sides(annotation: Any, value: Any, sentence: str) -> None:
    each = taking(annotation)
    with pytest.raises(InvalidJob, match=sentence):
        each.payload(value)
    with pytest.raises(Mismatch, match=sentence):
        each.parameters.arguments({"value": value}, None)


@dataclasses.dataclass
class Cat:
    name: str


@dataclasses.dataclass
class Dog:
    name: str


@dataclasses.dataclass
class Puppy(Dog):
    age: int = 0


@dataclasses.dataclass(eq=False)
class Incomparable:
    a: datetime.datetime


BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
AUTUMN = datetime.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)  # comes twice
SPRING = datetime.datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN)  # does not come at all


@dataclasses.dataclass(frozen=True)
class Appointment:
    at: datetime.datetime
    note: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True)
class Reminder(Appointment):
    again: bool = False


class Meeting(pydantic.BaseModel):
    times: list[datetime.datetime]
    by: dict[str, Appointment] = {}


class Span(NamedTuple):
    first: datetime.datetime
    last: datetime.datetime


@pytest.mark.parametrize("at", [AUTUMN, AUTUMN.replace(fold=1), SPRING, SPRING.replace(fold=1)], ids=str)
def test_a_time_in_the_hour_in_which_its_zone_changes_is_stored_as_its_instant(at: datetime.datetime) -> None:
    values: list[tuple[Any, Any, Callable[[Any], datetime.datetime]]] = [
        (datetime.datetime, at, lambda back: back),
        (list[datetime.datetime], [at], lambda back: back[0]),
        (Incomparable, Incomparable(at), lambda back: back.a),
        (dict[str, datetime.datetime], {"a": at}, lambda back: back["a"]),
        (dict[datetime.datetime, int], {at: 1}, lambda back: next(iter(back))),
        (Meeting, Meeting(times=[], by={"a": Appointment(at)}), lambda back: back.by["a"].at),
        (Span, Span(at, at), lambda back: back.last),
    ]
    for annotation, value, found in values:
        each = taking(annotation)
        back = each.parameters.arguments(json.loads(json.dumps(each.payload(value))), None)["value"]
        assert type(back) is type(value)
        assert found(back).timestamp() == at.timestamp(), annotation


class Called:
    def __call__(self, x: int) -> None: ...


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("wrong", [functools.partial(len), Called()], ids=["partial", "object"])
def test_what_is_called_like_a_function_but_is_none_gets_one_sentence(wrong: Any, named: bool) -> None:
    with pytest.raises(TypeError, match=r"^@task: .* is not a function; define one with def that calls it$"):
        task("x")(wrong) if named else task(wrong)


LOST: list[tuple[Any, Any, str]] = [
    (Cat | Dog, Dog("rex"), r"would come back from JSON as another value, Cat\(name='rex'\)"),
    (Dog, Puppy("rex", 7), "would come back"),
    (datetime.date | str, datetime.date(2026, 1, 2), "would come back from JSON as another value, '2026-01-02'"),
    (Path | str, Path("a"), "would come back"),
    (pydantic.SecretStr, pydantic.SecretStr("hunter2"), "would come back"),
    (Annotated[int, pydantic.BeforeValidator(lambda value: value + 1)], 5, "would come back"),
    (bytes, b"\xff", "cannot be stored as JSON"),
    (decimal.Decimal, decimal.Decimal("nan"), "f: value"),
    (Iterable[int], [1], "would come back"),
    (datetime.datetime | str, datetime.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN), "would come back"),
    (Appointment, Reminder(AUTUMN), "would come back"),
]


@pytest.mark.parametrize(("annotation", "value", "sentence"), LOST)
def test_what_json_would_change_is_refused(annotation: Any, value: Any, sentence: str) -> None:
    with pytest.raises(InvalidJob, match=sentence):
        taking(annotation).payload(value)


class Group:
    @task("group.method")
    def method(self, x: int) -> None: ...

    @task("group.static")
    @staticmethod
    def static(x: int) -> None: ...


def yields() -> Any:
    yield 1


def only_by_position(ctx: Context, /) -> None: ...


def several(*paths: str) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (Group.method, "is a method"),
        (task("y")(yields), "is a generator"),
        (task("p")(only_by_position), "by their names"),
        (task("s")(several), "stored by their names"),
        (taking(Opaque), "cannot be used"),
    ],
)
def test_what_cannot_be_a_task_is_told(wrong: Any, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        _ = wrong.parameters


def test_a_task_is_pickled_as_its_name() -> None:
    assert pickle.loads(pickle.dumps(Group.static)) is Group.static


def test_attributes_of_the_function_stay_its_own() -> None:
    def f(self: int, x: int) -> None: ...

    f.type = "other"  # type: ignore[attr-defined]
    made: Any = task(f)
    assert made.type == "f"
    assert made.payload(self=1, x=2) == {"self": 1, "x": 2}


def test_a_callers_connection_is_used_in_its_own_thread(queue: Queue, tmp_path: Path) -> None:
    queue.create_tables()
    with contextlib.closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        job = asyncio.run(taking(int).options(queue=queue, connection=connection).aenqueue(1))
        connection.commit()
    assert queue.job(job).type == "f"


def test_a_queue_of_either_kind_serves_both_calls(queue: Queue) -> None:
    f = taking(int)
    for each in (queue, AsyncQueue(queue.url)):
        call = f.options(queue=each)
        ids = [call.enqueue(1), asyncio.run(call.aenqueue(2))]
        assert [queue.job(job).payload for job in ids] == [{"value": 1}, {"value": 2}]
    for wrong in (queue.url, object(), Queue):
        with pytest.raises(TypeError, match=r"^queue must be a Queue or an AsyncQueue, not "):
            f.options(queue=wrong)
    with pytest.raises(TypeError, match="'delya' is not an option; there are "):
        f.options(delya="1s")


def test_the_arguments_must_fit_the_signature() -> None:
    @task
    def f(path: str, width: int = 800) -> None: ...

    for args, kwargs in ((), {}), (("a",), {"pth": 1}), (("a", 1, 2), {}):
        with pytest.raises(InvalidJob, match="f: "):
            f.payload(*args, **kwargs)
    for payload, sentence in (
        ({"width": 1}, "f: the parameter 'path' is missing"),
        ({"path": "a", "height": 1}, "f: the task has no parameter 'height'"),
        ([], "f: the payload is not an object"),
    ):
        with pytest.raises(Mismatch, match=sentence):
            f.parameters.arguments(payload, None)


def test_other_keywords_are_taken_if_the_function_takes_them() -> None:
    @task
    def f(path: str, **others: int) -> None: ...

    with pytest.raises(InvalidJob, match="f: others must be a whole number"):
        f.payload("a", x="b")

    assert f.payload("a", x=1) == {"path": "a", "x": 1}
    assert f.parameters.arguments({"path": "a", "x": 1}, None) == {"path": "a", "x": 1}


@pytest.mark.parametrize("names", ["later", pytest.param("now", marks=SINCE_314)])
def test_only_the_context_may_be_imported_for_type_checkers_alone(names: str) -> None:
    space: dict[str, Any] = {}
    code = (
        "def one(path: str, context: Context) -> None: ...\n"
        "def two(path: Missing) -> str: return path\n"
        "def three(context: Context) -> None: ...\n"
    )
    flags = __future__.annotations.compiler_flag if names == "later" else 0
    exec(compile(code, "tasks.py", "exec", flags, dont_inherit=True), space)
    one, two = task(space["one"]), task(space["two"])
    assert one.payload("a") == {"path": "a"}
    assert one.parameters.arguments({"path": "a"}, 1) == {"path": "a", "context": 1}
    with pytest.raises(TypeError, match="two: the annotation 'Missing' cannot be resolved: name 'Missing' is not"):
        _ = two.parameters
    assert two("a") == "a"  # it can still be called
    with pytest.raises(HandlerError, match="it must take"):
        Handler(space["three"], "handlers:three")


@SINCE_314
def test_a_name_for_type_checkers_hides_no_other_type() -> None:
    space: dict[str, Any] = {"datetime": datetime}
    code = "def one(at: datetime.date, context: Context | None = None) -> None: ...\n"
    exec(compile(code, "tasks.py", "exec", dont_inherit=True), space)
    arguments = task(space["one"]).parameters.arguments({"at": "2026-01-02"}, 1)
    assert arguments == {"at": datetime.date(2026, 1, 2), "context": 1}


def test_a_type_belongs_to_one_function() -> None:
    @task("mail")
    def one() -> None: ...

    with pytest.raises(ValueError, match=r"the type 'mail' belongs to .*one already"):

        @task("mail")
        def other() -> None: ...


def test_unknown_options_of_the_decorator_are_refused() -> None:
    with pytest.raises(TypeError, match="'retries' is not an option"):
        task("a", retries=3)  # type: ignore[call-overload]
    with pytest.raises(InvalidJob, match="is not a valid type"):
        task("a b")(lambda: None)


def test_a_task_is_enqueued_with_its_options(tmp_path: Path) -> None:
    @task("images.resize", priority=5)
    def resize(path: str) -> None: ...

    configure(f"sqlite:///{tmp_path}/app.db")
    queue = tasks.default_queue()
    first = queue.job(resize.enqueue("cat.jpg"))
    assert (first.type, first.payload, first.priority) == ("images.resize", {"path": "cat.jpg"}, 5)
    second = queue.job(resize.options(priority=0, unique_key="k", max_attempts=2, meta={"a": 1}).enqueue("owl.jpg"))
    assert (second.priority, second.unique_key, second.max_attempts, second.meta) == (0, "k", 2, {"a": 1})
    assert resize.options(unique_key="k").enqueue("owl.jpg") == second.id
    assert queue.job(asyncio.run(resize.aenqueue("dog.jpg"))).payload == {"path": "dog.jpg"}
    other = Queue(f"sqlite:///{tmp_path}/other.db")
    assert other.job(resize.options(queue=other).enqueue("cat.jpg")).id == 1


class TestWhichDatabase:
    def test_the_environment_names_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(tasks.VARIABLE, f"sqlite:///{tmp_path}/env.db")
        assert tasks.default_queue().url == f"sqlite:///{tmp_path}/env.db"
        configure(f"sqlite:///{tmp_path}/app.db")
        assert tasks.default_queue().url == f"sqlite:///{tmp_path}/app.db"

    def test_else_the_nearest_configuration(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        inner = tmp_path / "web" / "app"
        inner.mkdir(parents=True)
        monkeypatch.chdir(inner)
        (tmp_path / "supervisor.toml").write_text('database = "sqlite:///data.db"\n')
        assert tasks.default_queue().url == f"sqlite:///{tmp_path}/data.db"
        (tmp_path / "web" / "supervisor.toml").write_text("")
        assert tasks.default_queue().url == f"sqlite:///{tmp_path}/web/jobs.db"

    @pytest.mark.parametrize("text", ["database = 5", "database", 'database = "mysql://x"', "[[database]]"])
    def test_a_bad_one_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "supervisor.toml").write_text(text)
        with pytest.raises(QueueError, match=r"supervisor\.toml: the database's address cannot be read"):
            tasks.default_queue()

    def test_without_any_the_ways_are_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(tasks, "_CONFIGURATION", "no-such-file.toml")
        with pytest.raises(QueueError, match=r"call supervisor.configure\(url\), set \$SUPERVISOR_DATABASE"):
            tasks.default_queue()


def test_a_plain_task_needs_only_the_standard_library(tmp_path: Path) -> None:
    code = """
import sys
already = set(sys.modules)
from supervisor import task
@task
def resize(path: str, sizes: list[int] | None = None) -> dict: ...
resize.enqueue("cat.jpg", sizes=[1])
loaded = {name.partition(".")[0] for name in sys.modules.keys() - already} - sys.stdlib_module_names
print(sorted(name for name in loaded if not name.startswith("_")))
"""
    env = os.environ | {tasks.VARIABLE: f"sqlite:///{tmp_path}/app.db"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert ran.stdout.strip() == "['supervisor']"


def test_due_tasks_run_in_tests(queue: Queue) -> None:
    @task("double")
    def double(number: int) -> int:
        return 2 * number

    @task("later")
    async def later(number: int) -> int:
        await asyncio.sleep(0)
        return number + 1

    double.options(queue=queue).enqueue(4)
    later.options(queue=queue).enqueue(4)
    queue.enqueue("double", {"number": "x"})
    assert [(job.status, job.result, job.last_error) for job in run_due(queue)] == [
        ("done", 8, None),
        ("done", 5, None),
        ("failed", None, "double: number must be a whole number, not 'x'"),
    ]
    other = double.options(queue=queue).enqueue(1)
    assert [job.id for job in run_due(queue, {"double": double})] == [other]

    async def inside() -> None:
        run_due(queue)

    with pytest.raises(RuntimeError, match="call it in a thread"):
        asyncio.run(inside())


def test_tests_follow_the_decorator_and_enqueue_into_the_tested_database(tmp_path: Path) -> None:
    configure(f"sqlite:///{tmp_path}/real.db")
    seen = []

    @task("child")
    def child(number: int) -> None:
        seen.append(number)

    @task("parent", give_up_on=("LookupError",), max_attempts=2)
    def parent(number: int) -> None:
        child.enqueue(number)
        raise KeyError(number)

    queue = Queue(f"sqlite:///{tmp_path}/test.db")
    parent.options(queue=queue).enqueue(4)
    first = run_due(queue)
    assert [(job.type, job.status, job.attempts) for job in first] == [("parent", "failed", 1), ("child", "done", 1)]
    assert seen == [4]
    assert not (tmp_path / "real.db").exists()


def test_a_task_is_not_a_handler() -> None:
    @task
    def one() -> None: ...

    with pytest.raises(HandlerError, match=r"jobs:one: it is a task; write tasks = \['jobs'\]"):
        Handler(one, "jobs:one")
