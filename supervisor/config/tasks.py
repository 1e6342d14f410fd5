"""The tasks of modules, found by reading their source: the supervisor must know their types, and imports no handler."""

from __future__ import annotations

import ast
import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.domain.errors import InvalidJob
from supervisor.domain.intake import checked_type

_WORD = re.compile(r"\w+")


class Taken(NamedTuple):
    """The names of a task's parameters: those that a payload must have, and all; None: it takes any other, too."""

    required: frozenset[str]
    known: frozenset[str] | None


class Declared(NamedTuple):
    """A task as its source declares it. `where` is `file:line`; `options` are those of the decorator. `parameters` is
    None if another decorator may change them.
    """

    type: str
    where: str
    options: Mapping[str, Any]
    parameters: Taken | None


class Unreadable(ValueError):
    """The tasks of a module cannot be found out. The message is one sentence."""


def of_module(module: str, folder: Path) -> list[Declared]:
    """The tasks of a module, or of all modules of a package, without importing them; `folder` is searched first.

    Raises Unreadable.
    """
    return [task for tasks in by_module(module, folder).values() for task in tasks]


def by_module(module: str, folder: Path) -> dict[str, list[Declared]]:
    """The same by the names of the modules that a worker has to import: the named one, and those with tasks in it."""
    found = {name: list(_of_file(file)) for name, file in files(module, folder)}
    return {name: tasks for name, tasks in found.items() if tasks or name == module}


def files(module: str, folder: Path) -> list[tuple[str, Path]]:
    """The name and the source file of a module; for a package, of all modules in it. Raises Unreadable."""
    places = [Path(entry) for entry in (str(folder), *sys.path) if entry]
    for part in module.split("."):
        file, places = _step(part, places)
    if file is not None:
        return [(module, file)]
    if not places:
        raise Unreadable(f"there is no module {module!r} (looked in {folder} first)")
    found: dict[str, Path] = {}
    for place in places:
        for each in sorted(place.rglob("*.py")):
            inner = each.relative_to(place).with_suffix("").parts
            if all(part.isidentifier() for part in inner) and inner[-1] != "__main__" and each.is_file():
                name = ".".join((module, *(inner[:-1] if inner[-1] == "__init__" else inner)))
                found.setdefault(name, each)
    return list(found.items())


def _step(part: str, places: Sequence[Path]) -> tuple[Path | None, list[Path]]:
    """Where a name leads from these folders, as Python's import does: to a file, or to the folders in which to go on,
    one of a package or several of a namespace.
    """
    spaces = []
    for place in places:
        package = place / part
        if (package / "__init__.py").is_file():
            return None, [package]
        if (file := place / f"{part}.py").is_file():
            return file, []
        if package.is_dir():
            spaces.append(package)
    return None, spaces


def _of_file(file: Path) -> Iterator[Declared]:
    shown = str(file)
    with contextlib.suppress(OSError, ValueError):  # the current folder may be deleted
        shown = str(file.relative_to(Path.cwd()))
    try:
        source = file.read_bytes()
        if b"task" not in source:
            return  # quicker, and such a file may be broken
        tree = ast.parse(source, shown)
    except SyntaxError as error:
        raise Unreadable(f"{shown}:{error.lineno or 1}: {error.msg}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise Unreadable(f"{shown}: it cannot be read: {error}") from None
    names = _Names(tree)
    for function in _functions(tree):
        for decorator in function.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            if names.is_task(call.func if call else decorator):
                yield _declared(function, call, f"{shown}:{function.lineno}", names.parameters(function))


def _declared(
    function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call | None, where: str, parameters: Taken | None
) -> Declared:
    type_: Any = None
    options = {}
    if call is not None:
        if call.args:
            type_ = _literal(call.args[0], "the type", where)
        for keyword in call.keywords:
            if keyword.arg is None:
                raise Unreadable(f"{where}: @task(**…) cannot be read; write the options one by one")
            options[keyword.arg] = _literal(keyword.value, keyword.arg, where)
    try:
        found = checked_type(function.name if type_ is None else type_)
    except InvalidJob as error:
        raise Unreadable(f"{where}: {error.problem}") from None
    return Declared(found, where, {name: v for name, v in options.items() if v is not None}, parameters)


def _literal(node: ast.expr, what: str, where: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        raise Unreadable(
            f"{where}: {what} of @task must be a literal, because it is read without importing the module"
        ) from None


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Those of the module and of its classes, also inside `if` and `try`; not those inside functions."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node
            elif isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case)):
                waiting.append(node)


class _Names:
    """Under which names a module knows `supervisor.task`, and perhaps `supervisor.Context`."""

    def __init__(self, tree: ast.Module) -> None:
        self._functions: set[str] = set()
        self._modules: set[str] = set()
        self._contexts = {"Context", "BatchContext"}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                self._contexts |= _aliases(node.names, "Context")
            elif isinstance(node, ast.Assign) and self._names_context(node.value):
                self._contexts |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            if isinstance(node, ast.ImportFrom) and node.module in ("supervisor", "supervisor.tasks"):
                self._functions |= _aliases(node.names, "task")
            elif isinstance(node, ast.Import):
                self._modules |= _aliases(node.names, "supervisor")
                self._modules |= {
                    alias.asname for alias in node.names if alias.name == "supervisor.tasks" and alias.asname
                }

    def is_task(self, decorator: ast.expr) -> bool:
        if isinstance(decorator, ast.Name):
            return decorator.id in self._functions
        return (
            isinstance(decorator, ast.Attribute)
            and decorator.attr == "task"
            and isinstance(decorator.value, ast.Name)
            and decorator.value.id in self._modules
        )

    def parameters(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Taken | None:
        """A parameter that may be the run's context is not required, and may be in a payload: it may be another's."""
        for decorator in function.decorator_list:
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            if not self.is_task(target) and not (isinstance(target, ast.Name) and target.id == "staticmethod"):
                return None
        given = function.args
        if given.posonlyargs or given.vararg:
            return None  # refused where it is imported
        plain = given.args[: len(given.args) - len(given.defaults)]
        plain += [one for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
        known = frozenset(one.arg for one in (*given.args, *given.kwonlyargs))
        required = frozenset(one.arg for one in plain if not self._may_be_context(one))
        return Taken(required, None if given.kwarg else known)

    def _may_be_context(self, parameter: ast.arg) -> bool:
        return parameter.arg == "ctx" or (
            parameter.annotation is not None and self._names_context(parameter.annotation)
        )

    def _names_context(self, node: ast.expr) -> bool:
        return not self._contexts.isdisjoint(_WORD.findall(ast.unparse(node)))


def _aliases(names: Iterable[ast.alias], wanted: str) -> set[str]:
    return {alias.asname or alias.name for alias in names if alias.name == wanted}
