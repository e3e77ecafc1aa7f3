"""HTTP server of the daemon: `/livez`, `/readyz`, `/metrics`, `/status` and `/wait`; the status page at `/`.

The page's modules are loaded only if it is on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tailrace.cdc.daemon.http_wait import WaitRoute
from tailrace.cdc.daemon.metrics import HealthCollector
from tailrace.cdc.health.health import Health
from tailrace.schemas.config.model import Config
from tailrace.sinks.serving.families import Metrics
from tailrace.sinks.serving.server import address_of, health_routes, listen
from tailrace.sinks.serving.server import serving as serving_routes

if TYPE_CHECKING:
    from tailrace.cdc.page.routes import StatusPage

log = structlog.get_logger()


@contextmanager
def serving(config: Config, health: Health) -> Iterator[None]:
    """Serve on `health.listen` while the block runs. ConfigError TR-112 if the address is unavailable."""
    address = config.health.daemon_address
    if address is None:
        yield
        return
    taken = listen(address, log.warning)
    health.address = address_of(taken)
    log.info("health server started", url=f"http://{health.address}")
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
    with serving_routes(taken, routes, stopping=stop):
        if page is not None:
            page.start()
        yield


def _status_page(config: Config, health: Health) -> StatusPage:
    from tailrace.cdc.page.routes import StatusPage

    return StatusPage(config, health)
