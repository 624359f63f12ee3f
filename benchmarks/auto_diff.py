"""What auto_diff costs: its CPU time over that of a plain forward and backward pass of both models.

A vision transformer of 12 blocks of width 192, batch 4, 65 tokens, one thread. With the interpreter of an environment
in which the original PaDiff 0.2 is installed, it is measured side by side:

    OMP_NUM_THREADS=1 python benchmarks/auto_diff.py [--original path/to/python] [--times 5]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BATCH, IMAGE = 4, 128


def cpu(work: Callable[[], Any], times: int) -> float:
    """The least CPU time of several runs, in seconds; one more comes first and is not counted."""
    best = float("inf")
    for i in range(times + 1):
        gc.collect()
        begin = time.process_time()
        work()
        if i:
            best = min(best, time.process_time() - begin)
    return best


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(times: int) -> None:
    """Measure the `auto_diff` that this interpreter imports as `padiff`."""
    sys.path.insert(0, str(Path(__file__).parent))
    import torch  # before paddle
    import vit

    module, _ = vit.build("torch", BATCH, IMAGE)
    import paddle

    layer, _ = vit.build("paddle", BATCH, IMAGE)
    x = np.random.default_rng(0).standard_normal((BATCH, 3, IMAGE, IMAGE)).astype("float32")
    inputs = {"x": paddle.to_tensor(x)}, {"x": torch.as_tensor(x)}

    def plain() -> None:
        module(**inputs[1]).mean().backward()
        module.zero_grad()
        layer(**inputs[0]).mean().backward()
        layer.clear_gradients()

    base = cpu(plain, times)
    before = peak()
    from padiff import auto_diff

    def compare() -> None:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            passed = auto_diff(layer, module, inputs, auto_weights=True, options={"atol": 1e-3, "rtol": 1e-3})
        assert passed, said.getvalue()

    spent = cpu(compare, times)
    checked = "with" if os.environ.get("PADIFF_API_CHECK") != "OFF" else "without"
    print(
        f"{checked} APIs: plain {base * 1000:.0f} ms, auto_diff {spent * 1000:.0f} ms: {spent / base:.2f} times; "
        f"peak {before:.0f} MB plain, {peak():.0f} MB after {times + 1} calls"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--original", help="the interpreter of an environment with padiff 0.2")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(given.times)
        return
    for name, python in (("twinscope", sys.executable), ("padiff 0.2", given.original)):
        for check in ("ON", "OFF") if python else ():
            env = {**os.environ, "OMP_NUM_THREADS": "1", "PADIFF_API_CHECK": check}
            if name != "twinscope":
                env.pop("PYTHONPATH", None)
            command = [python, __file__, "--measure", "--times", str(given.times)]
            done = subprocess.run(command, env=env, capture_output=True, text=True)
            lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()
            print(f"{name:12}{lines[-1] if lines else 'nothing printed'}", flush=True)


if __name__ == "__main__":
    main()
