"""Write documents through OpenSearch's bulk API; runs in Spark's workers, so it has minimal imports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import orjson

from tailrace.schemas.config.model import Search
from tailrace.schemas.config.secret import without_secrets
from tailrace.schemas.errors import SinkError
from tailrace.schemas.reasons import readable, reason
from tailrace.sinks.http.reach import check_files, reach_hint

if TYPE_CHECKING:
    from opensearchpy import OpenSearch
    from pyspark.sql import Row

_TIMEOUT_S: Final = 60
_CHECK_S: Final = 5
CHUNK_BYTES: Final = 4_000_000
_CONFLICT: Final = 409
_NOT_FOUND: Final = 404
_PAGE: Final = 1000


def connect(search: Search) -> OpenSearch:
    """Return a client, which connects at its first request. ConfigError (TR-349) for an unusable TLS file."""
    from opensearchpy import OpenSearch

    check_files("search", search)
    return OpenSearch(
        search.hosts,
        http_auth=_login(search.user, search.password.get_secret_value()) if search.user and search.password else None,
        ca_certs=search.ca_file,
        client_cert=search.cert_file,
        client_key=search.key_file,
        timeout=_TIMEOUT_S,
        max_retries=3,
        retry_on_timeout=True,
    )


def _login(user: str, password: str) -> tuple[str, str]:
    """Return user and password so that the client, which encodes them as Latin-1, sends UTF-8 (RFC 7617)."""
    return user.encode().decode("latin-1"), password.encode().decode("latin-1")


@contextmanager
def named_errors(search: Search) -> Iterator[None]:
    """Convert the client's errors to SinkError (TR-530) with the hosts' names and a hint."""
    from opensearchpy.exceptions import OpenSearchException, TransportError

    try:
        yield
    except OpenSearchException as error:
        # The client's full error text may contain a document.
        status, why = None, reason(error)
        if isinstance(error, TransportError) and isinstance(error.status_code, int):  # "N/A" without an answer
            status, why = error.status_code, f"{error.status_code} {readable(str(error.error))}"
        raise SinkError(
            "TR-530",
            f"a request to OpenSearch at {', '.join(map(without_secrets, search.hosts))} failed",
            detail=f"{why.rstrip('.')}.",
            hint=reach_hint("search", search, "/_cluster/health", status, f"{type(error).__name__} {why}"),
        ) from None


@contextmanager
def connected(search: Search, client: OpenSearch | None = None) -> Iterator[OpenSearch]:
    """Yield `client`, or a new one that is closed after the block; errors are converted as by `named_errors`."""
    with named_errors(search):
        if client is not None:
            yield client
            return
        with closing(connect(search)) as opened:
            yield opened


def check(search: Search) -> None:
    """Raise SinkError (TR-530) if the cluster is unreachable, rejects our login, or is no OpenSearch."""
    with connected(search) as client:
        client.info(params={"request_timeout": _CHECK_S})


def write_documents(
    rows: Iterable[Sequence[Any]], search: Search, index: str, version: int, client: OpenSearch | None = None
) -> None:
    """Index or delete each of `rows` (id, document, routing if the index has one) under an external version.

    A row without a document, None or empty, deletes it.

    A conflict with a newer version (409) is normal if a batch is repeated, as is the deletion of a missing document
    (404). Any other failure ends the batch with a SinkError (TR-531). `client` is by default a new one.
    """
    write_bodies(bodies(rows, version), search, index, client)


def write_bodies(requests: Iterable[bytes], search: Search, index: str, client: OpenSearch | None = None) -> None:
    """Send bulk requests that index or delete documents; failures are those of `write_documents`."""
    with connected(search, client) as used:
        for body in requests:
            answer = used.bulk(body=body, index=index, params={"filter_path": "errors,items.*.status,items.*.error"})
            if answer["errors"]:
                _check(answer["items"], index)


def mend_documents(rows: Iterable[Row], search: Search, index: str) -> Iterator[int]:
    """Index or delete each of `rows`, as in `write_documents`, whatever its version; yield the greatest new version."""
    newest = 0
    with connected(search) as client:
        for body in bodies(_without_others(rows, client, index), None):
            answer = client.bulk(
                body=body, index=index, params={"filter_path": "items.*.status,items.*.error,items.*._version"}
            )
            _check(answer["items"], index)
            found = (result.get("_version", 0) for item in answer["items"] for result in item.values())
            newest = max(newest, *found)
    yield newest


def _without_others(rows: Iterable[Row], client: OpenSearch, index: str) -> Iterator[Sequence[Any]]:
    """Yield the rows of an index with routing, each after a delete of its documents with another routing.

    A deleted row's routing is known only from its document. Memory: a page of rows.
    """
    left = iter(rows)
    while page := list(islice(left, _PAGE)):
        if len(page[0]) < 3:
            yield from page
            continue
        ids = [row[0] for row in page]
        body = {"size": len(ids), "query": {"ids": {"values": ids}}, "_source": False, "track_total_hits": False}
        routed = {row[0]: row[2] for row in page}
        for hit in client.search(index=index, body=body)["hits"]["hits"]:
            if hit.get("_routing") != routed[hit["_id"]]:
                yield hit["_id"], None, hit.get("_routing")
        yield from page


def bodies(rows: Iterable[Sequence[Any]], version: int | None) -> Iterator[bytes]:
    """Yield the bulk requests of `write_documents`, each of some megabytes; without a version, they replace any."""
    parts: list[bytes] = []
    size = 0
    for number, document, *routed in rows:
        action = "index" if document else "delete"
        versioned = {} if version is None else {"version": version, "version_type": "external_gte"}
        routing = {"routing": routed[0]} if routed and routed[0] else {}
        parts.append(orjson.dumps({action: {"_id": number, **routing, **versioned}}))
        if document:
            parts.append(document.encode())
            size += len(parts[-1])
        size += 100
        if size > CHUNK_BYTES:
            yield b"\n".join(parts) + b"\n"
            parts, size = [], 0
    if parts:
        yield b"\n".join(parts) + b"\n"


def _check(items: Iterable[dict[str, Any]], index: str) -> None:
    for item in items:
        ((action, result),) = item.items()
        status = result["status"]
        if status < 300 or status == _CONFLICT or (action == "delete" and status == _NOT_FOUND):
            continue
        error = result.get("error", {})
        # The reason may quote the value, so only the field's name is reported.
        field = re.search(r"field \[([^\]]*)\]", error.get("reason", ""))
        raise SinkError(
            "TR-531",
            f'OpenSearch refuses a document of index "{index}"',
            detail=f"{action}: {status} {error.get('type', '')}" + (f' in field "{field[1]}".' if field else "."),
            hint="See the log of the OpenSearch server. Nothing is lost: the batch is retried.",
        )
