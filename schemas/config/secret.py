"""Secret settings: `config show` hides them, and they are removed from texts that may quote them.

Secret are all settings of type `SecretStr`, free options with a secret name, and passwords in a connection string or
URL. The rest of a connection string is shown: host, port, database, user, sslmode.
"""

from __future__ import annotations

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

_WORDS: Final = r"password|passwd|passphrase|secret|token|credential|jaas|private|api.?key|access.?key|account.?key"
_NAME: Final = re.compile(rf"{_WORDS}|\bpwd\b|\.key$|\.pem$|\.key\.", re.I)
# a password may contain an @, so the match ends at the last @ before a slash
_USER_INFO: Final = re.compile(r"(?<=://)([^/\s]*)@")
_PARAMETER: Final = re.compile(rf"((?:^|[?&;\s,-])[\w.-]*(?:{_WORDS}|\bpwd)[\w.-]*=)([^&;\s\"']+)", re.I)


def shown(config: Config) -> dict[str, Any]:
    """Return the settings as plain values, with asterisks for secrets."""
    values = _hidden(config.model_dump(mode="json"))
    assert isinstance(values, dict)
    values["source"]["dsn"] = dsn.without_secrets(config.source.dsn.get_secret_value())
    return values


def without_secrets(text: str) -> str:
    """Return a URL or another text with asterisks for its passwords."""
    return _PARAMETER.sub(rf"\g<1>{HIDDEN}", _USER_INFO.sub(_without_password, text))


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Return `text` with asterisks for each of `secrets`, also in the escaped forms of Python."""
    for secret in sorted(secrets, key=len, reverse=True):
        for form in {secret, repr(secret)[1:-1], secret.encode("unicode_escape").decode("ascii")}:
            text = text.replace(form, HIDDEN)
    return text


def secret_values(config: Config) -> set[str]:
    """Return the secrets of a configuration except those below 4 characters, which occur in any text."""
    return {value for value in _secrets(config, ()) if len(value) >= 4}


def remember(config: Config) -> None:
    """Remember the secrets of a configuration in use, for the place that prints tracebacks."""
    _remembered.update(secret_values(config))


def without_remembered(text: str) -> str:
    """Return `text` without the secrets of all configurations loaded in this process."""
    return redacted(text, _remembered)


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


def _without_password(found: re.Match[str]) -> str:
    user, colon, _ = found[1].partition(":")
    # without a colon, the user part may be a token
    return f"{user}:{HIDDEN}@" if colon else f"{HIDDEN}@"


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
    for user_info in _USER_INFO.findall(text):
        user, colon, password = user_info.partition(":")
        yield from (password, unquote(password)) if colon else (user, unquote(user))
    for _, value in _PARAMETER.findall(text):
        yield from (value, unquote_plus(value))
