"""The systemd unit that runs this configuration, if any: whether it has the settings a supervisor needs."""

from __future__ import annotations

import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from supervisor.config.settings import Settings
from supervisor.domain.text import human
from supervisor.ops.diagnosis import Finding, fault, good, note, warning

FOLDERS = tuple(Path(name) for name in ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system"))
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(us|usec|ms|msec|min|m|s|sec|h|hr|d)?")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MARGIN = 5.0  # seconds beyond the longest shutdown_grace

Service = Mapping[str, str]


def service(settings: Settings, folders: tuple[Path, ...] = FOLDERS) -> list[Finding]:
    """No findings if no unit runs this configuration."""
    found: list[Finding] = []
    for unit in _units(folders):
        keys = read(unit, folders)
        if _is_ours(keys, settings):
            problems = [*_ending(keys, settings), *_keys(keys), *_writing(keys, settings)]
            found += [replace(problem, fact=f"{unit.name}: {problem.fact}") for problem in problems] or [
                good("systemd", f"{unit} fits this configuration")
            ]
    return found


def _units(folders: tuple[Path, ...]) -> Iterable[Path]:
    """One file for each name: an earlier folder takes precedence."""
    return {unit.name: unit for folder in reversed(folders) for unit in sorted(folder.glob("*.service"))}.values()


def read(unit: Path, folders: tuple[Path, ...]) -> Service:
    """The keys of [Service], including drop-ins: the last value counts, lists are joined by spaces."""
    values: dict[str, list[str]] = defaultdict(list)
    drop_ins = {path.name: path for folder in reversed(folders) for path in (folder / f"{unit.name}.d").glob("*.conf")}
    for path in (unit, *(drop_ins[name] for name in sorted(drop_ins))):
        section = ""
        for line in _lines(path):
            if line.startswith("["):
                section = line
            elif section == "[Service]" and "=" in line:
                key, _, value = line.partition("=")
                if not value.strip():
                    values.pop(key.strip(), None)  # an empty value resets the list
                else:
                    values[key.strip()].append(value.strip())
    return {
        key: " ".join(found) if key in ("ReadWritePaths", "ExecStart") else found[-1] for key, found in values.items()
    }


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    lines = (line.strip() for line in text.replace("\\\n", " ").splitlines())
    return [line for line in lines if line and line[0] not in "#;"]


def _is_ours(keys: Service, settings: Settings) -> bool:
    """Whether it runs `supervisor run` with this configuration file."""
    try:
        words = shlex.split(keys.get("ExecStart", ""))
    except ValueError:
        return False
    if not words or Path(words[0].lstrip("@-:+!")).name != "supervisor" or "run" not in words:
        return False
    folder = Path(keys.get("WorkingDirectory", "/").lstrip("-"))
    given = "supervisor.toml"
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in ("-c", "--config"):
            given = following
        elif word.startswith("--config="):
            given = word.partition("=")[2]
    return os.path.realpath(folder / given) == os.path.realpath(settings.path)


def _ending(keys: Service, settings: Settings) -> Iterator[Finding]:
    grace = max((pool.shutdown_grace for pool in settings.pools.values()), default=0.0)
    allowed = seconds(keys.get("TimeoutStopSec", keys.get("TimeoutSec", "90")))
    if allowed < grace + _MARGIN:
        yield fault(
            "systemd",
            f"TimeoutStopSec is {human(allowed)}, but running jobs may take {human(grace)} (shutdown_grace)",
            f"TimeoutStopSec={grace + 15:g}, or a shorter shutdown_grace",
        )


def _keys(keys: Service) -> Iterator[Finding]:
    """The keys of which one value is right, or one is wrong."""
    kill, kind = keys.get("KillMode", "control-group"), keys.get("Type", "simple")
    if kill != "mixed":
        fact = f"KillMode is {kill}, so a stop also signals programs started by handlers"
        yield warning("systemd", fact, "KillMode=mixed: only the supervisor gets SIGTERM, and it drains its workers")
    if keys.get("OOMPolicy", "stop") != "continue":
        what = "if the kernel kills one worker for lack of memory, the whole service ends"
        yield warning("systemd", f"OOMPolicy is not continue: {what}", "OOMPolicy=continue")
    if keys.get("RuntimeDirectory") and keys.get("RuntimeDirectoryPreserve", "no") == "no":
        what = "after a kill the next start cannot tell which jobs had started"
        fact = f"RuntimeDirectoryPreserve is not set, so {what}"
        yield warning("systemd", fact, "RuntimeDirectoryPreserve=yes")
    if keys.get("Restart", "no") == "no":
        yield warning("systemd", "Restart is not set: a supervisor that dies is not restarted", "Restart=always")
    if kind != "notify":
        advice = "Type=notify: the supervisor reports when it is ready and, with WatchdogSec=, that it is alive"
        yield note("systemd", f"Type is {kind}", advice)
    if keys.get("ProcSubset") == "pid":
        advice = "remove it: supervisors compare /proc/sys/kernel/random/boot_id"
        yield fault("systemd", "ProcSubset=pid hides a file that recovery needs", advice)


def _writing(keys: Service, settings: Settings) -> Iterator[Finding]:
    """Whether the database's folder is writable under ProtectSystem=strict."""
    folder = Path(settings.database.partition("///")[2]).parent
    if keys.get("ProtectSystem") != "strict" or not settings.database.startswith("sqlite:"):
        return
    writable = [Path(word.lstrip("-+")) for word in keys.get("ReadWritePaths", "").split()]
    if not any(folder == path or path in folder.parents for path in writable):
        yield fault(
            "systemd",
            f"the service cannot write in {folder}, the database's folder",
            f"ReadWritePaths={folder}",
        )


def seconds(text: str) -> float:
    """A time span in systemd's format: `45`, `1min 30s`, `infinity`. Raises nothing; unknown text counts as 0."""
    if text.strip() == "infinity":
        return float("inf")
    total = 0.0
    for number, unit in _SPAN.findall(text):
        total += float(number) * _SECONDS.get(unit.replace("sec", "").replace("in", "").replace("hr", "h"), 1.0)
    return total
