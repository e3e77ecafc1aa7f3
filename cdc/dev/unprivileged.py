"""Run a command as a user other than root: PostgreSQL refuses to run as root.

No user is created and no folder's mode is changed. The command retains one capability, to read all files that root may
read, so that a state folder or a virtual environment under /root (mode 0700) works.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from tailrace.schemas.errors import SourceError

# `nobody`, by number: the name does not always exist.
NOBODY = 65534

# Bits of the capability sets, from linux/capability.h; the narrower one first. Containers often have only the
# second.
_CAPABILITIES = (("dac_read_search", 2), ("dac_override", 1))
_SETPCAP = 8


def prefix(uid: int) -> list[str]:
    """Return the command prefix that runs a command as `uid` if this process is root; else an empty list.

    Raises SourceError TR-603 if setpriv is missing.
    """
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise SourceError(
            "TR-603",
            "PostgreSQL does not run as root, and setpriv, which runs it as another user, is missing",
            hint="apt-get install util-linux  # or run this command as another user",
        )
    command = [setpriv, f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    permitted = permitted_capabilities(Path("/proc/self/status"))
    kept = kept_capability(permitted)
    if kept:
        command += [f"--inh-caps=-all,+{kept}", f"--ambient-caps=-all,+{kept}"]
        if permitted >> _SETPCAP & 1:
            # initdb looks for its postgres with access(2), which ignores capabilities without this
            command.append("--securebits=+no_setuid_fixup")
    return command


def kept_capability(permitted: int) -> str | None:
    """Return the narrowest permitted capability that gives access to files of root, None if there is none."""
    return next((name for name, bit in _CAPABILITIES if permitted >> bit & 1), None)


def permitted_capabilities(status: Path) -> int:
    """Return the bits of a process's permitted capabilities from /proc; 0 without /proc."""
    try:
        match = re.search(r"^CapPrm:\s*([0-9a-f]+)", status.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1], 16) if match else 0


def own(folder: Path, uid: int) -> None:
    """Create a folder, owned by `uid` if this process is root; an existing one is not changed."""
    if folder.exists():
        return
    folder.mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(folder, uid, uid)
