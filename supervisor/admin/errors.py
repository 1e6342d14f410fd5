"""Answers for internal errors: one sentence without a traceback, which goes only to the log."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse

from supervisor.telemetry import events


def answer(error: Exception, path: str = "") -> JSONResponse:
    """The answer to an unexpected error; the log gets the traceback."""
    events(process="admin").error("request_failed", path=path or None, exc_info=error)
    return _internal_error()


def _internal_error() -> JSONResponse:
    return JSONResponse({"error": "internal error of the admin process", "hint": "see its log"}, 500)


def tell_errors(app: FastAPI) -> None:
    """Let the application answer errors instead of the framework, so that the access middleware sees them."""

    def told(request: Request, error: Exception) -> JSONResponse:
        return _internal_error()

    app.add_exception_handler(Exception, told)
