"""Libraries that stand between a program and the C library, built from the C files beside this one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def preload(name: str, folder: Path) -> dict[str, str]:
    """Build `name`.c into a folder; returns the environment that has a program load it first."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("a C compiler is needed: gcc, as Debian's package of that name has it")
    library = folder / f"{name}.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, _HERE / f"{name}.c", "-ldl"],
        check=True,
        timeout=60,
    )
    return {"LD_PRELOAD": str(library)}
