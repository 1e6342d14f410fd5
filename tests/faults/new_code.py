"""New code in a site's module `jobs`, and what `reload` and `status` say of it."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

from tests.site_under_test import Site


def write_code(site: Site, text: str) -> None:
    (site.folder / "jobs.py").write_text(text)
    # Python takes compiled code for current while the source has the same size and was written in the same second.
    shutil.rmtree(site.folder / "__pycache__", ignore_errors=True)


def reload(site: Site, *more: str) -> subprocess.CompletedProcess[str]:
    """It ends with 1 if the new code was not accepted."""
    return site.command("reload", *more, code=None)


def shown(site: Site, name: str) -> dict[str, Any]:
    """What `status` says of a pool."""
    return next(pool for pool in json.loads(site.command("status", "--json").stdout)["pools"] if pool["name"] == name)


def answer(site: Site, kind: str) -> Any:
    """The result of a job of this type, which succeeds."""
    return site.done(site.queue.enqueue(kind, {})).result
