"""Secret settings: `config show` hides them, and they are removed from texts that may quote them.

Secret are all settings of type `SecretStr`, free options with a secret name, and passwords in a connection string or
URL. The rest of a connection string is shown: host, port, database, user, sslmode.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote, unquote_plus

from pydantic import BaseModel, SecretStr

from tailrace.schemas.config import dsn
from tailrace.schemas.config.model import Config, Kafka

HIDDEN: Final = dsn.HIDDEN
_FREE: Final = {("kafka", "options"), ("spark", "conf")}
"""Tables with free option names. In other tables a name may be that of a captured table or a view."""

_remembered: Final[set[str]] = set()

_WORDS: Final = (
    r"password|passwd|passphrase|secret|token|credential|jaas|private|signature|authorization"
    r"|api.?key|access.?key|account.?key"
)
_NAME: Final = re.compile(rf"{_WORDS}|\bpwd\b|\.key$|\.pem$|\.key\.", re.I)
_SCHEME: Final = re.compile(r"([A-Za-z][\w+.-]*)://")
_ONE_URI: Final = re.compile(r"[A-Za-z][\w+.-]*:\S")
_HOSTS: Final = re.compile(r"(?:\[[^\]]*\]|[^\[\]:,]*)(?::\d*)?(?:,(?:\[[^\]]*\]|[^\[\]:,]*)(?::\d*)?)*")
_CONTAINERS: Final = ("abfs", "abfss", "wasb", "wasbs")
"""In these schemes, the part before the @ is a container, not a user."""
_ORACLE: Final = re.compile(r"oracle:\w+:[^/\s@]*/")
_FIRST_PARAMETER: Final = re.compile(r"[?;&][\w.%-]+=")
_PARAMETER: Final = re.compile(
    rf"(?<![\w.%-])[\w.%-]*(?:(?:{_WORDS}|\bpwd)[\w.%-]*|pass)=|(?<=[?&;])(?:key|sig)=", re.I
)
_QUOTED: Final = r"""(?:'(?:[^'\\]|\\.)*'|"[^"]*"|\{(?:[^}]|\}\})*\})?"""
_CHARACTER: Final = {True: ".", False: r"\S"}
_VALUES: Final = {
    (delimiter, one_uri): re.compile(
        rf"{_QUOTED}(?:(?![{ends}][\w.%-]+=){_CHARACTER[one_uri and delimiter != '']})*", re.S
    )
    for delimiter, ends in {";": ";", "?": "&", "&": "&", "": "?&;"}.items()
    for one_uri in (True, False)
}
"""The value of a parameter by the character before its name: it may contain a delimiter that no name follows."""


def shown(config: Config) -> dict[str, Any]:
    """Return the settings as plain values, with asterisks for secrets."""
    values = _hidden(config.model_dump(mode="json"))
    assert isinstance(values, dict)
    values["source"]["dsn"] = dsn.without_secrets(config.source.dsn.get_secret_value())
    return values


