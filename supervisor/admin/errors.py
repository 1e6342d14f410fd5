"""What goes wrong, as an answer: one sentence, never where in the program it happened."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse

from supervisor.domain.errors import StoreBusy, StoreError
from supervisor.telemetry import events

BUSY_SECONDS = 1  # after which trying again may help


def answer(error: Exception) -> JSONResponse:
    """503 for a database that cannot be used, 500 for a fault of ours, which the log tells all about."""
    if isinstance(error, StoreBusy):
        return JSONResponse({"error": str(error)}, 503, {"retry-after": str(BUSY_SECONDS)})
    if isinstance(error, StoreError):
        return JSONResponse({"error": str(error)}, 503)
    events(process="admin").error("request_failed", exc_info=error)
    return JSONResponse({"error": "the admin process has made a mistake", "hint": "its log says more"}, 500)


def tell_errors(app: FastAPI) -> None:
    """Have the application answer so; others of its own go before."""

    def of_store(request: Request, error: Exception) -> JSONResponse:
        return answer(error)

    app.add_exception_handler(StoreError, of_store)
