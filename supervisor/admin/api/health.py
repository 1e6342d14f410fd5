"""Whether this process is alive, and whether the system is ready."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse

import supervisor
from supervisor.admin.api.documents import answer
from supervisor.admin.api.models import Health, NotReady, Ready
from supervisor.admin.api.problems import RETRY_AFTER, reading
from supervisor.admin.state import TheState
from supervisor.domain.errors import StoreError
from supervisor.ops.diagnosis import diagnose

router = APIRouter(tags=["health"])
with_access_control = APIRouter(tags=["health"])


@router.get("/healthz", response_model=Health)
async def healthz() -> JSONResponse:
    """This process answers. It checks nothing else, so it says nothing about the database or the workers."""
    return answer({"status": "alive", "version": supervisor.__version__})


@with_access_control.get(
    "/readyz",
    response_model=Ready,
    responses={**reading(), 503: {"model": NotReady, "description": "Not ready; `reasons` say why."}},
)
async def readyz(state: TheState) -> JSONResponse:
    """Jobs can be stored and are run: the database can be read and written, a supervisor is running and has
    recovered the jobs of earlier ones, and no pool is broken. The supervisor of this process has its lease, and its
    host is not drained.
    """
    try:
        seen = await state.watch.overview()
        await state.executor.ask(lambda operations: operations.check(writable=True))
    except StoreError as error:
        return _not_ready([str(error)])
    findings = [finding for finding in diagnose(seen) if finding.blocks]
    if state.supervisor:  # other hosts have admin processes of their own
        findings = [finding for finding in findings if finding.supervisor in ("", state.supervisor)]
    reasons = [finding.fact for finding in findings]
    return _not_ready(reasons) if reasons else answer({"ready": True})


def _not_ready(reasons: list[str]) -> JSONResponse:
    error = f"not ready: {reasons[0]}"
    return answer({"error": error, "reasons": reasons}, 503, {"Retry-After": str(RETRY_AFTER)})
