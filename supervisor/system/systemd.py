"""Report our status to systemd: the sd_notify protocol, one datagram per message."""

from __future__ import annotations

import os
import socket
import time


class Notifier:
    """Sends to $NOTIFY_SOCKET; does nothing if it is not set."""

    def __init__(self) -> None:
        address = os.environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        microseconds = os.environ.get("WATCHDOG_USEC", "")
        meant = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        # Half the time allowed, as sd_watchdog_enabled(3) recommends; None without a watchdog.
        self.interval = int(microseconds) / 2e6 if microseconds.isdigit() and meant else None
        self._next = 0.0

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as end:
                end.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT, self._address)
        except OSError:
            return  # systemd is restarting, or no descriptor is available: no reason to stop working

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        self._send(f"STATUS={status}")

    def reloading(self) -> None:
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", f"STATUS={status}")

    def alive(self, now: float) -> None:
        """Notify the watchdog if it is time. `now` is monotonic seconds."""
        if self.interval is not None and now >= self._next:
            self._next = now + self.interval
            self._send("WATCHDOG=1")
