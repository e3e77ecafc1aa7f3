"""The layout of a view's index: mapping, settings and routing; what of it Tailrace does not leave to a view.

Whatever the mapping is, every value of a column can be stored: one that a field cannot hold remains unindexed. So a
field has a type that accepts any text or ignores what is malformed, and a keyword ignores what is too long for Lucene.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import orjson

from tailrace.schemas.config.model import View
from tailrace.schemas.errors import ConfigError
from tailrace.sinks.opensearch.documents import field_of, mapping

_DEFAULTS: Final[Mapping[str, Any]] = {
    "number_of_shards": 1,
    "auto_expand_replicas": "0-1",
    "refresh_interval": "-1",
    "gc_deletes": "1h",
    "mapping.total_fields.limit": 5000,
}
_REPLICAS: Final = ("number_of_replicas", "auto_expand_replicas")
"""Settings that an index in use accepts: a change of them needs no rebuild."""

_REFUSED: Final[Mapping[str, str]] = {
    "refresh_interval": "a search would see a part of a batch; each batch is refreshed at its end",
    "gc_deletes": "a batch that is repeated would bring back deleted documents",
    "default_pipeline": "a pipeline would change documents",
    "final_pipeline": "a pipeline would change documents",
    "search.default_pipeline": "a pipeline would change the documents that Tailrace reads",
    "routing_partition_size": "the key of a document must decide its shard",
    "blocks.": "batches could not be written",
    "soft_deletes.": "OpenSearch remembers deletes by them",
}
"""Settings and, with a dot at the end, beginnings of their names, that a view cannot set, and the reason."""

_ANY_TEXT: Final = frozenset(("text", "match_only_text", "search_as_you_type", "token_count"))
_KEYWORDS: Final = frozenset(("keyword", "wildcard"))
_NUMBERS: Final = ("byte", "short", "integer", "long", "half_float", "float", "double", "scaled_float")
_TOLERANT: Final = frozenset((*_NUMBERS, "date", "ip", "geo_point", "geo_shape"))
_FROM_ITS_COLUMN: Final = frozenset(("object", "nested", "binary", "boolean"))
"""Field types that a value of another type does not fit."""

_LONGEST_KEYWORD: Final = 8191
"""Characters, of up to four bytes each, that Lucene's longest term can hold."""


