"""What `import twinscope` adds to the start of Python, and that it loads no framework.

python benchmarks/import_time.py
"""

from __future__ import annotations

import subprocess
import sys
import time

FRAMEWORKS = "torch paddle mindspore jax tensorflow"


def start(code: str, rounds: int = 15) -> float:
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        best = min(best, time.perf_counter() - began)
    return best


def main() -> None:
    bare = start("pass")
    for name, code in {
        "import twinscope": "import twinscope",
        "... and use compare": "import twinscope; twinscope.compare",
        "... and use capture": "import twinscope; twinscope.capture",
    }.items():
        loaded = f"{code}; import sys; assert not set('{FRAMEWORKS}'.split()) & set(sys.modules)"
        seconds = start(loaded)
        print(f"{name:22} {(seconds - bare) * 1e3:6.0f} ms over bare Python, {seconds / bare:5.1f} x")


if __name__ == "__main__":
    main()
