"""Load the libraries of an extra, with one clear sentence if they are missing."""

from __future__ import annotations

import importlib
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
        raise MissingExtraError(
            f"this handler needs {package}, which is not installed: pip install './job-supervisor[{extra}]'",
            name=package,
        ) from None
