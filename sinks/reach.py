"""What to do about a server that does not answer over HTTP as it should: the hint of the errors that say so."""

from __future__ import annotations

from urllib.parse import urlsplit

from schemas.config import HttpServer


def reach_hint(section: str, server: HttpServer, path: str, status: int | None, reason: str) -> str:
    """Return lines to paste for the `section` of the configuration; `status` is that of the answer, if there was one.

    `path` is what anybody may ask the server for.
    """
    if status in (401, 403):
        return f"Its user is {section}.user, with {section}.password or {section}.password_file."
    url = server.urls[0].rstrip("/")
    hint = f"Is it running and reachable? curl {url}{path}"
    if "certificate" in reason.lower() or "ssl" in reason.lower():
        parts = urlsplit(url)
        hint = (
            f"Its CA is {section}.ca_file. What is wrong with a certificate:\n       openssl s_client -connect"
            f" {parts.hostname}:{parts.port or 443} -CAfile {server.ca_file or 'FILE'} </dev/null"
        )
    return hint
