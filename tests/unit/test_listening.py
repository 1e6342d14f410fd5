"""The socket that the supervisor holds for the admin process."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from supervisor.system.sockets import Listening


def test_connections_send_at_once_what_they_have() -> None:
    listening = Listening(("127.0.0.1", 0), None)
    with socket.create_connection(listening.socket.getsockname()):
        listening.socket.setblocking(True)
        accepted, _ = listening.socket.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    listening.close()


def test_a_socket_left_behind_is_replaced_and_one_in_use_is_not(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()

    first = Listening(None, path)
    with pytest.raises(OSError, match="in use"):
        Listening(None, path)
    first.close()
    assert not path.exists()


def test_a_file_that_is_no_socket_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    path.write_text("mine")
    with pytest.raises(OSError, match=r"exists|in use"):
        Listening(None, path)
    assert path.read_text() == "mine"
