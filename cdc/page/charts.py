"""Charts as SVG, drawn by pygal; colors and fonts are those of the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from tailrace.cdc.page.history import Series
from tailrace.cdc.page.pygal_line import Line

_WIDTH, _HEIGHT = 340, 130
_NOT_DRAWN: Final = ("style", "script", "title", "desc")


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn series: its title, the present value, the maximum, the window's length in minutes, the SVG."""

    key: str
    title: str
    now: str
    maximum: str
    minutes: int
    svg: Markup


def chart(key: str, title: str, series: Series, shown: Callable[[float], str]) -> Chart:
    """Draw a series; `shown` formats its values."""
    known = [value for value in series.values if value is not None]
    newest = next((value for value in reversed(series.values) if value is not None), None)
    minutes = round(series.window_s / 60)
    top = _rounded(max(known, default=0.0))
    drawn = Line(
        css=[],
        js=[],
        width=_WIDTH,
        height=_HEIGHT,
        margin=0,
        margin_right=4,
        spacing=6,
        no_prefix=True,
        disable_xml_declaration=True,
        classes=("chart",),
        show_legend=False,
        show_dots=False,
        allow_interruptions=True,
        show_minor_x_labels=False,
        truncate_label=-1,
        range=(0, top),
        value_formatter=shown,
    )
    last = len(series.values) - 1
    labels = {0: f"−{minutes} min", last // 2: f"−{minutes / 2:g} min", last: "now"}
    drawn.y_labels = [0, top / 2, top]
    drawn.x_labels = [labels.get(n, str(n)) for n in range(last + 1)]
    drawn.x_labels_major = list(labels.values())
    drawn.add(title, list(series.values))
    drawn.add_xml_filter(_without_own_style)
    return Chart(
        key,
        title,
        "unknown" if newest is None else shown(newest),
        "unknown" if not known else shown(max(known)),
        minutes,
        Markup(drawn.render(is_unicode=True)),
    )


def _rounded(value: float) -> float:
    """Return the next number of one digit, 1 for 0, so that the scale's labels are short."""
    if value <= 0:
        return 1.0
    step = 10.0 ** math.floor(math.log10(value))
    return math.ceil(value / step) * step


def _without_own_style(root: Any) -> Any:
    """Remove what the page's content security policy forbids, and what no screen reader should read."""
    for parent in list(root.iter()):
        for child in list(parent):
            name = child.tag if isinstance(child.tag, str) else ""
            if not name or name.rpartition("}")[2] in _NOT_DRAWN or "overlay" in child.get("class", ""):
                parent.remove(child)
            elif "style" in child.attrib:
                del child.attrib["style"]
    root.set("aria-hidden", "true")
    root.set("focusable", "false")
    root.set("preserveAspectRatio", "none")
    return root