def without_secrets(text: str) -> str:
    """Return a URI or another text with asterisks for its secrets."""
    return _with_asterisks(text, one_uri=_ONE_URI.match(text) is not None)


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Return `text` with asterisks for each of `secrets`, also in the escaped forms of Python and JSON."""
    for secret in sorted(secrets, key=len, reverse=True):
        escaped = secret.encode("unicode_escape").decode("ascii")
        for form in {secret, repr(secret)[1:-1], escaped, json.dumps(secret)[1:-1]}:
            text = text.replace(form, HIDDEN)
    return text


def secret_values(config: Config) -> set[str]:
    """Return the secrets of a configuration except those below 4 characters, which occur in any text."""
    return {value for value in _secrets(config, ()) if len(value) >= 4}


def remember(config: Config) -> None:
    """Remember the secrets of a configuration in use, for `without_remembered`."""
    _remembered.update(secret_values(config))


def without_remembered(text: str) -> str:
    """Return a text from another program with asterisks for secrets.

    It hides the secrets of all configurations loaded in this process, and those of URIs. Our own texts do not need it,
    and a password may be a common word.
    """
    return _with_asterisks(redacted(text, _remembered), one_uri=False)


def kafka_secrets(kafka: Kafka) -> set[str]:
    """Return the secrets of the section ``[kafka]``, as `secret_values` does."""
    return {value for value in _secrets(kafka, ("kafka",)) if len(value) >= 4}


def _hidden(value: object, path: tuple[str, ...] = ()) -> object:
    if isinstance(value, dict):
        return {key: _hidden(below, (*path, str(key))) for key, below in value.items()}
    if isinstance(value, list):
        return [_hidden(item, path) for item in value]
    if value and _has_a_secret_name(path):
        return HIDDEN
    return without_secrets(value) if isinstance(value, str) else value


def _has_a_secret_name(path: tuple[str, ...]) -> bool:
    return path[:2] in _FREE and _NAME.search(path[-1]) is not None


def _secrets(value: object, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(value, SecretStr):
        secret = value.get_secret_value()
        yield from dsn.secrets(secret) if path[-1:] == ("dsn",) else (secret, *secret.splitlines())
    elif isinstance(value, BaseModel):
        for field in type(value).model_fields:
            yield from _secrets(getattr(value, field), (*path, field))
    elif isinstance(value, Mapping):
        for key, below in value.items():
            yield from _secrets(below, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets(item, path)
    elif _has_a_secret_name(path):
        yield str(value)
    elif isinstance(value, str):
        yield from _in_text(value)


def _in_text(text: str) -> Iterator[str]:
    for start, end in _spans(text, one_uri=_ONE_URI.match(text) is not None):
        secret = text[start:end]
        yield from (secret, unquote(secret), unquote_plus(secret), secret.strip("'\"{}").replace("}}", "}"))
        # A program that splits the URI elsewhere prints only a part of the secret, for example as the host.
        yield from re.split(r"[@/:?#&;,\s]", secret)


def _with_asterisks(text: str, *, one_uri: bool) -> str:
    parts, end = [], 0
    for start, stop in sorted(_spans(text, one_uri=one_uri)):
        if stop > end:
            parts += [text[end:start], HIDDEN] if start >= end else []
            end = stop
    return "".join([*parts, text[end:]])


def _spans(text: str, *, one_uri: bool) -> Iterator[tuple[int, int]]:
    """Yield where secrets begin and end in a text, which is one URI, or has URIs and parameters between spaces."""
    for word in [re.match(".*", text, re.S)] if one_uri else re.finditer(r"\S+", text):
        assert word is not None
        for start, end in _logins(word[0]):
            yield word.start() + start, word.start() + end
    for name in _PARAMETER.finditer(text):
        before = text[name.start() - 1 : name.start()]
        value = _VALUES[before if before in (";", "?", "&") else "", one_uri].match(text, name.end())
        if value is not None and value[0]:
            yield value.span()


def _logins(uri: str) -> Iterator[tuple[int, int]]:
    """Yield where the passwords before an @ begin and end; without a user before it, it may be a token."""
    end = 0
    if oracle := _ORACLE.search(uri):
        end = oracle.end() + _last_at(uri[oracle.end() :])
        if end > oracle.end():
            yield oracle.end(), end
    for scheme in _SCHEME.finditer(uri):
        start = scheme.end()
        if start < end or (at := _last_at(uri[start:])) <= 0:
            continue
        end = start + at
        user, colon, password = uri[start:end].partition(":")
        if colon and password:
            yield start + len(user) + 1, end
        elif not colon and "/" not in user and scheme[1].lower() not in _CONTAINERS:
            yield start, end


def _last_at(text: str) -> int:
    """Return the place of the @ before the host, -1 if there is none: a password may contain any character."""
    parameter = _FIRST_PARAMETER.search(text)
    before = text[: parameter.start()] if parameter else text
    at = before.rfind("@")
    return at if at >= 0 or _HOSTS.fullmatch(before.partition("/")[0]) else text.rfind("@")
