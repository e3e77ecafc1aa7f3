"""The login at the search engine is sent as UTF-8, whatever characters it has."""

from __future__ import annotations

import base64

from tailrace.schemas.config.model import Search
from tailrace.sinks.opensearch.bulk import connect


def test_a_password_of_any_characters_is_sent_as_utf_8() -> None:
    search = Search.model_validate({"hosts": ["http://127.0.0.1:1"], "user": "jürgen", "password": "пароль€"})
    client = connect(search)
    kind, _, login = client.transport.get_connection().headers["authorization"].partition(" ")
    assert (kind, base64.b64decode(login).decode()) == ("Basic", "jürgen:пароль€")
