"""A real browser without a window: Debian's chromium, driven through its chromedriver."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # CI runs as root
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-proxy-server",
    # Chromium's own requests, for updates and the like
    "--disable-background-networking",
    "--disable-component-update",
)


@contextmanager
def browser() -> Iterator[Chrome]:
    """Yield a browser; skip the test if this machine has none."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium here: apt-get install chromium chromium-driver")
    options = ChromeOptions()
    options.binary_location = chromium
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = Chrome(options, Service(driver))
    try:
        yield found
    finally:
        found.quit()


def resize(found: Chrome, width: int, *, dark: bool = False) -> None:
    """Give the page a width in CSS pixels and a color scheme."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    found.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    found.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})


def requested_urls(found: Chrome) -> list[str]:
    """Return the URLs that pages have requested since the last call."""
    messages = [json.loads(text)["message"] for text in _log(found, "performance")]
    sent = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith("data:")]


def console(found: Chrome) -> list[str]:
    """Return what the browser and its pages have written to the console since the last call."""
    return _log(found, "browser")


def _log(found: Chrome, kind: str) -> list[str]:
    entries: list[dict[str, Any]] = found.get_log(kind)  # type: ignore[no-untyped-call]
    return [entry["message"] for entry in entries]


def accessible(found: Chrome) -> list[tuple[str, str]]:
    """Return role and name of each node of the accessibility tree that a screen reader does not ignore."""
    nodes: list[dict[str, Any]] = found.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    known = [node for node in nodes if not node["ignored"]]
    return [(node["role"]["value"], str(node.get("name", {}).get("value", ""))) for node in known]
