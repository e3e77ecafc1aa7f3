"""Keys of the configuration: the allowed keys, and the error for a wrong key or value.

Separate from `file`, because it depends on the model and not on the file.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tailrace.schemas.config.dsn import DsnError
from tailrace.schemas.config.model import PATTERNS, Config, KeyFault
from tailrace.schemas.errors import ConfigError


def path_of(keys: Sequence[str | int]) -> str:
    """Format keys as a dotted path: ``views.orders.key[0]``."""
    path = ""
    for key in keys:
        path += f"[{key}]" if isinstance(key, int) else f".{key}" if path else str(key)
    return path


def holds_json(keys: Sequence[str]) -> bool:
    """Return True if the key is a list or a table, which an environment variable gives as JSON."""
    annotation = _annotation(keys)
    return annotation is not None and (typing.get_origin(annotation) in (list, dict) or _model(annotation) is not None)


def key_error(error: ValidationError, file: Path | None, origins: Mapping[str, str]) -> ConfigError:
    """Return one error for all faults: the first is the message, the others are in the detail."""
    # include_input would quote values, and any value may be a secret.
    found = error.errors(include_url=False, include_context=True, include_input=False)
    # a misspelled key is more likely than a missing one
    first, *others = sorted(found, key=lambda each: each["type"] == "missing")
    keys = _keys(first)
    path = path_of(keys)
    origin = origins.get(path, f"file {file}" if file else "environment")
    if path not in origins and f"{path}_file" in origins:
        origin = f'the file named by "{path}_file", {origins[f"{path}_file"]}'
    more = "".join(f" Also: {_sentence(other)}." for other in others[:5])
    if len(others) > 5:
        more += f" And {len(others) - 5} more."
    unknown = first["type"] == "extra_forbidden"
    return ConfigError(
        "TR-105" if unknown else "TR-104",
        _sentence(first),
        detail=f"From {origin}.{more}",
        hint=_unknown_hint(keys) if unknown else _own_hint(first) or _hint(keys),
    )


def _own_hint(error: ErrorDetails) -> str:
    """Return the remedy that one of our own checks gives, or an empty string."""
    cause = error.get("ctx", {}).get("error")
    return f"{cause.hint}." if isinstance(cause, DsnError) else ""


def _sentence(error: ErrorDetails) -> str:
    path = path_of(_keys(error))
    if error["type"] == "extra_forbidden":
        return f'unknown key "{path}"'
    if error["type"] == "missing":
        return f'"{path}" is not set'
    if error["type"] == "string_pattern_mismatch" and error["ctx"]["pattern"] in PATTERNS:
        return f'"{path}" is wrong: it may contain {PATTERNS[error["ctx"]["pattern"]]}'
    message = error["msg"].removeprefix("Value error, ")
    return f'"{path}" is wrong: {message[:1].lower()}{message[1:]}'


def _keys(error: ErrorDetails) -> tuple[str | int, ...]:
    # pydantic marks a wrong key of a table with a last part "[key]".
    keys = tuple(part for part in error["loc"] if part != "[key]")
    cause = error.get("ctx", {}).get("error")
    return (*keys, *cause.key.split(".")) if isinstance(cause, KeyFault) else keys


def _unknown_hint(keys: Sequence[str | int]) -> str:
    model = _model(_annotation(keys[:-1]))
    known = sorted(model.model_fields) if model else []
    close = difflib.get_close_matches(str(keys[-1]), known, n=1)
    if close:
        return f'Did you mean "{path_of([*keys[:-1], close[0]])}"?'
    return f"Valid keys here: {', '.join(known)}."


def _hint(keys: Sequence[str | int]) -> str:
    names = [str(key) for key in keys if isinstance(key, str)]
    description = _description(names)
    said = f"{path_of(names)}: {description}." if description else "See `tailrace config schema`."
    if names and all(name.isidentifier() for name in names):
        said += f" In the environment: TAILRACE__{'__'.join(names).upper()}."
    return said


def _description(keys: Sequence[str]) -> str:
    model = _model(_annotation(keys[:-1])) if keys else None
    field = model.model_fields.get(keys[-1]) if model else None
    if field is None:
        return ""
    section = _model(field.annotation)
    return field.description or " ".join(((section and section.__doc__) or "").split())[:-1]


def _annotation(keys: Sequence[str | int]) -> Any:
    """Return the type at `keys`, None if there is no such key."""
    annotation: Any = Config
    for key in keys:
        model = _model(annotation)
        if model is not None:
            field = model.model_fields.get(str(key))
            annotation = field.annotation if field else None
        elif typing.get_origin(annotation) is dict:
            annotation = typing.get_args(annotation)[1]
        elif typing.get_origin(annotation) is list:
            annotation = typing.get_args(annotation)[0]
        else:
            return None
    return _required(annotation)


def _required(annotation: Any) -> Any:
    """Remove None from ``X | None``."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        rest = [part for part in typing.get_args(annotation) if part is not type(None)]
        return rest[0] if len(rest) == 1 else annotation
    return annotation


def _model(annotation: Any) -> type[BaseModel] | None:
    annotation = _required(annotation)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
