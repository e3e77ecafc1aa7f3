"""HTTP routes of the status page: `/`, its events, its style and script, and the page of each error code."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Final

import anyio
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from tailrace.cdc.health.health import Health
from tailrace.cdc.page.collector import Collector
from tailrace.cdc.page.render import Templates
from tailrace.schemas.config.model import Config

_MOST_STREAMS: Final = 16
"""Maximum number of event streams; a further one gets status 503, and its page reloads itself instead."""

_SEND_S: Final = 10.0
"""A client that does not read its stream for this time is disconnected."""

_FIRST_S: Final = 4.0
_POLL_S: Final = 0.25
_SILENT_POLLS: Final = 4

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_STATIC: Final = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}


class StatusPage:
    """The page's routes and the collector behind them."""

    def __init__(self, config: Config, health: Health) -> None:
        self._slot = config.source.slot
        self._templates = Templates()
        self._collector = Collector(config, health, self._templates.main)
        self._streams = 0
        folder = files("tailrace.cdc.page") / "static"
        self._static = {name: (folder / name).read_bytes() for name in _STATIC}

    def start(self) -> None:
        """Begin to collect."""
        self._collector.start()

    def close(self) -> None:
        """End the streams and the collector."""
        self._collector.close()

    @property
    def routes(self) -> list[Route]:
        """The routes to serve."""
        return [
            Route("/", self._page),
            Route("/page/events", self._events),
            Route("/page/codes/{code}", self._code),
            Route("/page/{name}", self._file),
        ]

    async def _page(self, request: Request) -> Response:
        self._collector.look()
        with anyio.move_on_after(_FIRST_S):
            while not self._collector.is_complete and not self._collector.closed:
                await anyio.sleep(0.05)
        return HTMLResponse(self._templates.page(self._slot, self._collector.current.html), headers=_HEADERS)

    async def _events(self, request: Request) -> Response:
        if self._streams >= _MOST_STREAMS:
            return PlainTextResponse(f"{_MOST_STREAMS} streams are open already", 503, _HEADERS)
        return EventSourceResponse(self._updates(), headers=_HEADERS, send_timeout=_SEND_S)

    async def _updates(self) -> AsyncIterator[ServerSentEvent]:
        """Yield the page's main part when it has changed, else a sign of life every second."""
        self._streams += 1
        sent = silent = 0
        try:
            while not self._collector.closed:
                self._collector.look()
                current = self._collector.current
                if current.version != sent:
                    sent, silent = current.version, 0
                    yield ServerSentEvent(current.html, event="page", retry=1000)
                elif (silent := silent + 1) >= _SILENT_POLLS:
                    silent = 0
                    yield ServerSentEvent("", event="tick")
                await anyio.sleep(_POLL_S)
        finally:
            self._streams -= 1

    async def _code(self, request: Request) -> Response:
        found = self._templates.code(request.path_params["code"])
        if found is None:
            return PlainTextResponse("no such code", 404, _HEADERS)
        return HTMLResponse(found, headers=_HEADERS)

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            return PlainTextResponse("not found", 404, _HEADERS)
        return Response(self._static[name], media_type=_STATIC[name], headers=_HEADERS)
