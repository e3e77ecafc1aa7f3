"""The result of a benchmark, with the machine that it ran on."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def report(result: Mapping[str, Any], output: Path | None) -> None:
    """Print the result as JSON, and write it into a file if there is one."""
    text = json.dumps({"machine": platform.platform(), "cpus": os.cpu_count(), **result}, indent=2)
    print(text)
    if output is not None:
        output.write_text(text + "\n")
