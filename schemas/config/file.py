"""Find ``tailrace.toml``, expand its variables, apply environment and flags, and validate it.

Every fault is one `ConfigError` that names the key and the remedy. An error never contains a value: any value may be a
secret, expanded or literal.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from tailrace.schemas.config.keys import holds_json, key_error, path_of
from tailrace.schemas.config.model import Config
from tailrace.schemas.config.secret import remember
from tailrace.schemas.config.secret_file import SecretFileError
from tailrace.schemas.errors import ConfigError

FILE_NAME: Final = "tailrace.toml"
ENVIRONMENT_PREFIX: Final = "TAILRACE__"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A validated configuration and the origins of its values.

    `path` is None if there was no file. `origins` maps every key that is set to its origin.
    """

    config: Config
    path: Path | None
    origins: dict[str, str]


def load(
    path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """Return the configuration. `overrides` (dotted key → value) precede environment, file and defaults."""
    return read(path, overrides, environ).config


def read(
    path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Loaded:
    """Return the configuration as `load` does, with the origin of each value."""
    variables = {name: value for name, value in environ.items() if name.startswith(ENVIRONMENT_PREFIX)}
    # A container may have all settings in its environment and no file.
    file = find(path, environ, needed=not variables)
    origins: dict[str, str] = {}
    values: dict[str, Any] = {}
    if file is not None:
        values = _expanded(_parsed(file), (), environ, file)
        _note(values, (), f"file {file}", origins)
    for name in sorted(variables):
        keys = tuple(part.lower() for part in name.removeprefix(ENVIRONMENT_PREFIX).split("__"))
        _put(values, keys, _from_environment(name, keys, variables[name]), f"environment {name}", origins)
    for key, value in (overrides or {}).items():
        _put(values, tuple(key.split(".")), value, "flag", origins)
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        # `from None`: pydantic's own text quotes the input.
        raise key_error(error, file, origins) from None
    except SecretFileError as error:
        given = error.key.removesuffix("_file")
        raise ConfigError(
            "TR-106",
            f'the file named by "{error.key}" cannot be read',
            detail=f"{error.path}: {error.reason}.",
            hint=f'ls -l {error.path}; or set the value itself: {given} = "${{VARIABLE}}".',
        ) from None
    remember(config)
    return Loaded(config, file, origins)


def find(path: Path | None, environ: Mapping[str, str], *, needed: bool = True) -> Path | None:
    """Return the first file that exists: `path`, TAILRACE_CONFIG, the current folder, /etc/tailrace.

    If `path` or TAILRACE_CONFIG is given and missing, the search ends: the next file may be another pipeline's.
    """
    chosen = path or (Path(environ["TAILRACE_CONFIG"]) if environ.get("TAILRACE_CONFIG") else None)
    places = [chosen] if chosen else [Path(FILE_NAME), Path("/etc/tailrace") / FILE_NAME]
    for place in places:
        if _is_there(place):
            return place.absolute()
    if not needed and chosen is None:
        return None
    looked = [
        f"--config ({path or 'not given'})",
        f"TAILRACE_CONFIG ({environ.get('TAILRACE_CONFIG') or 'not set'})",
        *(str(place.absolute()) for place in places if not chosen),
    ]
    raise ConfigError(
        "TR-101",
        "no configuration file",
        detail=f"Searched in this order: {'; '.join(looked)}.",
        hint="Add --config FILE, or run `tailrace dev up`, which writes a file for the demo.",
    )


def _is_there(place: Path) -> bool:
    """Return True if the file exists. Raises ConfigError TR-106 for a folder, device or unreadable path.

    The search does not skip these: the next file may be another pipeline's.
    """
    try:
        kind = place.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unreadable(place, error) from None
    if stat.S_ISREG(kind):
        return True
    what = "a folder" if stat.S_ISDIR(kind) else "not a regular file"
    raise ConfigError(
        "TR-106",
        f'the configuration "{place}" is {what}',
        detail="The configuration is one TOML file.",
        hint=f"--config {place / FILE_NAME}" if stat.S_ISDIR(kind) else f"ls -l {place}",
    )


def _unreadable(file: Path, error: OSError) -> ConfigError:
    return ConfigError(
        "TR-106",
        f'configuration file "{file}" cannot be read',
        detail=f"{error.strerror}.",
        hint=f"ls -l {file}",
    )


def _parsed(file: Path) -> dict[str, Any]:
    try:
        # Windows editors begin a file with a byte order mark
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            "TR-102",
            f'configuration file "{file}" is not valid TOML',
            detail=f"{error}.",
            hint='Put strings in quotes and section names in brackets: [kafka] bootstrap = "localhost:9092".',
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            "TR-102",
            f'configuration file "{file}" is not UTF-8',
            detail=f"Invalid byte at offset {error.start}.",
            hint=f"iconv -f latin1 -t utf-8 {file} > {file}.new",
        ) from None
    except OSError as error:
        raise _unreadable(file, error) from None


_REFERENCE = re.compile(r"\$\$|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|\$\{")


def _expanded(value: Any, keys: tuple[str | int, ...], environ: Mapping[str, str], file: Path) -> Any:
    """Expand variables in the strings of `value`. As in a shell, ``:-`` also replaces an empty variable."""
    if isinstance(value, dict):
        return {key: _expanded(item, (*keys, key), environ, file) for key, item in value.items()}
    if isinstance(value, list):
        return [_expanded(item, (*keys, n), environ, file) for n, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replacement(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name, default = match["name"], match["default"]
        if name is None:
            raise ConfigError(
                "TR-103",
                f'"{path_of(keys)}" has a "${{" without a variable name',
                detail=f"File {file}.",
                hint="Write ${NAME} or ${NAME:-default}; for a literal dollar sign, write $$.",
            )
        if default is not None:
            return environ.get(name) or default
        if name not in environ:
            raise ConfigError(
                "TR-103",
                f'"{path_of(keys)}" needs the environment variable "{name}", which is not set',
                detail=f"File {file}.",
                hint=f"export {name}=..., or give a default: ${{{name}:-value}}.",
            )
        return environ[name]

    return _REFERENCE.sub(replacement, value)


def _from_environment(name: str, keys: tuple[str, ...], text: str) -> Any:
    """Parse lists and tables as JSON; leave other text to the model, which parses numbers."""
    if not holds_json(keys):
        return text
    import orjson

    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise ConfigError(
            "TR-104",
            f'the environment variable "{name}" is not valid JSON',
            detail=f'"{path_of(keys)}" is a list or a table, which the environment gives as JSON.',
            hint=f"""export {name}='["public.*"]', or {name}='{{"key": "value"}}' for a table.""",
        ) from None


def _put(values: dict[str, Any], keys: tuple[str, ...], value: Any, origin: str, origins: dict[str, str]) -> None:
    node = values
    for key in keys[:-1]:
        below = node.get(key)
        if not isinstance(below, dict):
            below = node[key] = {}
        node = below
    node[keys[-1]] = value
    _note(value, keys, origin, origins)


def _note(value: Any, keys: tuple[str, ...], origin: str, origins: dict[str, str]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _note(item, (*keys, key), origin, origins)
    else:
        origins[path_of(keys)] = origin
