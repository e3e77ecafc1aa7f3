"""A schema registry with Confluent's API: it gives schemas their ids, and is asked for no schema that has one.

A schema that a subject has had before has its old id, so ids do not tell which is the newest: the schemas topic does.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from tailrace.schemas.config.model import Registry as Settings
from tailrace.schemas.errors import ConfigError, SinkError, StateError
from tailrace.schemas.reasons import reason
from tailrace.sinks.control.schema_topic import StoredSchema
from tailrace.sinks.http.reach import check_files, reach_hint

if TYPE_CHECKING:
    from confluent_kafka.schema_registry.error import SchemaRegistryError

REGISTRY_FAILED: Final = "TR-340"
"""The registry does not answer, or not as it should: it may by and by."""

COPY_ANEW: Final = "take another kafka.prefix (and slot) to copy all tables anew."
"""What is left to do where ids and schemas do not go together, for a hint."""

_ANSWER_S: Final = 3
"""The stream stands still meanwhile; whoever asks tries again."""

_NO_SUCH_SCHEMA: Final = 40403
"""The registry's own code: a 404 alone may be a proxy's."""

_JSON: Final = "application/vnd.schemaregistry.v1+json"
_NOT_FOUND: Final = 404
_INCOMPATIBLE: Final = 409
_INVALID: Final = 422


@dataclass(frozen=True, slots=True)
class Refusal:
    """A subject whose rule is against a schema: what happened, and the calls that lift and restore the rule."""

    message: str
    detail: str
    lift: str
    restore: str


class SchemaRefused(StateError):
    """The registry's rules are against schemas of one table; `proceed` is the command that continues with them."""

    def __init__(self, refusals: Sequence[Refusal], proceed: str = "tailrace run") -> None:
        lines = [
            "If the subject's readers can take it, lift its rule for as long as the change needs:",
            *(each.lift for each in refusals),
            proceed,
            *(f"{each.restore}  # then, when the table is copied" for each in refusals),
        ]
        super().__init__(
            "TR-345",
            "; ".join(each.message for each in refusals),
            detail=" ".join(each.detail for each in refusals),
            hint="\n       ".join(lines),
        )
        self.refusals = tuple(refusals)


class Registry:
    """Confluent's own client of a registry, with errors that say what to do."""

    def __init__(self, settings: Settings) -> None:
        """Make the client; it connects when it is asked. ConfigError if it cannot be made so."""
        self._settings = settings
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError as error:
            raise ConfigError(
                "TR-110",
                "the client of schema registries is not installed",
                detail=f"{error}.",
                hint="pip install 'tailrace[registry]'",
            ) from None
        check_files("registry", settings)
        self._client = SchemaRegistryClient(_options(settings))

    def close(self) -> None:
        self._client.close()

    def check(self, known: StoredSchema | None) -> None:
        """See that it answers, and that it is the one that `known` has its id from.

        SinkError (TR-340) if it does not answer, StateError (TR-346) if it is another one.
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
                f"the registry at {self._settings.url} does not have our schema {known.id}",
                f'It has {"none" if found is None else "another"} under that id; ours is of "{known.subject}".',
            )

    def register(self, subject: str, schema: str) -> int:
        """Return the id of an Avro schema under `subject`; it is there afterwards.

        SinkError (TR-340) if the registry does not answer as it should, StateError (TR-345) if it refuses the schema.
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
            status, why = error.http_status_code, f"{error.http_status_code} {error.error_message or ''}".strip()
            what = why
        except (httpx2.HTTPError, ValueError) as error:  # ValueError: the answer is no JSON
            why, what = reason(error), f"{type(error).__name__}: {error}"
        raise SinkError(
            REGISTRY_FAILED,
            f"the schema registry at {self._settings.url} does not do what it was asked",
            detail=f"{why[:300].rstrip('.')}.",
            hint=reach_hint("registry", self._settings, "/subjects", status, what),
        )

    def _refused(self, subject: str, error: SchemaRegistryError) -> SchemaRefused:
        """Return the error for a schema that the registry refuses, with the calls that let it pass.

        The rule is not lifted by us: somebody has set it for the readers of the topic.
        """
        return SchemaRefused(
            [
                Refusal(
                    f'the registry refuses a schema of subject "{subject}"',
                    f"{error.http_status_code} {(error.error_message or '')[:600]}",
                    lift=self._curl(subject, "NONE"),
                    restore=self._curl(subject, self._level(subject)),
                )
            ]
        )

    def _level(self, subject: str) -> str | None:
        """Return the rule that holds for a subject: its own, else the registry's, which not every registry takes up
        again when a subject's is deleted. None if neither is known.
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
        """Return the command that sets the rule of a subject, or takes it away."""
        options = {
            "-u": self._settings.user,  # it asks for the password
            "--cacert": self._settings.ca_file,
            "--cert": self._settings.cert_file,
            "--key": self._settings.key_file,
        }
        given = "".join(f" {name} {shlex.quote(value)}" for name, value in options.items() if value)
        what = "-X DELETE"
        if level is not None:
            what = f"-X PUT -H 'Content-Type: {_JSON}' --data '{{\"compatibility\": \"{level}\"}}'"
        return f"curl{given} {what} {self._settings.urls[0].rstrip('/')}/config/{subject}"


def another_registry(message: str, detail: str) -> StateError:
    """Return the error for a registry that our ids are not from."""
    return StateError(
        "TR-346",
        message,
        detail=f"{detail} So it is another registry, or has lost what it had.",
        hint=f"Restore it, or undo a change of registry.url, or {COPY_ANEW}",
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
    """Whether two schemas read alike: registries write a schema in their own form."""
    from fastavro.schema import to_parsing_canonical_form

    return to_parsing_canonical_form(orjson.loads(found)) == to_parsing_canonical_form(orjson.loads(ours))
