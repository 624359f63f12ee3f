"""What watching costs: a training step of a 12-block ViT, plain and watched, in one run.

    python benchmarks/capture.py [--framework torch] [--batch 4 16] [--image 128] [--threads 1] [--steps 3] [--rounds 7]

Times are the best of several rounds in which all ways take turns; the ratio to the plain step is what counts. Peak
memory is that of a process which does one thing only.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

WAYS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "statistics": {"keep": "stats"},
    "statistics, to disk": {"keep": "stats", "path": "stats"},
    "statistics, modules only": {"keep": "stats", "level": "module"},
    "tensors": {"keep": "tensors"},
    "tensors, to disk": {"keep": "tensors", "path": "tensors"},
}


def watched(model: Any, way: str, folder: Path) -> Any:
    options = WAYS[way]
    if options is None:
        return nullcontext()
    import twinscope

    options = dict(options)
    path = options.pop("path", None)
    return twinscope.capture(model, folder / path if path else None, **options)


def times(framework: str, batch: int, image: int, threads: int, steps: int, rounds: int, folder: Path) -> None:
    from vit import build

    model, step = build(framework, batch, image, threads)
    for _ in range(2):
        step()
    best = {way: float("inf") for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            gc.collect()
            with watched(model, way, folder) as run:
                step()  # the first step also records the weights
                began = time.perf_counter()
                for _ in range(steps):
                    step()
                best[way] = min(best[way], (time.perf_counter() - began) / steps)
            if run is not None:
                assert run.error is None, run.error
                assert any(r.phase == "backward" for r in run.trace), "nothing was watched"
            shutil.rmtree(folder, ignore_errors=True)
    for way, seconds in best.items():
        print(f"{framework:10} {batch:5} {way:26} {seconds * 1e3:9.1f} ms {seconds / best['plain']:6.2f} x")


def memory(framework: str, batch: int, image: int) -> None:
    peaks = {}
    for way in ("plain", "statistics, to disk", "tensors, to disk"):
        command = [sys.executable, __file__, "--peak", way, "--framework", framework, "--batch", str(batch)]
        done = subprocess.run([*command, "--image", str(image)], capture_output=True, text=True, check=True)
        peaks[way] = float(done.stdout.split()[-1])
    for way, kilobytes in peaks.items():
        print(
            f"{framework:10} {batch:5} {way:26} {kilobytes / 1024:9.0f} MB {kilobytes / peaks['plain']:6.2f} x "
            "peak of the process"
        )


def peak(framework: str, batch: int, image: int, way: str, folder: Path) -> None:
    from vit import build

    import twinscope  # noqa: F401 - so that all processes have loaded the same

    model, step = build(framework, batch, image, 1)
    step()
    with watched(model, way, folder):
        for _ in range(4):
            step()
    status = Path("/proc/self/status").read_text()  # getrusage's peak is inherited from the parent process
    print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", nargs="+", default=["torch", "paddle", "mindspore"])
    parser.add_argument("--batch", nargs="+", type=int, default=[4, 16])
    parser.add_argument("--image", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "trace"
        if o.peak:
            peak(o.framework[0], o.batch[0], o.image, o.peak, folder)
        elif o.one:
            for batch in o.batch:
                times(o.framework[0], batch, o.image, o.threads, o.steps, o.rounds, folder)
            memory(o.framework[0], max(o.batch), o.image)
        else:
            print(f"{'framework':10} {'batch':>5} {'way':26} {'a step':>12} {'ratio':>8}")
            for framework in o.framework:  # each in a process of its own: they do not all go together
                arguments = ["--framework", framework, "--batch", *map(str, o.batch), "--image", str(o.image)]
                rest = ["--threads", str(o.threads), "--steps", str(o.steps), "--rounds", str(o.rounds)]
                subprocess.run([sys.executable, __file__, "--one", *arguments, *rest], check=True)


if __name__ == "__main__":
    main()
