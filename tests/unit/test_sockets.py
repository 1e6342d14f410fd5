"""The kernel's list of TCP connections, by the process that holds them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from supervisor.system.sockets import local_ends


@pytest.mark.parametrize(
    ("family", "listen", "connect", "address"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET6, "::1", "::1", "::1"),
        (socket.AF_INET6, "::ffff:127.0.0.1", "::ffff:127.0.0.1", "127.0.0.1"),
    ],
)
def test_a_connection_is_told_by_its_local_end(
    family: socket.AddressFamily, listen: str, connect: str, address: str
) -> None:
    try:
        server = socket.create_server((listen, 0), family=family)
    except OSError as error:
        pytest.skip(f"there is no {listen} here: {error}")
    with server, socket.socket(family) as client:
        client.connect((connect, server.getsockname()[1]))
        end = (address, client.getsockname()[1])
        assert end in local_ends(os.getpid())
    assert end not in local_ends(os.getpid())


def test_that_of_a_child_process_is_its_parents_too_and_one_that_is_gone_has_none() -> None:
    program = (
        "import socket, sys; one = socket.create_connection(('127.0.0.1', int(sys.argv[1])));"
        " print(one.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", program, str(server.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            port = int(child.stdout.readline())
            assert ("127.0.0.1", port) in local_ends(os.getpid())
            child.communicate("")
    assert local_ends(child.pid) == set()
