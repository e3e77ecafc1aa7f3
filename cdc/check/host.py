"""Check this host: folders, free space, the address of health and metrics, optional packages."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tailrace.cdc.check.finding import Findings, Severity
from tailrace.cdc.toast.facade import cache_folder
from tailrace.schemas.config.model import Config
from tailrace.sinks.serving.address import check_address
from tailrace.sinks.tracing.traces import check_installed

_SPOOL_BYTES: Final = 1 << 30
"""Free space for transactions in progress below which the check warns."""


def check_host(config: Config, findings: Findings, *, runs: bool) -> None:
    """Report folders without space, a package that is missing, and an address in use.

    `runs`: a daemon runs, perhaps here with this address.
    """
    for what, folder, needed in _folders(config):
        with findings.probing("host"):
            _check_folder(what, folder, needed, findings)
    with findings.probing("host"):
        check_installed(config)
    if not runs:
        with findings.probing("host"):
            check_address(config.health.daemon_address)


def _folders(config: Config) -> Iterator[tuple[str, Path, int]]:
    source = config.source
    if "cache" in (source.toast, *source.toast_by_table.values()) and (folder := cache_folder(config)) is not None:
        yield "source.toast_cache_dir", folder, source.toast_cache_bytes
    if source.streaming:
        yield "source.spool_dir", Path(source.spool_dir or tempfile.gettempdir()), _SPOOL_BYTES


def _check_folder(what: str, folder: Path, needed: int, findings: Findings) -> None:
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        seen = f'{what} = "{folder}" cannot be written by this user.'
        findings.advise("TR-915", Severity.WARN, "host", seen, f"ls -ld {there}")
        return
    free = shutil.disk_usage(there).free
    if free < needed:
        seen = f'{what} = "{folder}" has {free} bytes free; it may need {needed}.'
        findings.advise("TR-915", Severity.WARN, "host", seen, f"df -h {there}")
