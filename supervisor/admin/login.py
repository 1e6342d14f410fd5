"""Login and logout: a browser exchanges the token for a session of twelve hours. Works without JavaScript."""

from __future__ import annotations

import asyncio
import time
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from supervisor.admin.access import WRONG_TOKEN_PAUSE
from supervisor.admin.keys import SESSION_SECONDS
from supervisor.admin.rendering import render
from supervisor.admin.state import TheState

router = APIRouter(include_in_schema=False)


@router.get("/login")
async def ask(request: Request, state: TheState) -> Response:
    """The login form; a browser with a valid session is redirected."""
    target = own_path(request.query_params.get("next", ""))
    if getattr(request.state, "role", ""):
        return RedirectResponse(target, 303)
    return render("login.html", problem="", next=target)


@router.post("/login")
async def log_in(request: Request, state: TheState) -> Response:
    """Create a session for a token."""
    form = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=10)
    target = own_path(form.get("next", [""])[0])
    role = state.keys.role_of_token(form.get("token", [""])[0].strip())
    if role is None:
        await asyncio.sleep(WRONG_TOKEN_PAUSE)
        return render("login.html", status=401, problem="The token is wrong.", next=target)
    answer = RedirectResponse(target, 303)
    answer.set_cookie(
        state.keys.cookie,
        state.keys.session(role, time.time()),
        max_age=SESSION_SECONDS,
        path="/",
        httponly=True,
        samesite="strict",
        secure="https" in (request.url.scheme, request.headers.get("x-forwarded-proto", "")),
    )
    return answer


@router.post("/logout")
async def log_out(request: Request, state: TheState) -> Response:
    """End the session, here and in the browser."""
    state.keys.log_out(request.cookies.get(state.keys.cookie, ""), time.time())
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(state.keys.cookie, httponly=True, samesite="strict")
    return answer


def own_path(target: str) -> str:
    """`target` if it is a path of this site, so that a login link cannot redirect to another site."""
    own = target.startswith("/") and target[1:2] not in ("/", "\\") and target.isprintable() and "\\" not in target
    return target if own else "/"
