"""The switch that does without what numba does not document: `FABRICTWIN_PLAIN_NUMBA=1`."""

from __future__ import annotations

import os

PLAIN = os.environ.get("FABRICTWIN_PLAIN_NUMBA", "0") not in ("", "0")
