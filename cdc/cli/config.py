"""`tailrace config`: the settings in force and their JSON Schema."""

from __future__ import annotations

from tailrace.cdc.cli import output
from tailrace.cdc.cli.options import ConfigFile, Json
from tailrace.cdc.cli.tree import App

app = App(help="Show the settings in force and their JSON Schema.")


@app.command()
def show(config: ConfigFile = None, json: Json = False) -> None:
    """Print every setting in force and its origin. Passwords and other secrets are hidden."""
    from tailrace.schemas.config.file import read
    from tailrace.schemas.config.secret import shown

    loaded = read(config)
    values = shown(loaded.config)
    if json:
        output.json({"file": loaded.path, "config": values, "origins": loaded.origins})
        return
    output.line(f"# {loaded.path or 'no file, environment only'}")
    rows = [(key, _literal(value), loaded.origins.get(key, "default")) for key, value in _flat("", values)]
    output.table(("key", "value", "from"), rows, breaks_words=True)


@app.command()
def schema() -> None:
    """Print the JSON Schema of tailrace.toml, for editors."""
    from tailrace.schemas.config.model import Config

    output.json(Config.model_json_schema())


def _flat(path: str, value: object) -> list[tuple[str, object]]:
    if isinstance(value, dict) and value:
        return [leaf for key, below in value.items() for leaf in _flat(f"{path}.{key}" if path else key, below)]
    return [(path, value)]


def _literal(value: object) -> str:
    import orjson

    return orjson.dumps(value).decode()
