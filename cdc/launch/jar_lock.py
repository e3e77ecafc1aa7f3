"""The jars of each set with all of their dependencies and their checksums, in `jars.lock`.

    python -m tailrace.cdc.launch.jar_lock

writes that file, after a change of `JAR_SETS`. With it a fetch asks for jars only: otherwise most of the requests are
for the descriptions of modules and of their parents.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from tailrace.cdc.launch import ivy
from tailrace.cdc.launch.jar_sets import JAR_SETS, JarSet
from tailrace.schemas.errors import ConfigError

_FILE: Final = Path(__file__).with_name("jars.lock")


@dataclass(frozen=True, slots=True)
class LockedJar:
    """The file of a module: its SHA-256 as hexadecimal text, and its size in bytes."""

    checksum: str
    size: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """Return what a file has to be, from one that is right."""
        with path.open("rb") as file:
            return cls(hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_size)


def locked_jars(name: str, wanted: JarSet) -> Mapping[str, LockedJar] | None:
    """Return each module's jar; None if the file has no such set, or another version of it."""
    found = json.loads(_FILE.read_text(encoding="utf-8")).get(name)
    if found is None or found["set"] != wanted.fingerprint:
        return None
    jars = ((module, text.split()) for module, text in found["jars"].items())
    return {module: LockedJar(checksum, int(size)) for module, (checksum, size) in jars}


def check(folder: Path, jars: Mapping[str, LockedJar]) -> None:
    """Compare the jars in a folder with their checksums. ConfigError (TR-601) if one differs; it is deleted."""
    for module, jar in jars.items():
        path = folder / ivy.file_name(module)
        if LockedJar.of(path) != jar:
            path.unlink()
            raise ConfigError(
                "TR-601",
                "jars could not be fetched",
                detail=f"{module} has another SHA-256 than in {_FILE.name}.",
                hint="Which repository or mirror is in ~/.m2/settings.xml? It must have the jars that are published.",
            )


def _locked(wanted: JarSet) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tailrace-jars-") as folder:
        found = ivy.with_dependencies(wanted.modules, Path(folder), transitive=wanted.transitive)
        jars = {module: LockedJar.of(path) for module, path in sorted(found.items())}
    return {"set": wanted.fingerprint, "jars": {module: f"{jar.checksum} {jar.size}" for module, jar in jars.items()}}


def main() -> None:
    """Fetch all sets with their dependencies, which takes minutes, and write the file."""
    text = json.dumps({name: _locked(wanted) for name, wanted in JAR_SETS.items()}, indent=1)
    _FILE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
