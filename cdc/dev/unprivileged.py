"""Run a command as somebody who is not root: PostgreSQL refuses to run as root.

No user is made and no folder's mode is changed. The command keeps one capability, to read what root may
read, so that a state folder or a virtual environment under /root (mode 0700) works.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from schemas.errors import SourceError

# `nobody`, by number: there is not always such a name.
NOBODY = 65534

# Bits of the capability sets, from linux/capability.h; the narrow one first. Containers often have the
# second only.
_CAPABILITIES = (("dac_read_search", 2), ("dac_override", 1))


def prefix(uid: int) -> list[str]:
    """Return what to put before a command so that it runs as `uid` when we are root; else nothing."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise SourceError(
            "TR-603",
            "PostgreSQL does not run as root, and there is no setpriv to run it as somebody else",
            hint="apt-get install util-linux, or run as another user.",
        )
    command = [setpriv, f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    kept = kept_capability(Path("/proc/self/status"))
    if kept:
        command += [f"--inh-caps=-all,+{kept}", f"--ambient-caps=-all,+{kept}"]
    return command


def kept_capability(status: Path) -> str | None:
    """Return the narrowest capability we have that lets a process in where only root may go."""
    try:
        match = re.search(r"^CapPrm:\s*([0-9a-f]+)", status.read_text(), re.MULTILINE)
    except OSError:
        return None
    permitted = int(match[1], 16) if match else 0
    return next((name for name, bit in _CAPABILITIES if permitted >> bit & 1), None)


def own(folder: Path, uid: int) -> None:
    """Make a folder of ours, given to `uid` when we are root; an existing one is left as it is."""
    if folder.exists():
        return
    folder.mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(folder, uid, uid)
