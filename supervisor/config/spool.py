"""`[spool]`: where the files of requests lie, and how many of them."""

from __future__ import annotations

from pathlib import Path

from supervisor.config.checking import checked
from supervisor.config.problems import Report
from supervisor.config.settings import SpoolSettings
from supervisor.config.shape import SpoolTable
from supervisor.domain.text import human_size

AT = ("spool",)


def spool(raw: object, folder: Path, report: Report) -> SpoolSettings:
    """Relative paths start at `folder`, that of the file."""
    values = SpoolTable(checked(SpoolTable, {} if raw is None else raw, AT, report).values)
    if values.max_file > values.max_total:
        whole = human_size(values.max_total)
        report.add((*AT, "max_file"), f"{human_size(values.max_file)} is more than max_total, which is {whole}")
    own = None if values.folder is None else folder / values.folder
    return SpoolSettings(own, values.max_file, values.max_total, values.done)
