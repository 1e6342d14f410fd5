"""A file system that the kernel calls `fuse.sshfs`: a folder of the local disk, served by a process of our own.

What matters to the program under test is the kernel's word for it, and that files on it work. Run as
`network_disk.py DESCRIPTOR FOLDER` with an open /dev/fuse; the messages are those of <linux/fuse.h>.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.surroundings import mount, private_mounts

_LARGEST = 128 * 1024  # bytes of one write
_BIG_WRITES = 1 << 5
_FOR_A_SECOND = (1, 1, 0, 0)  # how long the kernel may believe what it is told


@contextlib.contextmanager
def network_disk(folder: Path) -> Iterator[Path]:
    """A mount for this thread and its processes; what is written there lies in a folder beside it."""
    backing = folder.with_name(f"{folder.name}-backing")
    backing.mkdir()
    folder.mkdir()
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"/dev/fuse is needed: {error.strerror}")
    command = [sys.executable, "-m", "tests.faults.network_disk", str(device), str(backing)]
    with private_mounts(), subprocess.Popen(command, pass_fds=(device,)) as server:
        try:
            try:
                mount("far:/away", folder, "fuse.sshfs", 0, f"fd={device},rootmode=40000,user_id=0,group_id=0")
            finally:
                # The server's alone: should it die, the kernel fails every call at once. As long as anybody
                # held another, they would wait for an answer, out of reach of every signal but KILL.
                os.close(device)
            yield folder
        finally:
            server.kill()


class Passthrough:
    """Answers the kernel from a folder. A node is a path, a handle is a descriptor."""

    def __init__(self, folder: Path) -> None:
        self._paths = {1: folder}
        self._listings: dict[int, list[tuple[int, str]]] = {}
        self._answers: dict[int, Callable[[int, bytes], bytes]] = {
            1: lambda node, data: self._entry(self._below(node, data)),
            3: self._getattr,
            4: self._setattr,
            9: self._mkdir,
            10: lambda node, data: self._below(node, data).unlink() or b"",
            11: lambda node, data: self._below(node, data).rmdir() or b"",
            12: lambda node, data: self._rename(node, data, 8),
            14: lambda node, data: self._opened(os.open(self._paths[node], _flags(data))),
            15: self._read,
            16: self._write,
            17: self._statfs,
            18: lambda node, data: os.close(*struct.unpack_from("Q", data)) or b"",
            20: lambda node, data: os.fsync(*struct.unpack_from("Q", data)) or b"",
            25: lambda node, data: b"",
            27: self._opendir,
            28: self._readdir,
            29: lambda node, data: b"",
            35: self._create,
            43: self._fallocate,
            45: lambda node, data: self._rename(node, data, 16),
        }

    def serve(self, device: int) -> None:
        """Until the mount is gone."""
        while True:
            try:
                request = os.read(device, _LARGEST + 4096)
            except OSError:
                return
            length, opcode, unique, node = struct.unpack_from("IIQQ", request)
            if opcode in (2, 36, 42):  # forget, interrupt: nobody waits for an answer
                continue
            error, answer = 0, b""
            try:
                answer = self._hello() if opcode == 26 else self._answers[opcode](node, request[40:length])
            except KeyError:
                error = errno.ENOSYS
            except OSError as failure:
                error = failure.errno or errno.EIO
            with contextlib.suppress(OSError):
                os.write(device, struct.pack("IiQ", 16 + len(answer), -error, unique) + answer)

    def _hello(self) -> bytes:
        return struct.pack("4I2HII2H8I", 7, 31, _LARGEST, _BIG_WRITES, 12, 9, _LARGEST, 1, 32, 0, *[0] * 8)

    def _below(self, node: int, name: bytes) -> Path:
        return self._paths[node] / os.fsdecode(name.split(b"\0")[0])

    def _entry(self, path: Path) -> bytes:
        status = path.lstat()
        node = 1 if path == self._paths[1] else status.st_ino + 1
        self._paths[node] = path
        return struct.pack("4Q2I", node, 0, *_FOR_A_SECOND) + _attributes(status)

    def _getattr(self, node: int, data: bytes) -> bytes:
        return struct.pack("Q2I", 1, 0, 0) + _attributes(self._paths[node].lstat())

    def _setattr(self, node: int, data: bytes) -> bytes:
        fields = struct.unpack_from("IIQQ", data)
        mode, _, user, group = struct.unpack_from("4I", data, 68)
        path = self._paths[node]
        if fields[0] & 1:
            path.chmod(mode & 0o7777)
        if fields[0] & 6:
            os.chown(path, user if fields[0] & 2 else -1, group if fields[0] & 4 else -1)
        if fields[0] & 8:
            os.truncate(path, fields[3])
        return self._getattr(node, data)

    def _mkdir(self, node: int, data: bytes) -> bytes:
        path = self._below(node, data[8:])
        path.mkdir(*struct.unpack_from("I", data))
        return self._entry(path)

    def _rename(self, node: int, data: bytes, at: int) -> bytes:
        (target,) = struct.unpack_from("Q", data)
        old, new = data[at:].split(b"\0")[:2]
        self._below(node, old).rename(self._below(target, new))
        self._entry(self._below(target, new))
        return b""

    def _create(self, node: int, data: bytes) -> bytes:
        path = self._below(node, data[16:])
        handle = os.open(path, _flags(data) | os.O_CREAT, *struct.unpack_from("I", data, 4))
        return self._entry(path) + self._opened(handle)

    def _opened(self, handle: int) -> bytes:
        return struct.pack("QII", handle, 0, 0)

    def _read(self, node: int, data: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("QQI", data)
        return os.pread(handle, size, offset)

    def _write(self, node: int, data: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("QQI", data)
        return struct.pack("II", os.pwrite(handle, data[40 : 40 + size], offset), 0)

    def _fallocate(self, node: int, data: bytes) -> bytes:
        handle, offset, length, _ = struct.unpack_from("QQQI", data)
        os.posix_fallocate(handle, offset, length)
        return b""

    def _statfs(self, node: int, data: bytes) -> bytes:
        s = os.statvfs(self._paths[1])
        return struct.pack(
            "5Q4I24x", s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree, s.f_bsize, s.f_namemax, s.f_frsize, 0
        )

    def _opendir(self, node: int, data: bytes) -> bytes:
        with os.scandir(self._paths[node]) as entries:
            self._listings[node] = [(entry.inode() + 1, entry.name) for entry in entries]
        return self._opened(0)

    def _readdir(self, node: int, data: bytes) -> bytes:
        _, offset, size = struct.unpack_from("QQI", data)
        answer = b""
        for number, (inode, name) in enumerate(self._listings[node][offset:], offset + 1):
            encoded = os.fsencode(name)
            record = struct.pack("QQII", inode, number, len(encoded), 0) + encoded
            record += bytes(-len(record) % 8)
            if len(answer) + len(record) > size:
                break
            answer += record
        return answer


def _flags(data: bytes) -> int:
    (flags,) = struct.unpack_from("I", data)
    return int(flags) & (os.O_ACCMODE | os.O_TRUNC | os.O_EXCL)


def _attributes(s: os.stat_result) -> bytes:
    times = [getattr(s, f"st_{name}time_ns") for name in "amc"]
    seconds, rest = [t // 10**9 for t in times], [t % 10**9 for t in times]
    owner = (s.st_mode, s.st_nlink, s.st_uid, s.st_gid)
    return struct.pack("6Q10I", s.st_ino, s.st_size, s.st_blocks, *seconds, *rest, *owner, 0, 4096, 0)


if __name__ == "__main__":
    Passthrough(Path(sys.argv[2])).serve(int(sys.argv[1]))
