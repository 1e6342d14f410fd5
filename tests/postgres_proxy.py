"""A TCP proxy in front of a PostgreSQL server, which breaks connections where a test wants it.

It reads the messages of the protocol (version 3), so it can lose a statement or its answer, and runs as a process of
its own: tests fork. It ends with whoever has started it. What it can't do: kernels on both sides still acknowledge
what is sent to it, so TCP's keepalives and `tcp_user_timeout` see nothing of a black hole; for that, take a network
namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import subprocess
import sys
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

_NO_ENCRYPTION = {number.to_bytes(4) for number in (80877103, 80877104)}  # TLS and GSS: the proxy must read along
_PORTS = range(15_000, 20_000)  # nobody else may get one while connections are refused


class Proxy:
    """For the server of a URL; use it as a context manager. What a method asks for is in force when it returns."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        command = [sys.executable, "-IS", __file__, parts.hostname or "127.0.0.1", str(parts.port or 5432)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, start_new_session=True
        )
        self.port: int = self._read()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:  # closes its input, at which it ends
            pass

    def url(self, url: str) -> str:
        """The same database, through the proxy."""
        parts = urlsplit(url)
        credentials = parts.netloc.rpartition("@")[0]
        return parts._replace(netloc=f"{credentials}@127.0.0.1:{self.port}").geturl()

    def connections(self) -> int:
        return int(self._ask("connections"))

    def cut(self) -> int:
        """Close all connections on both sides; how many there were. New ones are welcome."""
        return int(self._ask("cut"))

    def cut_at(self, pattern: str, *, answered: bool, nth: int = 1) -> None:
        """Close the connection of the nth statement from now on with this pattern in its text.

        `answered`: the server has carried it out, and its answer is lost, else the server never sees the statement.
        Counted are the executions in all connections, those of prepared statements, too.
        """
        self._ask("cut_at", pattern=pattern, answered=answered, nth=nth)

    def hits(self) -> int:
        """How many connections `cut_at` has closed."""
        return int(self._ask("hits"))

    def black_hole(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Forward nothing in these directions, not even that a side has closed its end, until `heal`."""
        self._ask("black_hole", to_server=to_server, to_client=to_client)

    def refuse(self) -> None:
        """Accept no new connections until `heal`; the old ones stay."""
        self._ask("refuse")

    def heal(self) -> None:
        """Forward everything, also what a black hole has held back, and accept connections."""
        self._ask("heal")

    def _ask(self, call: str, **arguments: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([call, arguments]) + "\n")
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the proxy has ended"
        return json.loads(line)


@dataclass
class _Rule:
    """Where to cut; counts down."""

    pattern: str
    answered: bool
    nth: int

    def hits(self, text: bytes) -> bool:
        """Whether this execution is the one."""
        if re.search(self.pattern, text.decode(errors="replace"), re.IGNORECASE):
            self.nth -= 1
            return self.nth == 0
        return False


@dataclass(eq=False)
class _Link:
    """One connection."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    prepared: dict[bytes, bytes] = field(default_factory=dict)  # statements by name
    doomed: bool = False  # closed as soon as the server has answered

    def executed(self, message: bytes) -> bytes | None:
        """The statement that this message of the client executes."""
        kind, body = message[:1], message[5:]
        if kind == b"Q":
            return body
        if kind == b"P":  # "Parse": name and text
            name, text = body.split(b"\0", 2)[:2]
            self.prepared[name] = text
        if kind == b"B":  # "Bind": portal and name; its execution follows
            return self.prepared.get(body.split(b"\0", 2)[1])
        return None

    def cut(self) -> None:
        for side in (self.client, self.server):
            side.transport.abort()


class _Switchboard:
    """All connections, and what is to happen to them; answers the calls of `Proxy`."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._links: set[_Link] = set()
        self._rule: _Rule | None = None
        self._hits = 0
        self._to_server, self._to_client = asyncio.Event(), asyncio.Event()
        self._listener: asyncio.Server | None = None
        self.port = 0

    async def connections(self) -> int:
        return len(self._links)

    async def cut(self) -> int:
        links, self._links = self._links, set()
        for link in links:
            link.cut()
        return len(links)

    async def cut_at(self, pattern: str, answered: bool, nth: int) -> None:
        self._rule = _Rule(pattern, answered, nth)

    async def hits(self) -> int:
        return self._hits

    async def black_hole(self, to_server: bool, to_client: bool) -> None:
        for event, closed in ((self._to_server, to_server), (self._to_client, to_client)):
            if closed:
                event.clear()

    async def refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def heal(self) -> None:
        self._to_server.set()
        self._to_client.set()
        while self._listener is None:
            port = self.port or random.choice(_PORTS)
            try:
                self._listener = await asyncio.start_server(self._serve, "127.0.0.1", port)
            except OSError:
                if self.port:
                    raise
            else:
                self.port = port

    async def _serve(self, questions: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            answers, server = await asyncio.open_connection(*self._upstream)
        except OSError:
            client.transport.abort()
            return
        link = _Link(client, server)
        self._links.add(link)
        ways = {
            asyncio.ensure_future(self._to_its_end(self._ask(questions, link), self._to_server)),
            asyncio.ensure_future(self._to_its_end(self._answer(answers, link), self._to_client)),
        }
        _, other = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in other:
            way.cancel()
        for side in (client, server):
            side.close()  # after what has been written
        self._links.discard(link)

    async def _to_its_end(self, forwarding: Coroutine[None, None, None], way: asyncio.Event) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            await forwarding
        await way.wait()  # that it has ended is not forwarded either

    async def _ask(self, reader: asyncio.StreamReader, link: _Link) -> None:
        while (opening := await _message(reader, b""))[4:8] in _NO_ENCRYPTION:
            await self._to_client.wait()
            link.client.write(b"N")
        await self._forward(opening, link.server, self._to_server)
        while True:
            message = await _message(reader, await reader.readexactly(1))
            text = link.executed(message)
            if text is not None and self._rule is not None and self._rule.hits(text):
                if not self._rule.answered:
                    self._hits += 1
                    link.cut()
                    return
                link.doomed = True
            await self._forward(message, link.server, self._to_server)

    async def _answer(self, reader: asyncio.StreamReader, link: _Link) -> None:
        while True:
            message = await _message(reader, await reader.readexactly(1))
            if not link.doomed:
                await self._forward(message, link.client, self._to_client)
            elif message[:1] == b"Z":  # "ReadyForQuery": a transaction that the statement has ended is committed
                self._hits += 1
                link.cut()
                return

    async def _forward(self, message: bytes, to: asyncio.StreamWriter, way: asyncio.Event) -> None:
        await way.wait()
        to.write(message)
        await to.drain()


async def _message(reader: asyncio.StreamReader, kind: bytes) -> bytes:
    """A message as it is; the first one of a client has no kind. Raises IncompleteReadError at the end."""
    size = await reader.readexactly(4)
    return kind + size + await reader.readexactly(int.from_bytes(size) - 4)


async def _main(host: str, port: int) -> None:
    board = _Switchboard(host, port)
    await board.heal()
    calls = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(calls), sys.stdin)
    _say(board.port)
    while line := await calls.readline():
        call, arguments = json.loads(line)
        _say(await getattr(board, call)(**arguments))


def _say(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2])))
