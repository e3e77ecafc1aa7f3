"""`tailrace config`: what the configuration is, and what it can be."""

from __future__ import annotations

import re

import typer

from cdc.cli import output
from cdc.cli.options import ConfigFile, Json

app = typer.Typer(help="Show the configuration and its reference.", no_args_is_help=True)


@app.command()
def show(config: ConfigFile = None, json: Json = False) -> None:
    """Print every setting in force and where it comes from; secrets are hidden."""
    from schemas.configfile import read

    loaded = read(config)
    values = _without_secrets(loaded.config.model_dump(mode="json"))
    if json:
        output.json({"file": loaded.path, "config": values, "origins": loaded.origins})
        return
    output.line(f"# {loaded.path or 'no file, environment only'}")
    rows = [(key, _literal(value), loaded.origins.get(key, "default")) for key, value in _flat("", values)]
    output.table(("key", "value", "from"), rows)


@app.command()
def schema() -> None:
    """Print the JSON Schema of tailrace.toml, for editors."""
    from schemas.config import Config

    output.json(Config.model_json_schema())


_SECRET = re.compile(r"password|passwd|secret|token|credential|jaas|\.key$|\.pem$|private", re.I)
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")


def _without_secrets(value: object, key: str = "") -> object:
    """Hide what the model cannot know to be secret: free options by their names, passwords in URLs."""
    if isinstance(value, dict):
        return {name: _without_secrets(below, name) for name, below in value.items()}
    if isinstance(value, list):
        return [_without_secrets(item, key) for item in value]
    if isinstance(value, str):
        return "**********" if value and _SECRET.search(key) else _USER_INFO.sub("**********@", value)
    return value


def _flat(path: str, value: object) -> list[tuple[str, object]]:
    if isinstance(value, dict) and value:
        return [
            leaf
            for key, below in value.items()
            if below is not None
            for leaf in _flat(f"{path}.{key}" if path else key, below)
        ]
    return [(path, value)]


def _literal(value: object) -> str:
    import orjson

    return orjson.dumps(value).decode()
