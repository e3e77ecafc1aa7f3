"""Named sets of jars, fetched once into a cache folder and then available offline.

The embedded Kafka and OpenSearch run from them, and Spark gets its connectors from them. `--packages` is never used: it
queries a second repository and fetches jars that Spark already has.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tailrace.cdc.launch import ivy
from tailrace.cdc.launch.jar_lock import LockedJar, check, locked_jars
from tailrace.cdc.launch.jar_sets import JAR_SETS
from tailrace.cdc.launch.lock import locked
from tailrace.schemas.errors import ConfigError

OnProgress = Callable[[str, int, int | None], None]
"""As `cdc.operations.progress.OnProgress`."""


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


def jars(set_name: str, on_progress: OnProgress | None = None) -> list[Path]:
    """Return the jars of a set, complete; the first call fetches them, later calls need no network.

    Safe to call from several processes: one fetches, the others wait. An interrupted fetch resumes. `on_progress` gets
    bytes; without it, and off a terminal, two lines on standard error tell of a fetch. Raises ConfigError TR-613
    for an unknown set.
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
            there = _fetch(set_name, cache, folder, on_progress)
    return there


def _fetch(set_name: str, cache: Path, folder: Path, on_progress: OnProgress | None) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    wanted = JAR_SETS[set_name]
    known = locked_jars(set_name, wanted)
    # a set that was changed without its lock is asked for as it is
    modules, transitive = (wanted.modules, wanted.transitive) if known is None else (list(known), False)
    says = on_progress is None or not sys.stderr.isatty()
    if says:
        print(f"fetching jars for {set_name} (once)", file=sys.stderr, flush=True)
    progress = _counted(set_name, known or {}, on_progress or (lambda what, done, total: None))
    ivy.retrieve(modules, transitive=transitive, cache=cache / "ivy", into=folder, progress=progress)
    if known is not None:
        check(folder, known)
    files = sorted([*folder.glob("*.jar"), *folder.glob("*.tar.gz")])
    # Written last and atomically, so that a folder with a marker is complete.
    unfinished = folder / "complete.json.new"
    unfinished.write_text(json.dumps({path.name: path.stat().st_size for path in files}, indent=1), encoding="utf-8")
    unfinished.replace(folder / "complete.json")
    if says:
        size = sum(path.stat().st_size for path in files) / 1e6
        print(f"jars for {set_name}: {len(files)} jars, {size:.0f} MB in {folder}", file=sys.stderr, flush=True)
    return files


def _complete(folder: Path) -> list[Path] | None:
    """Return the jars that the marker lists, or None if one is missing or has another size."""
    try:
        sizes: dict[str, int] = json.loads((folder / "complete.json").read_text(encoding="utf-8"))
        whole = all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return None
    return [folder / name for name in sizes] if whole and sizes else None


def _counted(set_name: str, known: Mapping[str, LockedJar], on_progress: OnProgress) -> Callable[[str], None]:
    """Return what is called with the name of each file when its download begins: those before it count as done."""
    sizes = {ivy.short_name(module): jar.size for module, jar in known.items()}
    total = sum(sizes.values())
    begun: list[str] = []
    what = f"fetching jars for {set_name} (once, {total / 1e6:.0f} MB)"
    on_progress(what, 0, total)

    def progress(name: str) -> None:
        on_progress(what, sum(sizes.get(each, 0) for each in tuple(begun)), total)
        begun.append(name)

    return progress
