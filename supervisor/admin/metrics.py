"""`GET /metrics`: all metrics for a scraper, in the format that it requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fastapi import APIRouter, Request
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from supervisor.admin.metric_families import metric_families
from supervisor.admin.numbers import Ledger, Numbers
from supervisor.admin.state import TheState
from supervisor.ops.views import Overview


@dataclass(frozen=True)
class _Moment(Collector):
    """The metrics of one request. They are not registered globally, so that they cost nothing between requests."""

    overview: Overview
    numbers: Numbers

    def collect(self) -> Iterator[Metric]:
        return metric_families(self.overview, self.numbers)


def routes() -> APIRouter:
    """The route and the sums that it keeps between requests."""
    router = APIRouter()
    ledger = Ledger()

    @router.get("/metrics", include_in_schema=False)
    async def metrics(request: Request, state: TheState) -> Response:
        moment = _Moment(await state.watch.overview(), await state.executor.ask(ledger.look))
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(moment), media_type=content_type)

    return router
