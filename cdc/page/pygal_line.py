"""pygal's line chart, without pygal's import hook.

The hook finds plugins with maps. It has a form that Python 3.11 warns of at every later import of the process.
"""

from __future__ import annotations

import sys

import pygal

Line = pygal.Line

sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, pygal.PluginImportFixer)]
