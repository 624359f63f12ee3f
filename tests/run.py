"""The tests, each group in a process whose frameworks can live together. What `make test` runs.

Groups run two at a time; their output is printed when they end. The exit code is 1 if any failed. Of large grids of
cases (networks by twists by pairs of frameworks) one case in `SHARE` runs; with ``--all``, which `make test-all` hands
in, every one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHARE = 8
GROUPS = [
    ("pair, mindspore and paddle", ["tests/pair", "--frameworks", "mindspore,paddle"]),
    ("pair, torch and mindspore", ["tests/pair", "--frameworks", "torch,mindspore"]),
    ("unit", ["tests/unit", "--doctest-modules", "src/twinscope", "--ignore", "src/twinscope/adapters"]),
    ("pair, torch and paddle", ["tests/pair", "--frameworks", "torch,paddle"]),
    ("contract, mindspore", ["tests/contract", "--frameworks", "mindspore"]),
    ("contract, paddle", ["tests/contract", "--frameworks", "paddle"]),
    ("contract, torch", ["tests/contract", "--frameworks", "torch"]),
    ("pair, torch with itself", ["tests/pair", "--frameworks", "torch"]),
    ("compat, torch and paddle", ["tests/compat", "--frameworks", "torch,paddle"]),
    ("compat, torch and mindspore", ["tests/compat", "--frameworks", "torch,mindspore"]),
    ("compat, mindspore and paddle", ["tests/compat", "--frameworks", "mindspore,paddle"]),
]


def run(group: tuple[str, list[str]]) -> tuple[int, dict[str, int]]:
    name, arguments = group
    began = time.monotonic()
    share = 1 if "--all" in sys.argv else SHARE
    given = [word for word in sys.argv[1:] if word != "--all"]
    command = [sys.executable, "-m", "pytest", *arguments, "--share", str(share), *given]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", "")}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    summary = lines[-1] if lines else "no output"
    print(
        f"{'ok  ' if done.returncode == 0 else 'FAIL'} {name}: {summary} [{time.monotonic() - began:.0f} s]", flush=True
    )
    if done.returncode != 0:
        print(done.stdout, done.stderr, sep="\n", flush=True)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", summary)}
    return done.returncode, counts


def main() -> int:
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(run, GROUPS))
    total = {word: sum(c.get(word, 0) for _, c in results) for word in ("passed", "failed", "skipped", "error")}
    print(f"{total['passed']} passed, {total['failed'] + total['error']} failed, {total['skipped']} skipped")
    return int(any(code != 0 for code, _ in results))


if __name__ == "__main__":
    sys.exit(main())
