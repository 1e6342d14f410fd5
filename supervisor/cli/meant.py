"""What is meant by words that are no commands or options here, but are elsewhere."""

from __future__ import annotations

import re

_UNKNOWN = re.compile(r"No such (?:command '([^']*)'|option: (\S+))")
_COMMANDS = {
    "supervisor run": "start serve work worker consume up beat cron",
    "to stop a supervisor, press Ctrl-C or send it SIGTERM": "stop shutdown quit kill",
    "supervisor status": "ps workers worker-list pools queues stats info inspect health ping",
    "supervisor reload": "restart",
    "supervisor enqueue TYPE [JSON]": "add push put submit send call delay",
    "supervisor resume TYPE": "unpause continue",
    "supervisor purge --older-than 7d": "clean cleanup prune flush",
    "supervisor migrate": "upgrade initdb",
    "supervisor check": "validate config",
    "supervisor jobs list": "list ls",
    "supervisor jobs show ID": "show",
    "supervisor logs ID": "log tail output",
    "supervisor jobs retry ID": "retry requeue rerun",
    "supervisor jobs cancel ID": "cancel abort revoke",
    "supervisor jobs delete ID": "delete rm remove",
}
_OF_JOBS = {
    "supervisor jobs list": "ls ps",
    "supervisor logs ID": "log logs tail output",
    "supervisor jobs cancel ID": "stop kill abort revoke",
    "supervisor enqueue TYPE [JSON]": "add push put submit send enqueue",
    "supervisor purge --older-than 7d": "purge clean prune",
}
_OPTIONS = {
    "`workers = 4` in the pool's table, or `supervisor scale POOL 4`": "--workers --concurrency",
    "--max-attempts N": "--retry --retries",
}


def meant(message: str, command: str) -> tuple[str, str] | None:
    """(what is unknown, what is probably meant), from a message of the parser of that command; None if unknown."""
    found = _UNKNOWN.match(message)
    if found is None:
        return None
    word = found[1] or found[2]
    tables = [_OPTIONS] if found[2] else [_OF_JOBS, _COMMANDS] if command.endswith(" jobs") else [_COMMANDS]
    hints = [hint for table in tables for hint, words in table.items() if word in words.split()]
    return (found[0], hints[0]) if hints else None
