"""Reports: one form (`tree.Report`), built from a result or a trace, lowered to a terminal's text, JSON and CSV."""

from .tree import Report as Report
from .tree import build as build
