"""An HTTP proxy that requires TLS and a login, for a server that supports neither."""

from __future__ import annotations

import base64
import http.client
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.integration.secured import Certificate

_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


@contextmanager
def gateway(
    url: str,
    certificate: Certificate | None = None,
    *,
    port: int = 0,
    login: str | None = None,
    client_ca: Path | None = None,
) -> Iterator[str]:
    """Forward requests with the right `login` (user:password) to `url`; yield the proxy's loopback URL.

    With a `certificate` the proxy accepts only TLS, with `client_ca` only from clients that it has signed.
    """
    server = _Server(("127.0.0.1", port), _Handler)
    server.to, server.login = urlsplit(url).netloc, login
    scheme = "http"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.chain, certificate.key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        # each connection's own thread does the handshake: a client that refuses us must not block the others
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        scheme = "https"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"{scheme}://localhost:{server.server_port}{urlsplit(url).path}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    to: str
    login: str | None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore it: tests make handshakes fail on purpose."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 60

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        login = self.server.login
        given = self.headers.get("Authorization")
        if login is not None and given != f"Basic {base64.b64encode(login.encode()).decode()}":
            self._answer(401, [("WWW-Authenticate", 'Basic realm="test"')], b'{"error_code": 401, "message": "who?"}')
            return
        upstream = http.client.HTTPConnection(self.server.to, timeout=60)
        upstream.request(self.command, self.path, body, dict(self.headers.items()))
        answer = upstream.getresponse()
        self._answer(answer.status, answer.getheaders(), answer.read())
        upstream.close()

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _pass_on

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""
