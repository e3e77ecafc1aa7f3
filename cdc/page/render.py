"""Templates of the status page: the page, its main part, and the page of an error code."""

from __future__ import annotations

from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from tailrace.cdc.page.attention import has_page
from tailrace.cdc.page.contents import Contents
from tailrace.schemas.error_codes import CODES

RELOAD_S: Final = 10
"""Seconds after which a browser without JavaScript loads the page again."""


class Templates:
    """The compiled templates. Every value is escaped."""

    def __init__(self) -> None:
        environment = Environment(
            loader=PackageLoader("tailrace.cdc.page"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.tests["registered"] = has_page
        self._page = environment.get_template("page.html")
        self._main = environment.get_template("main.html")
        self._code = environment.get_template("code.html")

    def main(self, contents: Contents) -> str:
        """Return the part of the page that changes."""
        return self._main.render(page=contents)

    def page(self, slot: str, main: str) -> str:
        """Return the whole page around the rendered `main`."""
        return self._page.render(slot=slot, main=main, reload_s=RELOAD_S)

    def code(self, code: str) -> str | None:
        """Return the page of an error code; None if there is no such code."""
        entry = CODES.get(code)
        return None if entry is None else self._code.render(entry=entry)
