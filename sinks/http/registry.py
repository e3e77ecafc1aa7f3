"""Client of a schema registry with Confluent's API, which assigns the schema ids.

A schema that already has an id is not registered again. If a subject returns to an earlier schema, it gets the old id,
so ids do not show which schema is the newest: the schemas topic does.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from tailrace.schemas.config.model import Registry as Settings
from tailrace.schemas.config.secret import without_secrets
from tailrace.schemas.errors import ConfigError, SinkError, StateError
from tailrace.schemas.reasons import readable, reason
from tailrace.sinks.control.schema_topic import StoredSchema
from tailrace.sinks.http.reach import check_files, reach_hint

if TYPE_CHECKING:
    from confluent_kafka.schema_registry.error import SchemaRegistryError

REGISTRY_FAILED: Final = "TR-340"
"""The registry does not answer, or answers with an error; this may be transient."""

COPY_ANEW: Final = "use another kafka.prefix (and slot) to copy all tables again."
"""Hint for the last resort, when ids and schemas do not match."""

_ANSWER_S: Final = 3
"""Request timeout in seconds; short, because the stream is blocked meanwhile. The caller retries."""

_NO_SUCH_SCHEMA: Final = 40403
"""The registry's own error code; a plain 404 may come from a proxy."""

_JSON: Final = "application/vnd.schemaregistry.v1+json"
_NOT_FOUND: Final = 404
_INCOMPATIBLE: Final = 409
_INVALID: Final = 422


@dataclass(frozen=True, slots=True)
class Refusal:
    """A schema that a subject's compatibility rule rejects, with the calls that lift and restore the rule."""

    message: str
    detail: str
    lift: str
    restore: str


class SchemaRefused(StateError):
    """The registry rejects schemas of one table; `proceed` is the command to continue with lifted rules."""

    def __init__(self, refusals: Sequence[Refusal], proceed: str = "tailrace run") -> None:
        lines = [
            "If all readers of the subject accept the schema, lift its compatibility rule during the change:",
            *(each.lift for each in refusals),
            proceed,
            *(f"{each.restore}  # after the table is copied" for each in refusals),
        ]
        super().__init__(
            "TR-345",
            "; ".join(each.message for each in refusals),
            detail=" ".join(each.detail for each in refusals),
            hint="\n       ".join(lines),
        )
        self.refusals = tuple(refusals)


