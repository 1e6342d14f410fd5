"""Load the libraries of an extra, with one clear sentence if they are missing."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from pathlib import Path
from typing import Any


class MissingExtraError(ImportError):
    """A library of an optional extra is not installed; the message names the extra to install."""


def require(module: str, *, extra: str) -> Any:
    """Import `module`, which is installed by `pip install './job-supervisor[extra]'`.

    Raises MissingExtraError if its distribution is not installed. A library that is installed but broken
    raises its own error, which is more helpful than ours.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise _missing(package, extra) from None


def check(*packages: str, extra: str) -> None:
    """Raises MissingExtraError if one of these packages is not installed. None of them is imported."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise _missing(package, extra)


def bundled(package: str, path: str, *, sha256: str, extra: str) -> Path:
    """The file `path` in an installed package, which is not imported: for packages that carry a model.

    Raises MissingExtraError if the package is not installed, and RuntimeError if the file is not the one that this
    handler was written for and tested with.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise _missing(package, extra)
    found = Path(spec.origin).parent / path
    try:
        with found.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        digest = ""
    if digest != sha256:
        raise RuntimeError(
            f"{package} has another {path} than this handler was written for: pip install './job-supervisor[{extra}]'"
        )
    return found


def _missing(package: str, extra: str) -> MissingExtraError:
    return MissingExtraError(
        f"this handler needs {package}, which is not installed: pip install './job-supervisor[{extra}]'",
        name=package,
    )
