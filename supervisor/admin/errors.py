"""A fault of ours as an answer: one sentence, never where in the program it happened; the gate tells the log that."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse


def mistake() -> JSONResponse:
    """What is said of an error that nobody has foreseen."""
    return JSONResponse({"error": "the admin process has made a mistake", "hint": "its log says more"}, 500)


def tell_errors(app: FastAPI) -> None:
    """Have the application say so, too, instead of the framework's own page."""

    def told(request: Request, error: Exception) -> JSONResponse:
        return mistake()

    app.add_exception_handler(Exception, told)