@dataclass(frozen=True, slots=True)
class IndexLayout:
    """The layout of an index; by default the one that the columns' types give. `settings` have dotted names."""

    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    routing: str | None = None

    @classmethod
    def of(cls, name: str, view: View) -> Self:
        """Return the layout that a view declares. ConfigError (TR-536) for a setting that it cannot set."""
        settings = {key.removeprefix("index."): value for key, value in _flat("", view.index_settings)}
        for given in settings:
            if reason := next((why for key, why in _REFUSED.items() if _matches(given, key)), None):
                raise _refused(name, f'the index setting "{given}"', reason, "index_settings")
        for column, parameters in view.mapping.items():
            _check(name, column, parameters)
        return cls(view.mapping, settings, view.routing)

    @property
    def identity(self) -> str | None:
        """The identity of what only a rebuild can change; None if there is nothing."""
        fixed = {key: value for key, value in self.settings.items() if key not in _REPLICAS}
        if not self.fields and not fixed and self.routing is None:
            return None
        settings = [self.fields, fixed, self.routing]
        return hashlib.sha256(orjson.dumps(settings, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]

    @property
    def all_settings(self) -> dict[str, Any]:
        """The settings of a new index."""
        found = {**_DEFAULTS, **self.settings}
        if "number_of_replicas" in self.settings and "auto_expand_replicas" not in self.settings:
            found["auto_expand_replicas"] = "false"
        return found

    @property
    def replicas(self) -> dict[str, Any]:
        """The settings that an index in use gets as well."""
        return {key: value for key, value in self.all_settings.items() if key in _REPLICAS}

    def check(self, view: str, columns: Mapping[str, object], key: Sequence[str]) -> None:
        """Raise ConfigError (TR-535) if a column is not there, or the one of `routing` is not in the key."""
        for column in self.fields:
            if column not in columns:
                raise ConfigError(
                    "TR-535",
                    f'view "{view}" has no column "{column}", which its `mapping` names',
                    detail=f"Its columns: {', '.join(columns)}.",
                    hint=f"Change `mapping` of [views.{view}].",
                )
        if self.routing is not None and self.routing not in key:
            raise ConfigError(
                "TR-535",
                f'view "{view}" cannot be routed by "{self.routing}", which is not a column of its key',
                detail=f"Its key: {', '.join(key)}. Of a deleted row, only the key is known, and so its shard.",
                hint=f"Change `routing` of [views.{view}].",
            )

    def mapping(self, view: str, types: Mapping[str, str], key: Sequence[str]) -> dict[str, Any]:
        """Return the index mapping for columns of these Spark types.

        ConfigError (TR-536) for a field that could not hold each value of its column.
        """
        found = mapping(types, key)
        for column, given in self.fields.items():
            if (name := field_of(column)) in found["properties"]:
                found["properties"][name] = _merged(view, column, found["properties"][name], given)
        return found


def _merged(view: str, path: str, own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a field's parameters: the given ones over its own, if these are of the same type."""
    had = own.get("type", "object")
    kind = given.get("type", had)
    if kind != had:
        if had == "object" and own.get("enabled") is False and kind == "flat_object":
            return dict(given)
        if kind in _FROM_ITS_COLUMN or had in ("object", "nested", "binary"):
            raise _refused(view, f'type "{kind}" for "{path}"', f'its column\'s type needs "{had}"', "mapping")
        own = {}
    found = _tolerant({**own, **given, "type": kind}, changed=kind != had)
    if "fields" in own or "fields" in given:
        more = {name: _tolerant(of, changed=True) for name, of in given.get("fields", {}).items()}
        found["fields"] = {**own.get("fields", {}), **more}
    if "properties" in own:
        below = dict(own["properties"])
        for name, of in given.get("properties", {}).items():
            if (inner := field_of(name)) not in below:
                raise _refused(view, f'"{path}.{name}"', "its column has no such field", "mapping")
            below[inner] = _merged(view, f"{path}.{name}", below[inner], of)
        found["properties"] = below
    return found


def _tolerant(parameters: Mapping[str, Any], *, changed: bool) -> dict[str, Any]:
    kind, found = parameters["type"], dict(parameters)
    if changed and kind in _TOLERANT:
        found["ignore_malformed"] = True
    if changed and kind in _KEYWORDS:
        found.setdefault("ignore_above", _LONGEST_KEYWORD)
    return found


def _check(view: str, path: str, given: Mapping[str, Any]) -> None:
    """Raise ConfigError (TR-536) for a parameter of a field that a view cannot set."""
    kind = given.get("type")
    known = _ANY_TEXT | _KEYWORDS | _TOLERANT | _FROM_ITS_COLUMN | {"flat_object"}
    if kind is not None and kind not in known:
        reason = "such a field may refuse a value, which would stop the view"
        raise _refused(view, f'type "{kind}" for "{path}"', reason, "mapping")
    for name in ("dynamic", "enabled"):
        if name in given:
            raise _refused(view, f'"{name}" of "{path}"', "the columns alone decide which fields there are", "mapping")
    if given.get("ignore_malformed") is False:
        reason = "a value that the field cannot hold would stop the view"
        raise _refused(view, f'"ignore_malformed" of "{path}"', reason, "mapping")
    if not _in_bounds(given.get("ignore_above", 0)):
        reason = f"a longer value than {_LONGEST_KEYWORD} characters would stop the view"
        raise _refused(view, f'"ignore_above" of "{path}"', reason, "mapping")
    for group in ("fields", "properties"):
        inside = given.get(group, {})
        for name, of in inside.items() if isinstance(inside, dict) else ():
            if not isinstance(of, dict) or (group == "fields" and "type" not in of):
                raise _refused(view, f'"{path}.{name}"', "a field is a table with its `type`", "mapping")
            _check(view, f"{path}.{name}", of)


def _in_bounds(ignore_above: object) -> bool:
    return isinstance(ignore_above, int) and 0 <= ignore_above <= _LONGEST_KEYWORD


def _refused(view: str, what: str, reason: str, key: str) -> ConfigError:
    return ConfigError(
        "TR-536",
        f'view "{view}" cannot set {what}',
        detail=f"{reason[:1].upper()}{reason[1:]}.",
        hint=f"Take it out of `{key}` of [views.{view}].",
    )


def _flat(prefix: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value


def _matches(name: str, refused: str) -> bool:
    return name.startswith(refused) if refused.endswith(".") else name == refused
