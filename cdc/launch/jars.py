"""Named sets of jars, fetched once into a cache folder and then available offline.

The embedded Kafka and OpenSearch run from them, and Spark gets its connectors from them. `--packages` is never used: it
queries a second repository and fetches jars that Spark already has.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from tailrace.cdc.launch import ivy
from tailrace.cdc.launch.jar_lock import check, locked_jars
from tailrace.cdc.launch.jar_sets import JAR_SETS
from tailrace.cdc.launch.lock import locked
from tailrace.schemas.errors import ConfigError


def cache_folder() -> Path:
    """Return $TAILRACE_CACHE, else $XDG_CACHE_HOME/tailrace, else ~/.cache/tailrace."""
    if os.environ.get("TAILRACE_CACHE"):
        return Path(os.environ["TAILRACE_CACHE"]).absolute()
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"], "tailrace").absolute()
    return Path.home() / ".cache" / "tailrace"


def are_fetched(set_name: str) -> bool:
    """Return whether the jars of a set are in the cache, complete."""
    return _complete(cache_folder() / "jars" / f"{set_name}-{JAR_SETS[set_name].fingerprint}") is not None


def jars(set_name: str) -> list[Path]:
    """Return the jars of a set, complete; the first call fetches them, later calls need no network.

    Safe to call from several processes: one fetches, the others wait. An interrupted fetch resumes. Raises ConfigError
    TR-613 for an unknown set.
    """
    if set_name not in JAR_SETS:
        raise ConfigError("TR-613", f"no jar set {set_name!r}", detail=f"Jar sets: {', '.join(JAR_SETS)}.")
    cache = cache_folder()
    folder = cache / "jars" / f"{set_name}-{JAR_SETS[set_name].fingerprint}"
    there = _complete(folder)
    if there is not None:
        return there
    # One lock for all sets: they share Ivy's cache, which does not support two writers.
    with locked(cache / "fetch.lock"):
        there = _complete(folder)
        if there is None:
            there = _fetch(set_name, cache, folder)
    return there


def _fetch(set_name: str, cache: Path, folder: Path) -> list[Path]:
    show, done = _progress(set_name)
    show("querying the repository")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = JAR_SETS[set_name]
    known = locked_jars(set_name, wanted)
    # a set that was changed without its lock is asked for as it is
    modules, transitive = (wanted.modules, wanted.transitive) if known is None else (list(known), False)
    ivy.retrieve(modules, transitive=transitive, cache=cache / "ivy", into=folder, progress=show)
    if known is not None:
        check(folder, known)
    files = sorted([*folder.glob("*.jar"), *folder.glob("*.tar.gz")])
    # Written last and atomically, so that a folder with a marker is complete.
    unfinished = folder / "complete.json.new"
    unfinished.write_text(json.dumps({path.name: path.stat().st_size for path in files}, indent=1), encoding="utf-8")
    unfinished.replace(folder / "complete.json")
    done(f"{len(files)} jars, {sum(path.stat().st_size for path in files) / 1e6:.0f} MB in {folder}")
    return files


def _complete(folder: Path) -> list[Path] | None:
    """Return the jars that the marker lists, or None if one is missing or has another size."""
    try:
        sizes: dict[str, int] = json.loads((folder / "complete.json").read_text(encoding="utf-8"))
        whole = all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return None
    return [folder / name for name in sizes] if whole and sizes else None


def _progress(set_name: str) -> tuple[Callable[[str], None], Callable[[str], None]]:
    """Return the callbacks for a step and for the end: one line, overwritten; in a log, two lines."""
    terminal = sys.stderr.isatty()
    steps = 0

    def show(text: str) -> None:
        nonlocal steps
        steps += 1
        if terminal:
            sys.stderr.write(f"\r\x1b[2Kfetching jars for {set_name}: {text}")
            sys.stderr.flush()
        elif steps == 1:
            print(f"fetching jars for {set_name} (once)", file=sys.stderr, flush=True)

    def done(text: str) -> None:
        start = "\r\x1b[2K" if terminal else ""
        print(f"{start}jars for {set_name}: {text}", file=sys.stderr, flush=True)

    return show, done
