"""Run a container engine that has all images; skip the tests, with the reason, where there is none."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from testcontainers.core.config import ConnectionMode, testcontainers_config

from tests.support.daemon import ROOT

_SCRIPT = ROOT / "docker" / "local-images"
_NOT_TO_BE_HAD = 3


@contextmanager
def running_engine() -> Iterator[None]:
    """Use the running engine, or start one that is stopped after the block."""
    before = os.environ.get("DOCKER_HOST")
    built = subprocess.run([_SCRIPT], capture_output=True, text=True, check=False)
    if built.returncode == _NOT_TO_BE_HAD:
        pytest.skip(built.stderr.strip().splitlines()[-1])
    assert built.returncode == 0, built.stderr
    os.environ["DOCKER_HOST"] = built.stdout.strip()
    testcontainers_config.hub_image_name_prefix = "tailrace-local/"
    testcontainers_config.connection_mode_override = ConnectionMode.docker_host
    testcontainers_config.ryuk_disabled = True  # needs one more image; our label marks leftovers of a kill -9
    yield
    if "starting an engine" in built.stderr:
        subprocess.run([_SCRIPT, "--stop"], check=True)
    if before is None:
        del os.environ["DOCKER_HOST"]
