"""toxiproxy between the daemon and its servers: resets, latency, links that drop all, slow links.

Built by Go from source, once per machine. https://github.com/Shopify/toxiproxy
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

from tailrace.cdc.dev.process import free_ports, listening
from tests.faults.source import come_true

_VERSION = "2.12.0"
_MODULE = f"github.com/Shopify/toxiproxy/v2/cmd/server@v{_VERSION}"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace"


def why_not() -> str | None:
    """Return the reason if this machine cannot run the proxy."""
    if _binary().exists() or shutil.which("go"):
        return None
    return f"toxiproxy is built from source: no {_binary()}, and no go to make it"


def _binary() -> Path:
    return _CACHE / f"toxiproxy-{_VERSION}" / "server"


class Toxiproxy:
    """The proxy's process; the caller names the links."""

    def __init__(self, folder: Path) -> None:
        if not _binary().exists():
            environment = os.environ | {"GOBIN": str(_binary().parent), "GOFLAGS": "-mod=mod"}
            subprocess.run(["go", "install", _MODULE], env=environment, cwd=folder, check=True, capture_output=True)
        (self._port,) = free_ports([None])
        with (folder / "toxiproxy.log").open("a") as log:
            self._process = subprocess.Popen(
                [str(_binary()), "-host", "127.0.0.1", "-port", str(self._port)], stdout=log, stderr=log
            )
        if not come_true(lambda: listening(self._port), 20):
            raise RuntimeError(f"toxiproxy does not listen, see {folder / 'toxiproxy.log'}")

    def link(self, name: str, listen: int, upstream: int) -> None:
        """Forward connections from one loopback port to another."""
        addresses = {"listen": f"127.0.0.1:{listen}", "upstream": f"127.0.0.1:{upstream}"}
        self._call("POST", "/proxies", {"name": name, "enabled": True, **addresses})

    def poison(self, name: str, kind: str, **attributes: int) -> None:
        """Disturb a link in both directions until `reset`."""
        for stream in ("upstream", "downstream"):
            toxic = {"name": f"{kind}-{stream}", "type": kind, "stream": stream, "attributes": attributes}
            self._call("POST", f"/proxies/{name}/toxics", toxic)

    def reset(self) -> None:
        """Remove all disturbances from all links."""
        self._call("POST", "/reset", None)

    def _call(self, method: str, path: str, body: dict[str, Any] | None) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            method=method,
            data=b"" if body is None else json.dumps(body).encode(),
            headers={"User-Agent": "tailrace-tests"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.read()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)
