"""HTTP server for `/livez`, `/readyz`, `/metrics`, `/status` and `/wait`, in a daemon thread.

Starlette and uvicorn are loaded when a daemon starts, not with the command line.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import structlog
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tailrace.cdc.daemon.http_wait import WaitRoute
from tailrace.cdc.daemon.metrics import Metrics
from tailrace.cdc.daemon.port_holder import holder_of
from tailrace.cdc.health.health import Health
from tailrace.schemas.config.model import Config
from tailrace.schemas.config.model import Health as Options
from tailrace.schemas.errors import ConfigError

log = structlog.get_logger()

_STOP_S = 1.0

_NEXT_PORTS = 20
"""Number of ports tried after the default one, before any free port."""


@contextmanager
def serving(config: Config, health: Health) -> Iterator[None]:
    """Serve on `health.listen` while the block runs. ConfigError TR-112 if the address is unavailable."""
    options = config.health
    if not options.listen:
        yield
        return
    taken = _listen(options)
    host, port = taken.getsockname()[:2]
    health.address = f"{f'[{host}]' if ':' in host else host}:{port}"
    log.info("health server started", url=f"http://{health.address}")
    waits = WaitRoute(config)
    server = uvicorn.Server(
        uvicorn.Config(
            _app(config, health, waits), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]}, name="http", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        waits.close()
        thread.join(_STOP_S)


def _app(config: Config, health: Health, waits: WaitRoute) -> Starlette:
    metrics = Metrics(health)

    async def livez(request: Request) -> Response:
        live, body = health.live()
        return JSONResponse(body, 200 if live else 503)

    async def readyz(request: Request) -> Response:
        ready, body = health.ready()
        return JSONResponse(body, 200 if ready else 503)

    async def status(request: Request) -> Response:
        return JSONResponse({"prefix": config.kafka.prefix, "pid": os.getpid(), **health.ready()[1]})

    async def all_metrics(request: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/metrics", all_metrics),
            Route("/status", status),
            Route("/wait", waits.answer),
        ]
    )


def check_address(options: Options) -> None:
    """Raise ConfigError (TR-112) if a configured address cannot be listened on."""
    if options.listen and "listen" in options.model_fields_set:
        _listen(options).close()


def _listen(options: Options) -> socket.socket:
    host, port = options.address
    try:
        return _bound(host, port)
    except OSError as error:
        holder = holder_of(port) if error.errno == errno.EADDRINUSE else None
        if "listen" not in options.model_fields_set:
            return _nearest(host, port, holder)  # only one of several daemons on a host gets the default port
        raise ConfigError(
            "TR-112",
            f'health.listen: cannot listen on "{options.listen}"',
            detail=f"{error.strerror}{f', by {holder}' if holder else ''}.",
            hint=f'listen = "{host}:{port + 1}"  # under [health]; port 0 picks a free port, "" turns it off',
        ) from None


def _nearest(host: str, port: int, holder: str | None) -> socket.socket:
    """Bind the next free port and log it: the default port returns another daemon's metrics."""
    for other in (*range(port + 1, port + 1 + _NEXT_PORTS), 0):
        with suppress(OSError):
            taken = _bound(host, other)
            log.warning(
                "default health port in use: another one chosen",
                usual=f"{host}:{port}",
                held_by=holder,
                used=f"{host}:{taken.getsockname()[1]}",
            )
            return taken
    raise ConfigError("TR-112", f'health.listen: cannot listen on "{host}"', hint='listen = ""  # under [health]')


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
        taken.listen(64)
    except OSError:
        taken.close()
        raise
    return taken
