"""The import name of a documented system; see `twinscope.compat.troubleshooter`."""

from __future__ import annotations
