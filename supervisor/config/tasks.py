"""The tasks of modules, found by reading their source: the supervisor must know their types, and imports no handler."""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.domain.errors import InvalidJob
from supervisor.domain.values import checked_type


class Declared(NamedTuple):
    """A task as its source declares it. `where` is `file:line`; `options` are those of the decorator."""

    type: str
    where: str
    options: Mapping[str, Any]


class Unreadable(ValueError):
    """The tasks of a module cannot be found out. The message is one sentence."""


def of_module(module: str, folder: Path, path: Sequence[Path] = ()) -> list[Declared]:
    """The tasks of a module, or of all modules of a package, without importing them; `path` is searched first, then the
    configuration's `folder`, then sys.path. Raises Unreadable.
    """
    return [task for tasks in by_module(module, folder, path).values() for task in tasks]


def by_module(module: str, folder: Path, path: Sequence[Path] = ()) -> dict[str, list[Declared]]:
    """The same by the names of the modules that a worker has to import: the named one, and those with tasks in it."""
    found = {name: list(_of_file(file)) for name, file in _files(module, folder, path)}
    return {name: tasks for name, tasks in found.items() if tasks or name == module}


def _files(module: str, folder: Path, path: Sequence[Path]) -> list[tuple[str, Path]]:
    """The name and the source file of a module; for a package, of all modules in it. Raises Unreadable."""
    entries = [str(entry) for entry in (*path, folder, *sys.path) if entry]
    _invalidate_caches()
    try:
        spec = _spec(module, entries)
    except Exception as error:  # of a finder that a library has added
        raise Unreadable(f"looking for the module {module!r} failed: {error!r}") from None
    if spec is None:
        raise Unreadable(f"there is no module {module!r} (looked in {entries[0]} first)")
    if spec.submodule_search_locations is None:
        if spec.origin is None or not spec.origin.endswith(".py"):
            raise Unreadable(f"the module {module!r} has no Python source")
        return [(module, Path(spec.origin))]
    found: dict[str, Path] = {}
    for place in map(Path, spec.submodule_search_locations):
        for each in sorted(place.rglob("*.py")):
            inner = each.relative_to(place).with_suffix("").parts
            if all(part.isidentifier() for part in inner) and inner[-1] != "__main__" and each.is_file():
                name = ".".join((module, *(inner[:-1] if inner[-1] == "__init__" else inner)))
                found.setdefault(name, each)
    return list(found.items())


def _invalidate_caches() -> None:
    """A file may be new, or a folder. importlib's own function also loads importlib.metadata, from Python 3.12 on."""
    for entry, finder in list(sys.path_importer_cache.items()):
        if finder is None:
            del sys.path_importer_cache[entry]
        elif hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()


def _spec(module: str, entries: Sequence[str]) -> ModuleSpec | None:
    """What Python's import would find if sys.path were `entries`. importlib.util.find_spec would import the parent."""
    parent, _, name = module.rpartition(".")
    places = list(entries)
    if parent:
        above = _spec(parent, entries)
        if above is None or above.submodule_search_locations is None:
            return None
        places = list(above.submodule_search_locations)
    for finder in sys.meta_path:
        if finder is PathFinder:
            found = PathFinder.find_spec(name, places)  # a namespace inside a package would need that to be imported
        else:  # such as that of packages that are installed editable
            found = finder.find_spec(module, places if parent else None)
        if found is not None:
            return found
    return None


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
    names = _names_of_task(tree)
    for function in _functions(tree):
        for decorator in function.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            if ast.unparse(call.func if call else decorator) in names:
                yield _declared(function, call, f"{shown}:{function.lineno}")


def _declared(function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call | None, where: str) -> Declared:
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
    return Declared(found, where, {name: v for name, v in options.items() if v is not None})


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


def _names_of_task(tree: ast.Module) -> set[str]:
    """Under which names a module knows `supervisor.task`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.ImportFrom, ast.Import)):
            origin = getattr(node, "module", None)
            for alias in node.names:
                here = alias.asname or alias.name
                if origin is None and alias.name in ("supervisor", "supervisor.tasks"):
                    found.add(f"{here}.task")
                elif alias.name == "task" and origin in ("supervisor", "supervisor.tasks"):
                    found.add(here)
    return found
