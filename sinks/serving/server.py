"""HTTP server of a process, in a daemon thread, and the routes that all processes have.

Starlette and uvicorn are loaded when a process starts to serve, not with the command line.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tailrace.sinks.serving.families import Metrics

_STOP_S: Final = 1.0


class Answers(Protocol):
    """The health of a process: whether it is live and ready, each with the body of the response."""

    def live(self) -> tuple[bool, dict[str, Any]]: ...
    def ready(self) -> tuple[bool, dict[str, Any]]: ...


@contextmanager
def serving(
    taken: socket.socket, routes: Sequence[Route], *, stopping: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Serve the routes on a socket that listens while the block runs; `stopping` is called when it ends."""
    server = uvicorn.Server(
        uvicorn.Config(
            Starlette(routes=list(routes)),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]}, name="http", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        stopping()
        thread.join(_STOP_S)


def health_routes(health: Answers, metrics: Metrics) -> list[Route]:
    """Return `/livez`, `/readyz` and `/metrics`; the first two answer 200 or 503."""

    async def livez(request: Request) -> Response:
        live, body = health.live()
        return JSONResponse(body, 200 if live else 503)

    async def readyz(request: Request) -> Response:
        ready, body = health.ready()
        return JSONResponse(body, 200 if ready else 503)

    async def all_metrics(request: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return [Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", all_metrics)]
