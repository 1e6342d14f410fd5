"""TCP connections of a process, as the kernel lists them."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from supervisor.system import kernel

_SOCKET = re.compile(r"socket:\[(\d+)\]")
_LOCAL, _INODE = 1, 9  # columns


def local_ends(pid: int) -> set[tuple[str, int]]:
    """(address, port) of this side of each TCP connection that a process or a descendant of it holds open."""
    found = set()
    for member in kernel.family(pid):
        inodes = _inodes(member)
        if inodes:
            found |= {end for inode, end in _connections(member) if inode in inodes}
    return found


def _inodes(pid: int) -> set[str]:
    folder, found = Path(f"/proc/{pid}/fd"), set()
    with contextlib.suppress(OSError):
        for name in list(folder.iterdir()):
            with contextlib.suppress(OSError):  # closed meanwhile
                if match := _SOCKET.fullmatch(os.readlink(name)):  # noqa: PTH115 - the name of no file
                    found.add(match[1])
    return found


def _connections(pid: int) -> Iterator[tuple[str, tuple[str, int]]]:
    """(inode, its local end) of all in the network namespace of a process."""
    for kind in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
                words = line.split()
                address, _, port = words[_LOCAL].partition(":")
                yield words[_INODE], (_address(bytes.fromhex(address)), int(port, 16))


def _address(raw: bytes) -> str:
    """Written in words of four bytes, each in the machine's order."""
    words = [int.from_bytes(raw[at : at + 4], "big").to_bytes(4, sys.byteorder) for at in range(0, len(raw), 4)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
