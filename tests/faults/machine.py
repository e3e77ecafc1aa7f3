"""Faults of the daemon's machine: a full disk and a clock that jumps."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


class SmallDisk:
    """A file system of a few megabytes; `why_not` returns the reason if this machine cannot mount one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tailrace-faults", str(folder)], check=True)

    def fill(self) -> None:
        """Use all free space."""
        with (self.folder / "full").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                return

    def free(self) -> None:
        (self.folder / "full").unlink(missing_ok=True)

    def remove(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=True)

    @staticmethod
    def why_not() -> str | None:
        if os.geteuid() != 0:
            return "only root may mount a small file system"
        tried = subprocess.run(
            ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True, check=False
        )
        return f"no file system can be mounted here: {tried.stderr.strip()}" if tried.returncode else None


class Clock:
    """The wall clock of one process; the monotonic clock, which time-outs use, stays as it is."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._library = folder / "clock.so"
        self._file = folder / "ahead"
        self.jump(0)
        source = Path(__file__).with_name("clock.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", self._library, source, "-ldl", "-lpthread"], check=True)

    def jump(self, seconds: int) -> None:
        """Set the clock to `seconds` ahead of the true time, also for processes that already use it."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))

    def environment(self) -> dict[str, str]:
        """Return the environment variables that make a process use this clock."""
        return {"LD_PRELOAD": str(self._library), "TEST_CLOCK": str(self._file)}

    @staticmethod
    def why_not() -> str | None:
        return None if shutil.which("cc") else "no C compiler to build the clock that jumps"
