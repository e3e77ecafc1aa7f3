"""Load structlog without rich, which it imports for tracebacks with the values of local variables.

rich and what it imports are a tenth of the CPU time of a start, and such a traceback could show secrets and cell
values. The form of our logs is in `log_form.py`.
"""

from __future__ import annotations

import sys


def load_structlog() -> None:
    """Import structlog as if rich were not installed; call it before modules that import structlog, and threads."""
    hidden = "rich" not in sys.modules
    if hidden:
        sys.modules["rich"] = None  # type: ignore[assignment]  # an import of it fails
    try:
        import structlog as structlog
    finally:
        if hidden:
            del sys.modules["rich"]
