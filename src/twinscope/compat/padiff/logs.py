"""The files of `diff_log`, in the working directory; nothing else that lies there is touched."""

from __future__ import annotations

from pathlib import Path

FOLDER = "diff_log"


def write_log(name: str, text: str) -> str:
    """Write a log anew; its path."""
    folder = Path.cwd() / FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text if text.endswith("\n") else f"{text}\n", encoding="utf-8")
    return str(path)
