"""What programs use: `Queue`, and `AsyncQueue` in `asynchronous`. Needs only the standard library."""

from __future__ import annotations

from supervisor.client.queue import Queue as Queue
