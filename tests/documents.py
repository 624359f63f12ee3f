"""The documents as programs: their fenced blocks, and running them in order.

    ```python               runs, in one namespace for the whole document
    ```python file=NAME     is written to NAME
    ```python alone         runs in a process of its own (frameworks that do not go together)
    ```sh                   runs; `python` and `twinscope` are those of this environment
    ```text output          is what the block before it prints; numbers may be others, a line "..." is any lines
    ```text, ```json        is not run

As a program: ``python documents.py DOCUMENT ANSWER`` runs a document in the working directory.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
#: `-P` is not there in Python 3.10; the working directory must be importable only last, as for a user's script
_SHELL = 'set -u\npython() { "$PYTHON" "$@"; }\ntwinscope() { "$PYTHON" -m twinscope.cli "$@"; }\n'


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: what is written after the fence, its text, the line that it begins in."""

    language: str
    tags: tuple[str, ...]
    text: str
    line: int

    @property
    def file(self) -> str | None:
        return next((t.removeprefix("file=") for t in self.tags if t.startswith("file=")), None)

    @property
    def is_output(self) -> bool:
        return self.language == "text" and "output" in self.tags

    @property
    def runs(self) -> bool:
        return self.language in ("python", "sh")


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a document, in order."""
    found = []
    for match in FENCE.finditer(text):
        language, *tags = match.group(1).split() or [""]
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(language, tuple(tags), match.group(2), line))
    return found


def run(document: Path, place: Path) -> list[tuple[Block, str]]:
    """Run a document in `place`, in a process of its own; each block that ran, and what it printed."""
    answer = place / "answer.json"
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR")}
    paths = [str(ROOT / "src"), environment.get("PYTHONPATH", "")]
    environment |= {"PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(p for p in paths if p), "NO_COLOR": "1"}
    environment |= {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, __file__, str(document), str(answer)]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{document.name} does not run:\n{done.stdout}\n{done.stderr}")
    printed = json.loads(answer.read_text(encoding="utf-8"))
    return list(zip([b for b in blocks(document.read_text(encoding="utf-8")) if b.runs], printed, strict=True))


def skeleton(text: str) -> list[str]:
    """Lines with their numbers and spaces levelled: what stays the same on another machine."""
    text = re.sub(r"\d[\w.]*\+\w+", "N", text)
    text = re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "N", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def agrees(shown: str, printed: str) -> bool:
    """Whether a shown output is what was printed, up to numbers, spaces, and the lines left out as ``...``."""
    pattern = "".join("(?:.*\n)*?" if line == "..." else re.escape(line) + "\n" for line in skeleton(shown))
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in skeleton(printed))) is not None


def _run_here(document: Path) -> list[str]:
    text = document.read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for block in blocks(text):
        if not block.runs:
            continue
        if block.file is not None:
            Path(block.file).write_text(block.text, encoding="utf-8")
            printed.append("")
        elif block.language == "sh":
            printed.append(_process(["bash", "-c", _SHELL + block.text], document, block))
        elif "alone" in block.tags:
            printed.append(_process([sys.executable, "-c", block.text], document, block))
        else:
            output = io.StringIO()
            code = compile("\n" * (block.line - 1) + block.text, document.name, "exec")
            with contextlib.redirect_stdout(output):
                exec(code, namespace)
            printed.append(output.getvalue())
    return printed


def _process(command: list[str], document: Path, block: Block) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{document.name}:{block.line} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).resolve().parent))
    sys.path.append(os.getcwd())
    Path(sys.argv[2]).write_text(json.dumps(_run_here(Path(sys.argv[1]))), encoding="utf-8")
