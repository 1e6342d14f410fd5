"""A fault of ours as an answer: one sentence, never where in the program it happened; that is for the log."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse

from supervisor.telemetry import events


def answer(error: Exception, path: str = "") -> JSONResponse:
    """What is said of an error that nobody has foreseen, while the log is told all of it."""
    events(process="admin").error("request_failed", path=path or None, exc_info=error)
    return _mistake()


def _mistake() -> JSONResponse:
    return JSONResponse({"error": "the admin process has made a mistake", "hint": "its log says more"}, 500)


def tell_errors(app: FastAPI) -> None:
    """Have the application answer errors itself, not the framework, so that the access middleware sees them."""

    def told(request: Request, error: Exception) -> JSONResponse:
        return _mistake()

    app.add_exception_handler(Exception, told)
