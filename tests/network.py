"""A network namespace that a test can cut off from this machine: what is sent is lost, and nobody is told.

It needs root and `ip`; where there is none, the test says so and is skipped.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from typing import Any

import pytest


class Island:
    """Processes in it reach this machine at `home`, until they are cut off. Use it as a context manager."""

    def __init__(self) -> None:
        number = random.randrange(1 << 14)
        self.name = f"island{number}"
        subnet = f"10.{200 + number // (1 << 12)}.{number // 16 % 256}"
        self.home, self._away = (f"{subnet}.{number % 16 * 4 + host}" for host in (1, 2))
        self._here, self._there = f"isl{number}a", f"isl{number}b"
        self.program = ("ip", "netns", "exec", self.name)  # before a command that is to run in it

    def __enter__(self) -> Island:
        if shutil.which("ip") is None:
            pytest.skip("a network namespace of one's own is needed: there is no program ip")
        made = _ip("netns", "add", self.name, check=False)
        if made.returncode:
            pytest.skip(f"a network namespace of one's own is needed (root has one): {made.stderr.strip()}")
        linked = _ip("link", "add", self._here, "type", "veth", "peer", "name", self._there, check=False)
        if linked.returncode:
            self.__exit__()
            pytest.skip(f"a pair of network devices is needed: {linked.stderr.strip()}")
        _ip("link", "set", self._there, "netns", self.name)
        _ip("addr", "add", f"{self.home}/30", "dev", self._here)
        _ip("link", "set", self._here, "up")
        for words in (("addr", "add", f"{self._away}/30", "dev", self._there), ("link", "set", self._there, "up")):
            _ip("-n", self.name, *words)
        _ip("-n", self.name, "link", "set", "lo", "up")
        self.heal()
        return self

    def __exit__(self, *_: object) -> None:
        _ip("link", "del", self._here, check=False)
        _ip("netns", "del", self.name, check=False)

    def cut(self, *, to_home: bool = True, to_island: bool = True) -> None:
        """Lose everything in these directions: it is sent to an address that nobody has."""
        self._send_to("02:00:00:00:00:99" if to_home else None, "02:00:00:00:00:99" if to_island else None)

    def heal(self) -> None:
        self._send_to(None, None)

    def _send_to(self, to_home: str | None, to_island: str | None) -> None:
        """The hardware address to which each side sends; None: the right one."""
        here, there = to_island or self._address(self._there, self.name), to_home or self._address(self._here)
        permanent = ("nud", "permanent")
        _ip("neigh", "replace", self._away, "lladdr", here, "dev", self._here, *permanent)
        _ip("-n", self.name, "neigh", "replace", self.home, "lladdr", there, "dev", self._there, *permanent)

    def _address(self, device: str, namespace: str = "") -> str:
        words = ("-n", namespace) if namespace else ()
        return _ip(*words, "-brief", "link", "show", device).stdout.split()[2]


def _ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[Any]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=check)
