"""Run a command as somebody who is not root: PostgreSQL refuses to run as root.

No user is made and no folder's mode is changed. The command keeps one capability, to read what root may
read, so that a state folder or a virtual environment under /root (mode 0700) works.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from tailrace.schemas.errors import SourceError

# `nobody`, by number: there is not always such a name.
NOBODY = 65534

# Bits of the capability sets, from linux/capability.h; the narrow one first. Containers often have the
# second only.
_CAPABILITIES = (("dac_read_search", 2), ("dac_override", 1))
_SETPCAP = 8


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
    permitted = permitted_capabilities(Path("/proc/self/status"))
    kept = kept_capability(permitted)
    if kept:
        command += [f"--inh-caps=-all,+{kept}", f"--ambient-caps=-all,+{kept}"]
        if permitted >> _SETPCAP & 1:
            # initdb looks for its postgres with access(2), which leaves capabilities out of account without this
            command.append("--securebits=+no_setuid_fixup")
    return command


def kept_capability(permitted: int) -> str | None:
    """Return the narrowest of these capabilities that lets a process in where only root may go."""
    return next((name for name, bit in _CAPABILITIES if permitted >> bit & 1), None)


def permitted_capabilities(status: Path) -> int:
    """Return the bits of what a process may do, as /proc has them; none where there is no /proc."""
    try:
        match = re.search(r"^CapPrm:\s*([0-9a-f]+)", status.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1], 16) if match else 0


def own(folder: Path, uid: int) -> None:
    """Make a folder of ours, given to `uid` when we are root; an existing one is left as it is."""
    if folder.exists():
        return
    folder.mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(folder, uid, uid)
