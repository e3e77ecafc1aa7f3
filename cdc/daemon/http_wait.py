"""`GET /wait?lsn=0/16B3748&view=orders&timeout=5`: `tailrace wait` for HTTP clients."""

from __future__ import annotations

from typing import Final

import anyio
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tailrace.cdc.operations.wait import AppliedViews
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError, DeadlineError, TailraceError
from tailrace.schemas.lsn import format_lsn, parse_lsn

_AT_ONCE: Final = 32
"""Maximum number of concurrent waits, each of which holds a thread; further requests get status 503."""
_LONGEST_S: Final = 300.0
_DEFAULT_S: Final = 30.0


class WaitRoute:
    """Handler of `/wait`. It holds one Kafka consumer from the first wait on, and at most 32 threads."""

    def __init__(self, config: Config) -> None:
        self._applied = AppliedViews(config)
        self._threads: anyio.CapacityLimiter | None = None

    def close(self) -> None:
        """End all waits in progress."""
        self._applied.close()

    async def answer(self, request: Request) -> Response:
        """Answer 200 with each view's LSN, 400 bad parameter, 404 unknown view, 504 timeout, 503 other errors."""
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(_AT_ONCE)  # it belongs to the event loop
        views = [name for name in request.query_params.getlist("view") if name]
        try:
            lsn = parse_lsn(request.query_params.get("lsn", ""))
            timeout_s = min(float(request.query_params.get("timeout", _DEFAULT_S)), _LONGEST_S)
        except ValueError:
            return _refusal(400, "TR-578", "lsn must be an LSN as PostgreSQL prints it, timeout a number of seconds")
        if not self._threads.available_tokens:
            return _refusal(503, "TR-585", f"{_AT_ONCE} requests are already waiting")
        try:
            applied = await run_sync(self._applied.wait, lsn, views, timeout_s, limiter=self._threads)
        except TailraceError as error:
            status = 504 if isinstance(error, DeadlineError) else 404 if isinstance(error, ConfigError) else 503
            return _refusal(status, error.code, error.message, error.detail, error.hint)
        return JSONResponse({"lsn": format_lsn(lsn), "views": {name: format_lsn(at) for name, at in applied.items()}})


def _refusal(status: int, code: str, message: str, detail: str = "", hint: str = "") -> Response:
    return JSONResponse({"error": {"code": code, "message": message, "detail": detail, "hint": hint}}, status)
