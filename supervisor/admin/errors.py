"""What goes wrong, as an answer: one sentence, never where in the program it happened."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse

from supervisor.domain.errors import StoreBusy, StoreError

BUSY_SECONDS = 1  # after which trying again may help


def answer(error: Exception) -> JSONResponse:
    """503 for a database that cannot be used, 500 for a fault of ours, of which the gate tells the log."""
    if isinstance(error, StoreBusy):
        return JSONResponse({"error": str(error)}, 503, {"retry-after": str(BUSY_SECONDS)})
    if isinstance(error, StoreError):
        return JSONResponse({"error": str(error)}, 503)
    return JSONResponse({"error": "the admin process has made a mistake", "hint": "its log says more"}, 500)


def tell_errors(app: FastAPI) -> None:
    """Have the application answer so, unless one of its routes knows better."""

    def told(request: Request, error: Exception) -> JSONResponse:
        return answer(error)

    for kind in (StoreError, Exception):
        app.add_exception_handler(kind, told)
