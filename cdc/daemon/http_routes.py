"""Routes of the daemon's HTTP server: `/livez`, `/readyz`, `/metrics`, `/status` and `/wait`; the status page at `/`.

The page's modules are loaded only if it is on.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tailrace.cdc.daemon.http_wait import WaitRoute
from tailrace.cdc.daemon.metrics import HealthCollector
from tailrace.cdc.health.health import Health
from tailrace.schemas.config.model import Config
from tailrace.sinks.serving.families import Metrics
from tailrace.sinks.serving.server import health_routes, serving

if TYPE_CHECKING:
    from tailrace.cdc.page.routes import StatusPage


@contextmanager
def answering(taken: socket.socket, config: Config, health: Health) -> Iterator[None]:
    """Answer requests on a socket that listens while the block runs."""
    waits = WaitRoute(config)
    page = _status_page(config, health) if config.health.page else None

    async def status(request: Request) -> Response:
        return JSONResponse({"prefix": config.kafka.prefix, "pid": os.getpid(), **health.ready()[1]})

    def stop() -> None:
        waits.close()
        if page is not None:
            page.close()

    routes = [
        *health_routes(health, Metrics(HealthCollector(health))),
        Route("/status", status),
        Route("/wait", waits.answer),
        *(page.routes if page is not None else ()),
    ]
    with serving(taken, routes, stopping=stop):
        if page is not None:
            page.start()
        yield


def _status_page(config: Config, health: Health) -> StatusPage:
    from tailrace.cdc.page.routes import StatusPage

    return StatusPage(config, health)
