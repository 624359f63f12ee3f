"""The stack of a call as the documents print it, the innermost frame first."""

from __future__ import annotations

import linecache
import os
import sys

from twinscope import Record


def stack_text(record: Record, indent: str = " " * 9) -> str:
    """Two lines a frame: where, and what is written there. Twinscope's own frames are in no record."""
    lines = []
    for frame in record.stack:
        lines.append(f"{indent}File {frame.file}: {frame.line}    {frame.function}")
        lines.append(f"{indent}{indent}{line_of(frame.file, frame.line)}")
    return "\n".join(lines)


def line_of(file: str, number: int) -> str:
    """The text of a line of a file that is named relative to the working directory or to an import root.

    >>> line_of("no_such_file.py", 1)
    ''
    """
    for root in ("", *sys.path):
        path = os.path.join(root, file)
        if os.path.isfile(path):
            return linecache.getline(path, number).strip()
    return ""