class Registry:
    """Confluent's registry client, with errors that give a hint."""

    def __init__(self, settings: Settings) -> None:
        """Create the client, which connects at the first request.

        ConfigError if it is not installed (TR-110) or a TLS file cannot be used (TR-349).
        """
        self._settings = settings
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError as error:
            raise ConfigError(
                "TR-110",
                "the schema registry client is not installed",
                detail=f"{error}.",
                hint="pip install 'tailrace[registry]'",
            ) from None
        check_files("registry", settings)
        self._client = SchemaRegistryClient(_options(settings))

    def close(self) -> None:
        self._client.close()

    def check(self, known: StoredSchema | None) -> None:
        """Check that the registry answers, and that it is the one that assigned the id of `known`.

        SinkError (TR-340) if it does not answer, StateError (TR-346) if it is another registry.
        """
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        with self._named_errors():
            if known is None:
                self._client.get_schema_types()
                return
            try:
                found: str | None = self._client.get_schema(known.id).schema_str
            except SchemaRegistryError as error:
                if error.error_code != _NO_SUCH_SCHEMA:
                    raise
                found = None
        if found is None or not _same(found, known.schema):
            raise another_registry(
                f'the schema registry at "{without_secrets(self._settings.url)}" does not have schema {known.id}',
                f'It has {"no" if found is None else "another"} schema under this id; ours is of "{known.subject}".',
            )

    def register(self, subject: str, schema: str) -> int:
        """Register an Avro schema under `subject` and return its id.

        SinkError (TR-340) if the registry does not answer or fails, StateError (TR-345) if it rejects the schema.
        """
        from confluent_kafka.schema_registry import Schema
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        with self._named_errors():
            try:
                return self._client.register_schema(subject, Schema(schema, "AVRO"))
            except SchemaRegistryError as error:
                if error.http_status_code not in (_INCOMPATIBLE, _INVALID):
                    raise
                raise self._refused(subject, error) from None

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        import httpx2
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        status = None
        try:
            yield
            return
        except SchemaRegistryError as error:
            status, why = (
                error.http_status_code,
                f"{error.http_status_code} {readable(error.error_message or '')}".strip(),
            )
            what = why
        except (httpx2.HTTPError, ValueError) as error:  # ValueError: the answer is no JSON
            why, what = reason(error), f"{type(error).__name__}: {error}"
        raise SinkError(
            REGISTRY_FAILED,
            f'a request to the schema registry at "{without_secrets(self._settings.url)}" failed',
            detail=f"{why[:300].rstrip('.')}.",
            hint=reach_hint("registry", self._settings, "/subjects", status, what),
        )

    def _refused(self, subject: str, error: SchemaRegistryError) -> SchemaRefused:
        """Return the error for a rejected schema, with the calls that lift and restore the rule.

        We do not lift it ourselves: somebody set it to protect the topic's readers.
        """
        return SchemaRefused(
            [
                Refusal(
                    f'the schema registry rejects a schema of subject "{subject}"',
                    f"{error.http_status_code} {(error.error_message or '')[:600]}",
                    lift=self._curl(subject, "NONE"),
                    restore=self._curl(subject, self._level(subject)),
                )
            ]
        )

    def _level(self, subject: str) -> str | None:
        """Return the compatibility level of a subject: its own, else the registry's; None if neither has one.

        The registry's level is given explicitly because not every registry returns to it when a subject's is deleted.
        """
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        for asked in (subject, None):
            try:
                level = self._client.get_compatibility(asked)
            except SchemaRegistryError as error:
                if error.http_status_code != _NOT_FOUND:
                    raise
                continue
            if level != "NONE":
                return level
        return None

    def _curl(self, subject: str, level: str | None) -> str:
        """Return the command that sets the compatibility level of a subject, or deletes it if `level` is None."""
        options = {
            "-u": self._settings.user,  # curl asks for the password
            "--cacert": self._settings.ca_file,
            "--cert": self._settings.cert_file,
            "--key": self._settings.key_file,
        }
        given = "".join(f" {name} {shlex.quote(value)}" for name, value in options.items() if value)
        what = "-X DELETE"
        if level is not None:
            what = f"-X PUT -H 'Content-Type: {_JSON}' --data '{{\"compatibility\": \"{level}\"}}'"
        return f"curl{given} {what} {without_secrets(self._settings.urls[0]).rstrip('/')}/config/{subject}"


def another_registry(message: str, detail: str) -> StateError:
    """Return the error for a registry that did not assign our ids."""
    return StateError(
        "TR-346",
        message,
        detail=f"{detail} It is another registry, or it has lost data.",
        hint=f"Restore the registry, undo the change of registry.url, or {COPY_ANEW}",
    )


def _options(settings: Settings) -> dict[str, Any]:
    options = {
        "url": settings.url,
        "ssl.ca.location": settings.ca_file,
        "ssl.certificate.location": settings.cert_file,
        "ssl.key.location": settings.key_file,
        "timeout": _ANSWER_S,
        "max.retries": 0,
    }
    if settings.user is not None and settings.password is not None:
        options["basic.auth.user.info"] = f"{settings.user}:{settings.password.get_secret_value()}"
    return {name: value for name, value in options.items() if value is not None}


def _same(found: str, ours: str) -> bool:
    """Return whether two schemas have the same canonical form; registries reformat stored schemas."""
    from fastavro.schema import to_parsing_canonical_form

    return to_parsing_canonical_form(orjson.loads(found)) == to_parsing_canonical_form(orjson.loads(ours))
