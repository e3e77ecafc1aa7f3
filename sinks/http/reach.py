"""HTTP servers: check their TLS files, and give a hint when they do not answer."""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit

from tailrace.schemas.config.model import HttpServer
from tailrace.schemas.config.secret import without_secrets
from tailrace.schemas.errors import ConfigError


def check_files(section: str, server: HttpServer) -> None:
    """Raise ConfigError (TR-349) if the CA or client certificate of a config `section` cannot be used."""
    try:
        context = ssl.create_default_context(cafile=server.ca_file)
        if server.cert_file:
            context.load_cert_chain(server.cert_file, server.key_file)
    except OSError as error:  # includes ssl.SSLError
        raise ConfigError(
            "TR-349",
            f"the TLS files of [{section}] cannot be used",
            detail=f"{error}.",
            hint=f"{section}.ca_file, cert_file and key_file must be PEM and readable by this user, on this machine.",
        ) from None


def reach_hint(section: str, server: HttpServer, path: str, status: int | None, reason: str) -> str:
    """Return the hint for a failed request to the server of a `section`, if possible with a command.

    `status` is the HTTP status of the answer, None without one; `path` is one that every user may request.
    """
    if status in (401, 403):
        return f"Check {section}.user and {section}.password or {section}.password_file: the server refuses this login."
    url = without_secrets(server.urls[0]).rstrip("/")
    if "ssl" in reason.lower() or "certificate" in reason.lower():
        parts = urlsplit(url)
        ask = f"openssl s_client -connect {parts.hostname}:{parts.port or 443} -CAfile {server.ca_file or 'FILE'}"
        return f"{ask} </dev/null\n       It shows what is wrong with the certificate. The CA is {section}.ca_file."
    return f"curl {url}{path}  # is the server running, and reachable from this host?"
