"""`[admin]` and `[spool]`: where the admin process listens, its tokens, and the files that it takes."""

from __future__ import annotations

import importlib.util
import ipaddress
from pathlib import Path

from supervisor.config.problems import Report
from supervisor.config.settings import AdminSettings, Settings, SpoolSettings
from supervisor.config.shape import AdminTable, SpoolTable
from supervisor.config.values import Checked, checked
from supervisor.domain.text import human_size

NEEDED = ("fastapi", "jinja2", "prometheus_client", "uvicorn")
"""The modules of the extra `admin`."""

LONGEST_PATH = 107  # bytes: the kernel's limit for the path of a socket

AT = ("admin",)


def admin(raw: object, folder: Path, report: Report) -> AdminSettings | None:
    """The settings of `[admin]`; None without the table. Relative paths start at `folder`, the file's own."""
    if raw is None:
        return None
    table = checked(AdminTable, raw, AT, report)
    values = AdminTable(table.values)
    settings = AdminSettings(
        listen=f"unix:{folder / values.listen[5:]}" if values.listen.startswith("unix:") else values.listen,
        token_file=None if values.token_file is None else folder / values.token_file,
        read_token_file=None if values.read_token_file is None else folder / values.read_token_file,
        hosts=tuple(values.hosts),
        show_payloads=values.show_payloads,
        allow_remote=values.allow_remote,
    )
    _report_socket(settings, report)
    _report_remote(settings, table, report)
    _report_tokens(settings, report)
    return settings


def _report_socket(settings: AdminSettings, report: Report) -> None:
    path = settings.unix_path
    if path is not None and len(str(path).encode()) > LONGEST_PATH:
        report.add((*AT, "listen"), f"the path of the socket is longer than {LONGEST_PATH} bytes: {path}")


def _report_remote(settings: AdminSettings, table: Checked, report: Report) -> None:
    """Opening it to other machines must be explicit: all traffic, including the token, can be read on the network."""
    if settings.address is None or settings.allow_remote or "allow_remote" in table.faulty:
        return
    if not ipaddress.ip_address(settings.address[0]).is_loopback:
        report.add(
            (*AT, "listen"),
            f"{settings.listen} can be reached from other machines, unencrypted; "
            "put a reverse proxy before 127.0.0.1, or set allow_remote = true",
        )


def _report_tokens(settings: AdminSettings, report: Report) -> None:
    if settings.read_token_file is None:
        return
    if settings.unix_path is not None and settings.token_file is None:
        report.add(
            (*AT, "read_token_file"),
            "without token_file, requests on the Unix socket need no token; set both or neither",
        )
    if settings.read_token_file == settings.token_file:
        report.add((*AT, "read_token_file"), "it is the same file as token_file; read-only access needs another file")


def report_uninstalled(settings: Settings, report: Report) -> None:
    """Report that the extra is missing, for commands that are about to run it."""
    if settings.admin is None:
        return
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        report.add(AT, f"it needs {', '.join(missing)}: pip install './job-supervisor[admin]'")


SPOOL = ("spool",)


def spool(raw: object, folder: Path, report: Report) -> SpoolSettings:
    """Relative paths start at `folder`, that of the file."""
    values = SpoolTable(checked(SpoolTable, {} if raw is None else raw, SPOOL, report).values)
    if values.max_file > values.max_total:
        whole = human_size(values.max_total)
        report.add((*SPOOL, "max_file"), f"{human_size(values.max_file)} is more than max_total, which is {whole}")
    own = None if values.folder is None else folder / values.folder
    return SpoolSettings(own, values.max_file, values.max_total, values.done)
