"""The release before this one, as its users have it: the wheel of the commit in the file beside this one."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

_REPOSITORY = Path(__file__).parent.parent
_PATIENCE = 300.0  # seconds


class NoPreviousRelease(Exception):
    """It cannot be had; says why."""


def unpacked(cache: Path) -> Path:
    """A folder for PYTHONPATH. It is made once and kept in the cache. Raises NoPreviousRelease."""
    commit = Path(__file__).with_name("previous_release").read_text().strip()
    folder = cache / commit
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                _build(commit, Path(scratch)).rename(folder)
    return folder


def _build(commit: str, scratch: Path) -> Path:
    source, wheels, target = scratch / "source", scratch / "wheels", scratch / "unpacked"
    source.mkdir()
    archive = scratch / "source.tar"
    _run("git", "-C", str(_REPOSITORY), "archive", f"--output={archive}", commit)
    _run("tar", "--extract", f"--file={archive}", f"--directory={source}")
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={wheels}", str(source))
    [wheel] = wheels.iterdir()
    with zipfile.ZipFile(wheel) as zipped:
        zipped.extractall(target)
    return target


def _run(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_PATIENCE, env=_environment(), check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoPreviousRelease(f"the previous release is not built: {error}") from None
    if done.returncode:
        raise NoPreviousRelease(f"the previous release is not built: {done.stderr.strip()[-500:]}")


def _environment() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
